"""What can be asked of the kernels of an op without a GPU: each executed by Triton's interpreter, and judged as on a device."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from rafters.engine.spec import INDEX
from rafters.errors import RaftersError
from rafters.operator.from_kernel import FromKernel
from rafters.operator.op import Op
from rafters.testing import interpreter
from rafters.testing.calls import Call, Tensor, listed_call, numbers_for, takes_any_shapes
from rafters.testing.cases import CASES, argument_dtype, dtypes_of
from rafters.testing.compare import described, misses, same_bits
from rafters.testing.drawing import Space
from rafters.testing.examine import LAST_BLOCK, Bounds
from rafters.testing.kernels import prepare
from rafters.testing.layouts import FAR, LAYOUTS, place, reserved
from rafters.testing.reference import exact
from rafters.testing.report import FAILED, PASSED, SKIPPED, Outcome, merged
from rafters.testing.torture import RUNS, Torture, unannounced

KERNEL, BACKWARD = "kernel", "backward kernel"
OFFSETS, BATCH = "64-bit offsets", "rows in any batch"
# Named situations that always run; more are drawn.
LISTED = ("1025", "17x129", "pitched rows", "every other column", "transposed beside contiguous", "vector of the last dimension",
          "one value a row", "broadcast both ways", "rows longer than a block", "0-d first", "no dimension joins",
          "channels last beside contiguous", "stride 0 rows beside dense", "starts differ")  # fmt: skip
# Broken by the kernel of a gradient, a promise has the name that it has for gradients.
AS_GRADIENTS = {
    "values": "gradient",
    "broadcasting": "gradient of broadcast arguments",
    "argument strides": "stride-0 and strided gradients",
}
GRADIENTS = ("one value a row", "stride 0 rows", "17x129", "vector of the last dimension", "broadcast both ways", "0-d first",
             "pitched rows", "no dimension joins")  # fmt: skip
# One element more than whole blocks of any size, one less, and less than a block.
ENDS = (1, 63, 511, 513, 1023, 1025)


def checked(
    op: Op,
    quick: bool,
    bounds: Bounds | None = None,
    announce: Callable[[Call], None] = unannounced,
    only: Sequence[str] = (),
) -> list[Outcome]:
    """All of it, in a process that interprets; `announce` is told of every call before it is made."""
    chosen = tuple(d for d in interpreter.DTYPES if d in dtypes_for(op))
    if not chosen:
        return [Outcome("values", KERNEL, SKIPPED, reason="the interpreter computes none of its dtypes as a GPU would")]
    given = bounds or Bounds()
    limits = Bounds(max(interpreter.NARROW, given.narrow or 0), max(interpreter.WIDE, given.wide or 0))

    def torture(space: Space) -> Torture:
        seconds = 0.7 if quick else 30.0
        return Torture(
            op, KERNEL, interpreter.on_interpreter, space, bounds=limits, seconds=seconds, announce=announce, only=asked
        )

    asked = tuple(only) and (*only, *(own for own, name in AS_GRADIENTS.items() if name in only))
    whole = space_of(op, chosen)
    plainly = Space(whole.dtypes[:1], ("contiguous",), ("counting",), False, ranks=(1, 1), label=LAST_BLOCK)
    apart = {LAST_BLOCK, OFFSETS, BATCH, *AS_GRADIENTS.values()}
    found: list[Outcome] = []
    if not only or set(only) - apart:
        found += torture(whole).outcomes(listed(op, chosen[0]), 12 if quick else 150)
    if not only or LAST_BLOCK in only:
        found += torture(plainly).outcomes([_ending(op, n, chosen[0]) for n in ENDS], 0 if quick else 20)
    if not only or OFFSETS in only:
        found += _offsets(op, chosen, torture)
    if not only or BATCH in only:
        found += _batch(op, chosen[0])
    if (not only or set(only) - apart | set(AS_GRADIENTS.values()) & set(only)) and (backward := derived(op)) is not None:
        floats = tuple(d for d in chosen if d.is_floating_point)
        # derivatives cancel near their zeros, sums do too: what is looked for is a wrong term
        wide = Bounds(2 * limits.limit(torch.float16), 16 * limits.limit(torch.float32), 1e-4)
        space = Space(floats, values=("ordinary",), varied=False)  # at the ends of the range derivatives cancel to nothing
        summing = replace(torture(space), op=backward, path=BACKWARD, bounds=wide)
        found += [
            replace(o, check=AS_GRADIENTS.get(o.check, o.check))
            for o in summing.outcomes(listed(backward, floats[0], GRADIENTS, "ordinary"), 6 if quick else 100)
        ]
    return merged([o for o in found if not only or o.check in only or (o.check == RUNS and o.status == FAILED)])


def derived(op: Op) -> Op | None:
    """The op that gives the gradients, whose kernels are an op's like any other; None where it has no such op."""
    try:
        return op.backward_op(*listed_call(op, [((2, 3), "contiguous")], torch.float32, "ordinary").make())
    except RaftersError:
        return None


def dtypes_for(op: Op) -> tuple[torch.dtype, ...]:
    """The dtypes to ask about; a hand-written kernel says of none that it refuses it, so these are the ordinary floats."""
    known = dtypes_of(op)
    if not isinstance(op.form, FromKernel):
        return known
    return tuple(d for d in known if d.is_floating_point and d.itemsize > 1)


def space_of(op: Op, dtypes: Sequence[torch.dtype]) -> Space:
    """All calls of an op in these dtypes; a hand-written kernel is called as it declares: equal shapes, contiguous."""
    if not isinstance(op.form, FromKernel):
        return Space(tuple(dtypes))
    layouts = ("contiguous", *(n for n in LAYOUTS if n.startswith("offset"))) if op.form.contiguous else tuple(LAYOUTS)
    return Space(tuple(dtypes), layouts, broadcast=False)


def listed(op: Op, dtype: torch.dtype, names: Sequence[str] = LISTED, values: str = "awkward") -> list[Call]:
    """The named situations as calls."""
    return [listed_call(op, CASES[name].operands, dtype, values) for name in names] if takes_any_shapes(op) else []


def _ending(op: Op, n: int, dtype: torch.dtype) -> Call:
    return Call(op, listed_call(op, [((2 * n,) if _halves(op) else (n,), "contiguous")], dtype, "counting").arguments, LAST_BLOCK)


def _halves(op: Op) -> bool:
    return any(v.part for v in op.spec.views.values())


def _offsets(op: Op, dtypes: Sequence[torch.dtype], torture: Callable[[Space], Torture]) -> list[Outcome]:
    """Operands whose rows lie 2^30 elements apart; and the last blocks of more than 2^31 elements."""
    space = Space(tuple(dtypes[:1]), (FAR,), ("counting",), False, sizes=(2, 3), ranks=(2, 3), label=OFFSETS)
    if isinstance(op.form, FromKernel):
        return [Outcome(OFFSETS, KERNEL, SKIPPED, reason="a hand-written kernel of contiguous tensors only")] if (
            op.form.contiguous) else torture(space).outcomes([], 2)  # fmt: skip
    found = torture(space).outcomes(_apart(op, dtypes[0]), 0 if takes_any_shapes(op) else 4)
    if not takes_any_shapes(op):
        return found
    start = time.perf_counter()
    faults = long_walk(op, min(dtypes, key=lambda d: d.itemsize))
    reason = "; ".join(faults)
    return [*found, Outcome(OFFSETS, KERNEL, FAILED if faults else PASSED, 1, time.perf_counter() - start, reason)]


def _apart(op: Op, dtype: torch.dtype) -> list[Call]:
    return [Call(op, listed_call(op, [((3, 40), FAR)], dtype, "counting").arguments, OFFSETS)] if takes_any_shapes(op) else []


def long_walk(op: Op, dtype: torch.dtype, cols: int = 256, tail: int = 2) -> list[str]:
    """A call on more than 2^31 elements of which only the last programs run, on memory that is only reserved."""
    rows = 2**31 // cols + 2 * tail
    full: list[object] = []
    ends: list[object] = []
    for seed, p in enumerate(op.spec.parameters):
        if p.kind != "tensor":
            full.append(numbers_for(p)[0])
            ends.append(full[-1])
            continue
        own = argument_dtype(op, p.name, dtype)
        end = Tensor((tail, cols), own, values="counting", seed=seed).make()
        whole = reserved(rows * cols, own).view(rows, cols)
        whole[-tail:].copy_(end)
        full.append(whole)
        ends.append(end)
    made = prepare(op, full)
    results = [reserved(rows * cols, r.dtype).as_strided(r.shape, r.strides) for r in made.resolved.results]
    execution = interpreter.Execution(op, made, interpreter.tensors_of(op, made, full, results))
    grid = made.layout.grid
    count = min(grid, -(-tail * cols * grid // (rows * cols)) + 1)
    execution.launch(made.stages[0], range(grid - count, grid))
    faults = []
    for i, (whole, want) in enumerate(zip(results, exact(op, ends), strict=True)):
        got = whole[-tail:]
        limit = torch.full(got.shape, interpreter.WIDE if got.dtype.itemsize > 2 else interpreter.NARROW, dtype=torch.float64)
        wrong = misses(got, want, limit)
        faults += [f"result {i} of {tuple(whole.shape)} {dtype}: its last {tail} rows: {f}" for f in described(wrong, got, want)]
    return faults


def _batch(op: Op, dtype: torch.dtype) -> list[Outcome]:
    """A row gives the same bits alone, in a batch, and in a view of a wider tensor."""
    if not op.spec.rowwise or not takes_any_shapes(op) or any(p.kind == INDEX for p in op.spec.parameters):
        return []
    start = time.perf_counter()
    faults = rows_differ(op, dtype, "cpu", lambda arguments: interpreted(op, arguments))
    return [Outcome(BATCH, KERNEL, FAILED if faults else PASSED, 1, time.perf_counter() - start, "; ".join(faults))]


def interpreted(op: Op, arguments: Sequence[object]) -> list[torch.Tensor]:
    """New results of a call, made by its kernel."""
    specs = op.form.new_results(dict(zip((p.name for p in op.spec.parameters), arguments, strict=True)))
    results = [torch.empty_strided(shape, strides, dtype=dtype) for shape, strides, dtype in specs]
    interpreter.run(op, arguments, results)
    return results


def rows_differ(
    op: Op, dtype: torch.dtype, device: str, run: Callable[[Sequence[object]], Sequence[torch.Tensor]], width: int = 300
) -> list[str]:
    """Where row 2 of 5 gives other bits alone, or in another layout."""
    call = listed_call(op, [((5, width), "contiguous"), ((width,), "contiguous")], dtype, "ordinary")
    whole = call.make(device)
    first = run(whole)
    faults = []
    for name in ("alone", "pitched", "aligned pitch"):
        arguments = list(whole)
        for i, (p, a) in enumerate(zip(op.spec.parameters, whole, strict=True)):
            if p.kind == "tensor" and isinstance(a, torch.Tensor) and a.dim() == 2:
                arguments[i] = a[2:3].clone() if name == "alone" else place(a, name)
        for i, (one, other) in enumerate(zip(first, run(arguments), strict=True)):
            row = one[2:3] if name == "alone" and one.dim() and one.shape[0] == 5 else one
            faults += (
                [] if same_bits(row, other) else [f"result {i}: other bits {'for a row alone' if name == 'alone' else name}"]
            )
    return faults
