"""What the compiled kernels of an op do to memory, read off their assembly for GPUs that need not be here."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rafters.engine.spec import INDEX
from rafters.engine.study.inspect import inspect
from rafters.engine.target import parse_target
from rafters.errors import RaftersError
from rafters.lang import has_triton
from rafters.operator.from_kernel import FromKernel
from rafters.operator.op import Op
from rafters.testing.cases import dtypes_of
from rafters.testing.report import FAILED, PASSED, SKIPPED, Outcome

ASSEMBLY = "assembly"
HUGE = "more than 2^31 elements"
QUICK, FULL = ("sm_90",), ("sm_80", "sm_90", "sm_100", "sm_120", "gfx942")


def checked(op: Op, quick: bool, targets: Sequence[str]) -> list[Outcome]:
    """Access widths, predicates, spills, the wait of a dependent launch, and where 64-bit offsets are paid for."""
    if not has_triton():
        return [Outcome("access width", ASSEMBLY, SKIPPED, reason="triton is not installed")]
    start = time.perf_counter()
    faults: dict[str, list[str]] = {"access width": [], "no spills": [], "dependent launch waits": [], "index width": []}
    # how wide a hand-written kernel reads is its author's choice; rows that are selected are found by 64-bit products
    skipped = {"access width", "index width"} if isinstance(op.form, FromKernel) else set()
    skipped |= {"index width"} if any(p.kind == INDEX for p in op.spec.parameters) else set()
    count = 0
    for record in _records(op, quick, targets):
        count += 1
        where = f"{record['situation']}, {record.get('target')}"
        if "error" in record:
            faults.setdefault("compiles", []).append(f"{where}: {record['error'].splitlines()[0]}")
            continue
        for name, wrong in _wrong(record):
            if name not in skipped:
                faults[name].append(f"{where}: {wrong}")
    if not count:
        return [Outcome("access width", ASSEMBLY, SKIPPED, reason="no situation of its kernels could be made up")]
    spent = (time.perf_counter() - start) / len(faults)
    return [
        Outcome(n, ASSEMBLY, FAILED if f else PASSED, count, spent, "; ".join(f[:3]))
        for n, f in faults.items()
        if n not in skipped
    ]


def _records(op: Op, quick: bool, targets: Sequence[str]) -> Iterable[dict[str, Any]]:
    dtype = torch.bfloat16 if torch.bfloat16 in dtypes_of(op) else dtypes_of(op)[-1]
    if isinstance(op.form, FromKernel) or not quick:
        for name in targets:
            try:
                records = op.inspect(parse_target(name), dtype)
            except RaftersError as problem:
                records = [{"situation": "any", "error": str(problem)}]
            yield from ({**record, "target": name} for record in records)
        return
    for record in inspect(op.spec, parse_target(QUICK[0]), dtype, names=("contiguous", HUGE)):
        yield {**record, "target": QUICK[0]}


def _wrong(record: dict[str, Any]) -> Iterable[tuple[str, str]]:
    if record["spill_bytes"]:
        yield "no spills", f"{record['spill_bytes']} bytes of registers are kept in memory"
    if record["wait_first"] is False:
        yield "dependent launch waits", "memory is read or written before the wait"
    if record["mul64"] and record["index_bits"] == 32:
        yield "index width", f"{record['mul64']} 64-bit multiplications in a kernel of 32-bit offsets"
    if record["situation"] == HUGE and record["index_bits"] == 32:
        yield "index width", "offsets of 32 bits"
    if record["target"].startswith("sm_") and record["layout"] == "flat" and record["aligned"]:
        hot = record["hot"]
        if (bits := min(hot["load_bits"], hot["store_bits"])) < 128:
            yield "access width", f"the narrowest access of the hot arm has {bits} bits"
        if hot["predicated"]:
            yield "access width", f"{hot['predicated']} accesses of the hot arm carry a predicate"
