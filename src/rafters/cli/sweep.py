"""`rafters sweep`: what the block size, the mask and the alignment of a kernel are worth."""

import json as json_text
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from rafters.cli import _ops, _sweep, _sweep_plot
from rafters.cli._machine import gpu_problem
from rafters.cli._result import Record
from rafters.cli._sweep import Sweep
from rafters.dtypes import dtype_name, parse_dtype
from rafters.engine.target import parse_target
from rafters.errors import RaftersError
from rafters.lang import has_triton
from rafters.operator import Op
from rafters.operator.from_body import FromBody
from rafters.roofline import ceilings
from rafters.roofline.measurement import write_lines


def main(
    op: Annotated[str, typer.Argument(help="An op of the library, my_op.py:name or package.module:name.")],
    dtype: Annotated[str, typer.Option(help="bf16, fp16, fp32, ...")] = "bf16",
    size: Annotated[int, typer.Option(help="Elements; masked and split kernels get one more.")] = 2**26,
    target: Annotated[str, typer.Option(help="Without a GPU: what to compile for.")] = "sm_90",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", "--output", help="File of JSON lines. [rafters-sweep-OP-DATE.jsonl]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, no table.")] = False,
) -> None:
    """Time one op's kernel over elements a program, warps, masks and alignment; without a GPU, read its assembly."""
    (meant,) = _one(op)
    try:
        element = parse_dtype(dtype)
    except ValueError as error:
        raise RaftersError(f"--dtype: {error}") from None
    console, errors = Console(), Console(stderr=True)
    if not console.is_terminal:
        console.width = 140
    gpu = torch.cuda.is_available() and has_triton() and not gpu_problem()
    with errors.status("starting") as status:
        if gpu:
            where = torch.device("cuda", torch.cuda.current_device())
            roof = ceilings(where, quick=True, progress=lambda text: status.update(f"ceilings of this device, once: {text}"))
            found = [_sweep.time_all(meant, element, size, where, roof, status.update)]
        else:
            found = [_sweep.read(meant, element, parse_target(target), status.update)] if has_triton() else []
            recorded = _sweep.recorded(meant.qualified_name, dtype_name(element)) or _sweep.recorded("rafters::add", "bf16")
            found += [recorded] if recorded else []
    if not found:
        raise RaftersError("no GPU, no triton and no recorded rows: pip install rafters[triton] reads the assembly instead")
    fresh = [s for s in found if not s.recorded]
    path = out or Path(f"rafters-sweep-{meant.name}-{datetime.now():%Y%m%d-%H%M%S}.jsonl")
    for sweep in fresh:
        _write(sweep, path)
    if json:
        typer.echo(json_text.dumps({"sweeps": [_document(s) for s in found], "file": str(path) if fresh else None}))
    else:
        _print(console, found, path, gpu)
    if any(r.verdict.startswith("WRONG") for s in fresh for r in s.rows):
        raise typer.Exit(1)


def _one(name: str) -> tuple[Op]:
    found = _ops.find([name])
    if len(found) != 1:
        raise RaftersError(f"{name} holds {len(found)} ops; sweep takes one: {', '.join(f'{name}:{o.name}' for o in found)}")
    if found[0].spec.rowwise:
        raise RaftersError(f"{found[0].name} works on rows, whose kernels have no block size; sweep takes elementwise ops")
    if not isinstance(found[0].form, FromBody):
        raise RaftersError(f"{found[0].name} has a kernel of its own, whose Launch decides; sweep takes ops made from a body")
    return (found[0],)


def _title(sweep: Sweep) -> str:
    first = sweep.rows[0]
    what = f"{first.op} {first.dtype}"
    if sweep.environment is None:
        return f"{what}, assembly for {first.target}"
    e = sweep.environment
    conditions = (
        f"{e.device.name}, driver {e.device.driver}, torch {e.torch}, triton {e.triton}, {first.date[:10]}, n = {first.n}"
    )
    return f"{what}, {'RECORDED on' if sweep.recorded else 'measured on'} {conditions}, cold L2, medians"


def _print(console: Console, found: list[Sweep], path: Path, gpu: bool) -> None:
    if not gpu:
        console.print("No GPU is used: what follows was read off compiled kernels, and what is recorded was measured elsewhere.")
    for sweep in found:
        console.print(_sweep_plot.grid(sweep, _title(sweep)))
        for line in [*_sweep_plot.bars(sweep), *sweep.findings()]:
            console.print(line, highlight=False, markup=False)
        console.print()
    if any(not s.recorded for s in found):
        console.print(str(path), highlight=False)
    timed = next((s for s in found if s.timed), None)
    if timed:
        try:
            _sweep_plot.draw(timed, _title(timed), path.with_suffix(".svg"))
            console.print(str(path.with_suffix(".svg")), highlight=False)
        except ImportError:
            pass  # the bars above are the plot


def _document(sweep: Sweep) -> dict[str, Any]:
    best = sweep.sweet_spot
    return {
        "title": _title(sweep),
        "recorded": sweep.recorded,
        "chosen": list(sweep.chosen),
        "sweet_spot": best.to_json() if best else None,
        "findings": sweep.findings(),
        "environment": sweep.environment.to_json() if sweep.environment else None,
        "rows": [r.to_json() for r in sweep.rows],
    }


def _write(sweep: Sweep, path: Path) -> None:
    first = sweep.rows[0]
    head: dict[str, Any] = {"type": "sweep_of", "op": first.op, "dtype": first.dtype, "chosen": list(sweep.chosen)}
    lines = [*([sweep.environment] if sweep.environment else []), Record(head), *sweep.rows]
    write_lines(path, lines)
