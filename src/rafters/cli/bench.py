"""`rafters bench`: is it right, how fast is it, how far from the limit, and how fast is PyTorch."""

import json as json_text
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from rafters import device as devices
from rafters.cli import _arguments, _correct, _ops, _peers, _shapes
from rafters.cli._judged import Judged
from rafters.cli._machine import gpu_problem
from rafters.cli._options import finite
from rafters.cli._result import Bench, Row
from rafters.cli._shapes import Case
from rafters.dtypes import dtype_name, parse_dtype
from rafters.errors import RaftersError
from rafters.operator import Op
from rafters.roofline import Ceilings, Results, ceilings, race, read
from rafters.roofline import check as checking
from rafters.roofline.judging import same_device
from rafters.roofline.measurement import WRONG, writable
from rafters.roofline.rotation import fresh

# The default run covers some twenty cases in a minute on a GPU, in two on a small CPU: what a case may take.
_GPU_RULE: dict[str, Any] = {"min_samples": 30, "min_time_s": 0.1, "time_limit_s": 0.5, "warm_up_s": 0.1}
_CPU_RULE: dict[str, Any] = {"min_samples": 10, "min_time_s": 0.1, "time_limit_s": 0.5, "warm_up_s": 0.05}
# The default run on a CPU ends within two minutes, ceilings included; sizes that would not fit in are left out, and named.
_CPU_BUDGET_S = 90.0

Progress = Callable[[str], None]


def bench(
    ops: Sequence[str | Op],
    *,
    shapes: str = "",
    model: str = "",
    tokens: str = "1,16,256",
    dtype: str = "",
    device: str | None = None,
    peers: bool = False,
    roof: Ceilings | None = None,
    progress: Progress = lambda _text: None,
) -> Bench:
    """Checks and times ops; what `rafters bench` prints. In a notebook the result shows as a table.

    `ops` holds ops or what the command line takes ("add", "my_op.py:swish"). Raises RaftersError for what cannot be benched at
    all; an op that is wrong or fails on a shape is a row that says so.
    """
    start = time.perf_counter()
    where = _device(device)
    meant = [o for o in ops if isinstance(o, Op)] + _ops.find([o for o in ops if isinstance(o, str)])
    dtypes = _dtypes(dtype, where)
    if shapes and model:
        raise RaftersError("--shapes and --model exclude each other")
    roof = roof or ceilings(where, quick=True, progress=lambda text: progress(f"ceilings of this device, once: {text}"))
    memory = devices.facts(where).memory_bytes
    todo: list[tuple[Case, torch.dtype, Op]] = []
    for op in meant:
        for d in dtypes:
            cases = (
                _shapes.parse(shapes)
                if shapes
                else _shapes.of_model(model, tokens, op)
                if model
                else _shapes.default(op, d, memory)
            )
            todo += [(case, d, op) for case in cases]
    bounded = where.type == "cpu" and not shapes and not model
    rows = _run(todo, where, roof, peers, progress, start + _CPU_BUDGET_S if bounded else None)
    order = {op.qualified_name: i for i, op in enumerate(meant)}
    rows.sort(key=lambda row: order[row.op])
    return Bench(devices.environment(where), tuple(rows), roof)


def _run(
    todo: list[tuple[Case, torch.dtype, Op]],
    where: torch.device,
    roof: Ceilings,
    peers: bool,
    progress: Progress,
    deadline: float | None,
) -> list[Row]:
    """Smallest cases first, so that a deadline cuts the largest ones of every op alike."""
    rows: list[Row] = []
    took: dict[tuple[Op, torch.dtype], tuple[float, int]] = {}  # seconds and elements of the case before
    for i, (case, d, op) in enumerate(sorted(todo, key=lambda entry: entry[0].numel), 1):
        began = time.perf_counter()
        seconds, elements = took.get((op, d), (0.0, case.numel))
        # Large cases take as long as their data does, and longer where memory gets short.
        expected = seconds * (1.5 * case.numel / elements if elements > 1 << 20 else 1.0)
        if deadline is not None and began + expected > deadline:
            rows.append(Row(op.qualified_name, case.label, dtype_name(d), left_out=True))
            continue
        progress(f"{op.qualified_name} {case.label} {dtype_name(d)} ({i} of {len(todo)})")
        rows.append(_case(op, case, d, where, roof, peers))
        took[op, d] = (time.perf_counter() - began, case.numel)
    return rows


def _case(op: Op, case: Case, dtype: torch.dtype, where: torch.device, roof: Ceilings, peers: bool) -> Row:
    label = (op.qualified_name, case.label, dtype_name(dtype))
    try:
        make = _arguments.maker(op, case, dtype, where)
        first = make()
        truth = _correct.reference(op)
        call: Any = op
        wrong = checking.run(call, truth, fresh(make, 3), _correct.strict)
        providers, notes = _peers.providers(op, first, peers)
        found = race(
            providers,
            make,
            op.cost(*first),
            reference=truth,
            check=_correct.close,
            name=op.qualified_name,
            shape=case.label,
            dtype=dtype_name(dtype),
            device=where,
            ceilings=roof,
            **(_GPU_RULE if where.type == "cuda" else _CPU_RULE),
        )
        ours = found.pop("rafters")
        if wrong:
            ours = replace(ours, verdict=WRONG, seconds=None, reasons=(f"before timing: {wrong}",))
        if sampled := _correct.is_sampled(op, first):
            ours = replace(ours, notes=(*ours.notes, sampled))
        return Row(*label, ours, found, tuple(notes))
    except (RaftersError, RuntimeError, NotImplementedError) as error:
        return Row(*label, error=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")


def _device(name: str | None) -> torch.device:
    """The device asked for; a RaftersError that says why where it cannot be had."""
    try:
        where = devices.resolve(name)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        reason = gpu_problem() or (str(error).splitlines() or [""])[0]
        raise RaftersError(f"--device {name}: {reason}") from error
    if where.type not in ("cpu", "cuda"):
        raise RaftersError(f"--device {name}: kernels run on CUDA and ROCm devices, the traced form on the CPU")
    return where


def _dtypes(text: str, where: torch.device) -> list[torch.dtype]:
    names = [t.strip() for t in text.split(",") if t.strip()] or ["bf16" if where.type == "cuda" else "fp32"]
    try:
        return [parse_dtype(name) for name in names]
    except ValueError as error:
        raise RaftersError(f"--dtype: {error}") from None


def main(
    ops: Annotated[list[str], typer.Argument(help="Ops of the library, my_op.py, my_op.py:name, package.module:name.")],
    shapes: Annotated[str, typer.Option(help="For example 16x4096,1048577; several arguments: 16x4096+4096.")] = "",
    model: Annotated[str, typer.Option(help=f"The widths of a model: {', '.join(_shapes.MODELS)}.")] = "",
    tokens: Annotated[str, typer.Option(help="With --model: numbers of tokens.")] = "1,16,256",
    dtype: Annotated[str, typer.Option(help="bf16, fp16, fp32, ... or several by commas. [bf16; on a CPU fp32]")] = "",
    device: Annotated[str, typer.Option(help="cuda, cuda:1, cpu. [a GPU if there is one]")] = "",
    peers: Annotated[bool, typer.Option("--peers", help="Beside torch.compile too.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", "--output", help="File of JSON lines. [rafters-bench-DATE.jsonl]")
    ] = None,
    baseline: Annotated[Path | None, typer.Option(help="Results of an earlier run, to judge every row against.")] = None,
    threshold: Annotated[
        float, typer.Option(min=0.0, callback=finite, help="With --baseline: share of the time within which a row is the same.")
    ] = 0.02,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, no table.")] = False,
) -> None:
    """Check ops against float64, time them beside PyTorch, and place them on the roofline.

    Exit status 1 if a result is wrong, nothing ran, or a row is SLOWER or FAILED against --baseline.
    """
    console, errors = Console(), Console(stderr=True)
    if not console.is_terminal:
        console.width = 160
    path = out or Path(f"rafters-bench-{datetime.now():%Y%m%d-%H%M%S}.jsonl")
    # What cannot be read or written is found before the measuring, not after.
    before = _baseline(baseline, device) if baseline else None
    writable(path)
    with errors.status("starting") as status:
        result = bench(
            ops,
            shapes=shapes,
            model=model,
            tokens=tokens,
            dtype=dtype,
            device=device or None,
            peers=peers,
            progress=lambda text: status.update(text),
        )
    result.write(path)
    if json:
        judged = Judged(before, result.results, threshold) if before else None
        beside = {"baseline": judged.to_json()} if judged else {}
        typer.echo(json_text.dumps({**result.to_json(), "file": str(path), **beside}))
    else:
        if result.environment.device.kind == "cpu":
            console.print("No GPU is used: these are figures of the CPU path. `rafters env` says what this machine has.")
        console.print(result.table())
        for line in result.remarks:
            console.print(line, style="yellow", markup=False, highlight=False)
        console.print(f"\n{path}", highlight=False)
        judged = Judged(before, result.results, threshold) if before else None
        for line in ["", *judged.lines()] if judged else []:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not result.ok or (judged and not judged.ok):
        raise typer.Exit(1)


def _baseline(path: Path, device: str | None) -> Results:
    """The results to compare with. Raises RaftersError if they hold no time, or come from another device than `device`."""
    found = read(path)
    if not found.measurements:
        raise RaftersError(f"--baseline {path}: no measurement in it")
    here = devices.environment(_device(device or None))
    same_device(found, Results(environments={here.id: here}, source="this machine"))
    return found
