"""Writes the generated parts of the README: `python benchmarks/readme_table.py [--check]`.

The table of ops comes from their docstrings; the figures from the newest file of speed.py in benchmarks/results. Nothing between
the markers is edited by hand. With --check nothing is written, and the exit status is 1 if the README is out of date.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rafters import ops

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
RESULTS = HERE / "results"
NOT_YET = "*Not measured yet: `python benchmarks/speed.py` on a GPU, then `python benchmarks/readme_table.py`.*"

Record = dict[str, Any]


def op_table() -> str:
    """One row an op: name, the first line of its docstring, the file it is written in."""
    lines = ["| op | what it computes | file |", "|---|---|---|"]
    for name, op in ops.table().items():
        arguments = ", ".join(p.name for p in op.spec.parameters)
        what = (op.__doc__ or "").strip().split("\n")[0].replace("|", "\\|")
        file = f"src/{op.__module__.replace('.', '/')}.py"
        lines.append(f"| `{name}({arguments})` | {what} | [{Path(file).name}]({file}) |")
    return "\n".join(lines)


def newest(folder: Path = RESULTS) -> Path | None:
    return max(folder.glob("speed-*.jsonl"), default=None)


def read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def figures(path: Path | None) -> str:
    """A sentence with the figure that matters, the table, what stands beside the figures, and what was missed."""
    if path is None:
        return NOT_YET
    records = read(path)
    environment = next(r for r in records if r["type"] == "environment")
    rows = [r for r in records if r["type"] == "measurement" and r["seconds"]]
    on_gpu = [r for r in rows if r["timer"] != "wall"]
    # One screen: what serves a model first, the rest folded away.
    first = table([r for r in on_gpu if r["name"].endswith("bf16")], environment)
    rest = [table([r for r in on_gpu if not r["name"].endswith("bf16")], environment), host(records), missed(records)]
    body = "\n\n".join(p for p in rest if p)
    folded = (
        f"<details><summary>float32, the host's cost, and what was not reached</summary>\n\n{body}\n\n</details>" if body else ""
    )
    parts = [headline(on_gpu, environment), first, conditions(environment, rows, path), folded]
    return "\n\n".join(p for p in parts if p)


def provider(rows: Iterable[Record], name: str, who: str) -> Record | None:
    return next((r for r in rows if r["name"] == name and r["provider"] == who), None)


def gbps(row: Record) -> float:
    cost = row["cost"]
    return (cost["read_bytes"] + cost["written_bytes"]) / row["seconds"]["median"] / 1e9


def share(row: Record) -> str:
    return f"{gbps(row) * 1e9 / row['ceiling']:.1%}" if row["ceiling"] else "unknown"


def headline(rows: Sequence[Record], environment: Record) -> str:
    """The claim with its figure: an add whose size is no multiple of anything."""
    name = f"add {2**28 + 1} bf16"
    ours, torch, triton = (provider(rows, name, who) for who in ("rafters", "torch", "triton"))
    if not (ours and torch and triton):
        return ""
    device = environment["device"]["name"]
    return (
        f"**On one {device}, `rafters.add` of 2^28 + 1 bfloat16 values moves {gbps(ours):,.0f} GB/s: {share(ours)} of what the "
        f"memory was measured to reach.** PyTorch takes {torch['ratio']:.2f} times as long, the textbook Triton kernel "
        f"{triton['ratio']:.2f} times."
    )


def table(rows: Sequence[Record], environment: Record) -> str:
    d = environment["device"]
    clock, width = d["memory_clock_hz"], d["bus_width_bits"]
    theoretical = 2 * clock * width / 8 if clock and width else None
    lines = ["| call | µs | GB/s | of theoretical | of the ceiling | torch | Triton |", "|---|---:|---:|---:|---:|---:|---:|"]
    for r in rows:
        if r["provider"] != "rafters":
            continue
        torch, triton = (provider(rows, r["name"], who) for who in ("torch", "triton"))
        of_theory = f"{gbps(r) * 1e9 / theoretical:.1%}" if theoretical else "unknown"
        peers = [f"{p['ratio']:.2f}×" if p and p["ratio"] else "" for p in (torch, triton)]
        cells = [r["name"], f"{r['seconds']['median'] * 1e6:,.1f}", f"{gbps(r):,.0f}", of_theory, share(r), *peers]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def conditions(environment: Record, rows: Sequence[Record], path: Path) -> str:
    e, d = environment, environment["device"]
    clocks = sorted({r["sm_mhz"] for r in rows if r["sm_mhz"]})
    parts = [
        d["name"],
        f"driver {d['driver']}" if d["driver"] else "",
        f"{d['power_limit_w']:,.0f} W" if d["power_limit_w"] else "",
        f"SM clock {clocks[0]}-{clocks[-1]} MHz" if clocks else "",
        f"CUDA {e['cuda']}" if e["cuda"] else "",
        f"torch {e['torch']}",
        f"triton {e['triton']}" if e["triton"] else "",
        e["date"][:10],
    ]
    raw = f"[{path.name}]({path.relative_to(README.parent)})" if path.is_relative_to(README.parent) else path.name
    return (
        f"<sub>{', '.join(filter(None, parts))}. Cold L2, medians, every row interleaved in one process; `2.80×` is 2.80 times as "
        f"long as rafters. Raw rows: {raw}.</sub>"
    )


def host(records: Sequence[Record]) -> str:
    lines = [
        f"- {r['name']}: {r['us']['rafters']:.1f} µs, torch {r['us']['torch']:.1f} µs ({r['ratio']:.2f}×)"
        for r in records
        if r["type"] == "host_cost"
    ]
    return "\n".join(lines)


def missed(records: Sequence[Record]) -> str:
    lines = [
        f"- {r['name']}: wanted {r['wanted']}, got {r['got']:.3f}" if r["got"] is not None else f"- {r['name']}: not measured"
        for r in records
        if r["type"] == "requirement" and not r["met"]
    ]
    return "\n".join(["Not reached in that run:", "", *lines]) if lines else ""


def replaced(text: str, part: str, content: str) -> str:
    """`text` with what stands between the markers of `part` replaced."""
    begin, end = f"<!-- {part}: generated by benchmarks/readme_table.py -->", f"<!-- {part}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{README.name} has no place for {part!r}: {begin} ... {end}")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.partition(end)[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if the README is out of date")
    parser.add_argument("--results", type=Path, help="a file of speed.py (default: the newest in benchmarks/results)")
    options = parser.parse_args()
    text = README.read_text(encoding="utf-8")
    wanted = replaced(replaced(text, "figures", figures(options.results or newest())), "ops", op_table())
    if options.check:
        return int(wanted != text)
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
