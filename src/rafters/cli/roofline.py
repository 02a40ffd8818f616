"""`rafters roofline`: the ceilings of this device, measured."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rafters import device as devices
from rafters.roofline import Ceilings, Results, ceilings, write
from rafters.roofline.chart import drawable, model, save, terminal
from rafters.roofline.measurement import writable


def main(
    device: Annotated[str | None, typer.Option(help="cuda, cuda:1 or cpu; the GPU if there is one.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer mixes and sizes.")] = False,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure again, whatever is cached.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Also write a .jsonl, .svg, .png or .html file.")] = None,
) -> None:
    """Measure the ceilings of this device: bandwidth by mix and size, the floor under a launch, arithmetic."""
    if output is not None:  # what cannot be written is found before the measuring, not after
        if output.suffix != ".jsonl":
            drawable(output)
        writable(output)
    where = devices.resolve(device)
    found = ceilings(where, quick=quick, refresh=refresh, progress=_progress if sys.stderr.isatty() else None)
    environment = devices.environment(where)
    if output is not None and output.suffix == ".jsonl":
        write(output, [], environment=environment, ceilings=found)
    elif output is not None:
        save(model.chart(Results(ceilings=[found], environments={environment.id: environment})), output)
    if as_json:
        typer.echo(json.dumps(found.to_json()))
        return
    typer.echo("\n".join(describe(found)))
    typer.echo()
    typer.echo(terminal.draw(model.chart(Results(ceilings=[found], environments={environment.id: environment}))))


def describe(found: Ceilings) -> list[str]:
    """Facts, bandwidths, floors and arithmetic of a device as lines of text."""
    d, theory = found.device, found.device.theoretical_bandwidth
    cores = f"{d.sm_count} {'SMs' if d.kind == 'cuda' else 'threads'}"
    lines = [f"{d.name}: {cores}, {d.l2_bytes / 2**20:,.0f} MiB last cache, {d.memory_bytes / 2**30:,.0f} GiB"]
    lines.append(f"theoretical {theory / 1e9:,.0f} GB/s (2 x memory clock x bus width / 8)" if theory else "theoretical: unknown")
    rows = [_row(found, mix) for mix in sorted({p.mix for p in found.points if p.state == "cold"})]
    lines += terminal.table(rows, 80)
    if d.kind == "cpu":
        lines.append("bus: with the lines a store fetches before it writes them, where the CPU does that")
    lines.append(f"launch floor t0 {found.launch_floor_s * 1e6:.2f} µs{_with_pdl(found)}")
    if plateau := found.cache_plateau:
        lines.append(f"cache: a copy of up to {plateau[1] / 2**20:,.1f} MiB runs at {plateau[0] / 1e9:,.0f} GB/s")
    lines += [f"{c.name}: {c.burst / 1e12:,.3g} TFLOP/s in a burst, {c.sustained / 1e12:,.3g} sustained" for c in found.compute]
    return lines


def _row(found: Ceilings, mix: str) -> dict[str, str]:
    best = max((p for p in found.points if p.mix == mix and p.state == "cold"), key=lambda p: p.gbps)
    theory = found.device.theoretical_bandwidth
    row = {
        "mix": mix,
        "read": f"{best.read_fraction:.0%}",
        "GB/s": f"{best.gbps:,.0f}" if best.gbps >= 100 else f"{best.gbps:,.1f}",
        "of theory": f"{best.gbps * 1e9 / theory:.1%}" if theory else "",
        "at MB": f"{best.bytes / 1e6:,.0f}",
        "by": best.kernel,
    }
    if found.device.kind == "cpu":
        row["bus GB/s"] = f"{best.gbps * (2 - best.read_fraction):,.1f}"
    return row


def _with_pdl(found: Ceilings) -> str:
    floor = found.launch_floor_pdl_s
    return f", {floor * 1e6:.2f} µs with programmatic dependent launch" if floor is not None else ""


def _progress(text: str) -> None:
    typer.echo(f"\r\033[K{text}", nl=False, err=True)
