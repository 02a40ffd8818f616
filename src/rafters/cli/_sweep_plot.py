"""A sweep for the eye: a grid, bars in a terminal, curves in a file."""

from pathlib import Path
from typing import Any

from rich.table import Table

from rafters.cli._sweep import Sweep, SweepRow
from rafters.engine.study.blocks import MASKED, PROVABLE, SPLIT

DASH = "–"
WAYS = tuple((mode, aligned) for aligned in (True, False) for mode in (MASKED, PROVABLE, SPLIT))
_BAR = 48


def way_name(mode: str, aligned: bool) -> str:
    return mode if aligned else f"{mode}, unaligned"


def grid(sweep: Sweep, title: str) -> Table:
    """Block x warps down, ways across: GB/s, or what the assembly says."""
    ways = [w for w in WAYS if any((r.mode, r.aligned) == w for r in sweep.rows)]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("elements", justify="right")
    table.add_column("warps", justify="right")
    for way in ways:
        table.add_column(way_name(*way), justify="right")
    best = sweep.sweet_spot
    for block, warps in sorted({(r.block, r.warps) for r in sweep.rows}):
        mark = " ←" if (block, warps) == sweep.chosen else ""
        cells = [_cell(sweep.find(mode, block, warps, aligned), best) for mode, aligned in ways]
        table.add_row(str(block), f"{warps}{mark}", *cells)
    what = "GB/s, one more element than a multiple of 16 (provable: a multiple)"
    if not sweep.timed:
        what = "bits of the narrowest load/store of the hot arm, predicated accesses"
    table.caption = f"{what}. ← what a call gets"
    table.caption_justify = "left"
    return table


def _cell(row: SweepRow | None, best: SweepRow | None) -> str:
    if row is None:
        return ""
    if row.seconds and row.gbps:
        text = f"{row.gbps:,.0f}"
        return f"[bold green]{text}[/]" if row is best else text
    if row.verdict and row.verdict != "VALID":
        return f"[red]{row.verdict.split(':')[0]}[/]"
    if row.load_bits is None:
        return DASH
    spills = f" spills {row.spill_bytes}" if row.spill_bytes else ""
    return f"{row.load_bits}/{row.store_bits}, {row.predicated} pred.{spills}"


def best_by_block(sweep: Sweep, mode: str, aligned: bool = True) -> dict[int, SweepRow]:
    """Block -> the fastest number of warps for it."""
    found: dict[int, SweepRow] = {}
    for row in sweep.rows:
        if row.seconds and (row.mode, row.aligned) == (mode, aligned):
            known = found.get(row.block)
            if known is None or row.seconds < (known.seconds or 0.0):
                found[row.block] = row
    return dict(sorted(found.items()))


def bars(sweep: Sweep) -> list[str]:
    """One bar a block and way: GB/s by length."""
    top = max((r.gbps for r in sweep.rows if r.gbps), default=0.0)
    lines: list[str] = []
    for mode, aligned in WAYS:
        found = best_by_block(sweep, mode, aligned)
        if found:
            lines.append(way_name(mode, aligned))
        for block, row in found.items():
            length = (row.gbps or 0.0) / top * _BAR
            bar = "█" * int(length) + ("▌" if length % 1 >= 0.5 else "")
            lines.append(f"  {block:5} × {row.warps:<2} {bar:{_BAR}} {row.gbps:,.0f} GB/s")
    return lines


def draw(sweep: Sweep, title: str, path: Path) -> None:
    """Curves of GB/s over the block, one a way, as an SVG file. Raises ImportError where matplotlib is not installed."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes_: Any = axes
    for mode, aligned in WAYS:
        found = best_by_block(sweep, mode, aligned)
        if found:
            axes_.plot(
                list(found),
                [r.gbps for r in found.values()],
                marker="o",
                linestyle="-" if aligned else "--",
                label=way_name(mode, aligned),
            )
    axes_.set_xscale("log", base=2)
    axes_.set_ylim(bottom=0)
    axes_.set_xlabel("elements a program (best number of warps)")
    axes_.set_ylabel("GB/s")
    axes_.set_title(title, loc="left", fontsize=10)
    axes_.grid(alpha=0.3)
    axes_.legend(frameon=False)
    figure.savefig(path)
    pyplot.close(figure)
