"""Run as a program under TRITON_INTERPRET=1: generated kernels, executed by Triton's interpreter on the CPU, against the CPU path.

It is the only execution of a kernel's text where there is no GPU. Prints one line a fault and ends with "n kernels".
"""

import itertools
import sys

import sample_ops as ops
import torch
import triton.language as tl

from rafters.engine import module
from rafters.engine.layouts.layout import Config
from rafters.engine.variant import TypeName
from rafters.testing import Guarded, ordinary, place
from rafters.testing.kernels import prepare


def execute(op, arguments, config):
    """(layout, guarded results) of the call's kernel, run by the interpreter; arguments that it overwrites are overwritten."""
    made = prepare(op, arguments, config=config)
    named = dict(zip((p.name for p in op.spec.parameters), arguments, strict=True))
    guards = [Guarded(r.shape, r.strides, r.dtype) for r in made.resolved.results if r.into is None]
    fresh = iter(guards)
    owners = [named[result.into] if result.into else next(fresh).tensor for result in made.resolved.results]
    written = {p.argument: owners[i] for p, (i, _, _) in zip(made.outputs, made.resolved.outputs, strict=True)}
    tensors = {**named, **written}
    pieces = {module.slot_name(p.name): p for p in (*made.resolved.inputs, *made.resolved.indices, *made.outputs)}
    buffers = {}
    for stage in made.stages:
        launch(stage, pieces, tensors, named, buffers)
    return made.layout, guards


def launch(stage, pieces, tensors, named, buffers):
    """One kernel of a call; buffers between kernels are made, and poisoned, where they first occur."""
    constants = dict(stage.recipe.constants)
    values = []
    for name, kind in stage.recipe.signature:
        slot = name.removesuffix("_ptr")
        if kind.startswith("*") and slot in stage.buffers:
            buffer = stage.buffers[slot]
            values.append(buffers.setdefault(buffer.name, torch.full(buffer.shape, float("nan"), dtype=buffer.dtype)))
        elif kind.startswith("*"):
            piece = pieces[slot]
            tensor = tensors[piece.argument]
            values.append(tensor.as_strided((1,), (1,), tensor.storage_offset() + piece.offset))
        elif kind == "constexpr":
            value = constants[name]
            values.append(getattr(tl, value) if isinstance(value, TypeName) else value)
        elif name in stage.layout.arguments:
            values.append(stage.layout.arguments[name].value)
        else:
            number = next(v for n, v in named.items() if module.slot_name(n) == name)
            values.append(number.item() if isinstance(number, torch.Tensor) else number)
    kernel = module.jit_function(stage.recipe.text, stage.recipe.kernel, stage.recipe.body)
    kernel[(stage.layout.grid,)](*values)


def compare(label, op, arguments, config=None):
    """Faults of one kernel against the op's CPU path."""
    overwritten = [p.name for p in op.spec.parameters if p.mutated]
    copies = [a.clone() if isinstance(a, torch.Tensor) and overwritten else a for a in arguments]
    wanted = op(*copies)
    wanted = list(wanted) if isinstance(wanted, tuple) else [] if wanted is None else [wanted]
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
    layout, guards = execute(op, arguments, config)
    label = f"{op.name} {label} {layout.form.layout}/{layout.form.walk} {layout.constants}"
    faults = []
    for guard, want in zip(guards, wanted, strict=True):
        if written := guard.overrun():
            faults.append(f"{label}: wrote outside at {written}")
        summed = any(output.sum_to for output in op.spec.outputs)  # in another order than the CPU's
        faults += [f"{label}: {fault}" for fault in apart(guard.tensor, want, 2e-4 if summed else 1e-6)]
    for p, mine, theirs, old in zip(op.spec.parameters, arguments, copies, before, strict=True):
        if p.mutated:
            faults += [f"{label}: {p.name}: {fault}" for fault in apart(mine, theirs)]
        elif isinstance(mine, torch.Tensor) and not torch.equal(mine, old):
            faults.append(f"{label}: input {p.name} was changed")
    return layout, faults


def apart(got, want, atol=1e-6):
    try:
        torch.testing.assert_close(got.float(), want.float(), rtol=1e-5, atol=atol, equal_nan=True)
    except AssertionError as problem:
        return [str(problem).replace("\n", " ")]
    return []


def made(shape, layout="contiguous", seed=0, dtype=torch.float32):
    return place(ordinary(shape, dtype, seed), layout)


def situations():
    """(label, op, arguments, config): sizes are no multiples of the block, and blocks small enough that there are several."""
    small = Config(block=64)
    for n in (1, 63, 64, 65, 130, 1000):
        yield f"n={n}", ops.muladd, (made((n,)), made((n,), seed=1), 0.5), small
    yield "default block", ops.muladd, (made((1500,)), made((1500,), "offset 3", 1), 0.5), None
    yield "masked everywhere", ops.muladd, (made((130,)), made((130,), seed=1), 0.5), Config(block=64, split=False)
    yield "dense, transposed", ops.muladd, (made((7, 19), "transposed"), made((7, 19), "transposed", 1), 0.5), small
    yield "a point", ops.muladd, (made((7, 19)), made((1, 1)), 0.5), small
    yield "a 0-d tensor of the CPU", ops.muladd, (made((7, 19)), made(()), 0.5), small
    yield "a number for a tensor", ops.muladd, (made((7, 19)), 3.0, 0.5), small
    yield "two results", ops.both, (made((100,)), made((100,), seed=1)), small
    yield "integers", ops.muladd, (made((100,), dtype=torch.int32), made((100,), seed=1, dtype=torch.int32), 2.0), small
    for rows, cols in itertools.product((1, 23), (1, 3, 64, 65, 200)):
        x = made((rows, cols))
        yield f"vector {rows}x{cols}", ops.muladd, (x, made((cols,), seed=1), 0.5), small
        yield f"row value {rows}x{cols}", ops.muladd, (x, made((rows, 1), seed=1), 0.5), small
        yield f"both {rows}x{cols}", ops.three, (x, made((cols,), seed=1), made((rows, 1), seed=2)), small
        yield (
            f"both {rows}x{cols}, masked",
            ops.three,
            (x, made((cols,), seed=1), made((rows, 1), seed=2)),
            Config(block=64, split=False),
        )
        yield (
            f"pitched {rows}x{cols}",
            ops.three,
            (made((rows, cols), "pitched"), made((cols,), seed=1), made((rows, 1), seed=2)),
            small,
        )
    yield "stepped vector", ops.three, (made((9, 70)), made((70,), "stepped", 1), made((9, 1), "pitched", 2)), small
    for one, two in itertools.product(("pitched", "stepped", "transposed", "expanded", "rotated"), repeat=2):
        for shape in ((37, 21), (2, 3, 4, 5)):
            yield f"{one}, {two} {shape}", ops.muladd, (made(shape, one), made(shape, two, 1), 0.5), small
    yield "broadcast both ways", ops.three, (made((4, 1, 6)), made((5, 1), seed=1), made((4, 5, 1), "transposed", 2)), small
    yield (
        "five dimensions",
        ops.three,
        (made((2, 3, 2, 5, 3), "pitched"), made((2, 3, 2, 5, 3), "rotated", 1), made((3, 1, 5, 1))),
        small,
    )
    yield (
        "eight dimensions",
        ops.muladd,
        (made((2, 2, 2, 2, 2, 2, 2, 3), "pitched"), made((1, 2, 1, 2, 1, 2, 1, 3), seed=1), 0.5),
        small,
    )
    for shape in ((3, 8), (5, 2), (7, 70), (2, 3, 10)):
        for layout in ("contiguous", "pitched", "stepped"):
            yield f"halves {shape} {layout}", ops.gated, (made(shape, layout),), small
            yield f"even and odd {shape} {layout}", ops.interleaved, (made(shape, layout),), small
            yield f"halves out {shape} {layout}", ops.halves_out, (made(shape, layout), made(shape, seed=1)), small
    for index_dtype in (torch.int32, torch.int64):
        positions = torch.tensor([2, 0, 5, 3, 2], dtype=index_dtype)
        outside = torch.tensor([2, -1, 6, 3, 100], dtype=index_dtype)
        for index in (positions, outside, positions.repeat_interleave(2)[::2]):
            yield f"gather {index_dtype} {index.tolist()}", ops.gathered, (made((5, 9)), made((6, 9), seed=1), index), small
            yield (
                f"rope {index_dtype} {index.tolist()}",
                ops.rope_,
                (made((5, 4, 16), "pitched"), made((6, 16), seed=1), index),
                small,
            )
            yield (
                f"scatter {index_dtype} {index.tolist()}",
                ops.scatter_,
                (made((5, 9)), made((6, 9), seed=1), unique(index)),
                small,
            )
    for rows, cols in itertools.product((1, 19), (1, 7, 64, 65, 300)):
        x = made((rows, cols))
        yield f"norm {rows}x{cols}", ops.norm, (x, made((cols,), seed=1), 1e-6), None
        yield f"norm {rows}x{cols} pitched", ops.norm, (made((rows, cols), "pitched"), made((cols,), "stepped", 1), 1e-6), None
        yield f"shares {rows}x{cols}", ops.shares, (x,), None
    yield "norm, weights of the rows", ops.norm, (made((4, 1, 6)), made((5, 1), seed=1), 1e-6), None
    yield "norm, a row of weights in each row", ops.norm, (made((6,)), made((3, 6), seed=1), 1e-6), None
    yield "norm of columns", ops.norm, (made((9, 33), "transposed"), made((33,), seed=1), 1e-6), None
    yield from sums(small)
    yield from sums_of_rows(small)
    for shape in ((2, 3, 33), (3, 2, 70)):
        yield f"norm {shape}", ops.norm, (made(shape, "rotated"), made(shape[-1:], seed=1), 1e-6), None


def sums(small):
    """Results summed to the shape of an argument: every pattern of missing dimensions, one and several programs a sum."""
    for shape, other in (
        ((23, 65), (65,)),
        ((2100, 65), (65,)),
        ((23, 65), (23, 1)),
        ((23, 200), (1, 1)),
        ((1000,), ()),
        ((70000,), ()),
        ((4, 5, 70), (70,)),
        ((4, 5, 70), (4, 1, 70)),
        ((4, 5, 70), (5, 1)),
        ((4, 5, 70), (4, 1, 1)),
        ((4, 5, 70), (1, 5, 1)),
        ((64, 3), (3,)),
        ((1, 70), (70,)),
        ((3, 1), (3, 1)),
    ):
        for layout in ("contiguous", "transposed", "pitched") if len(shape) == 2 else ("contiguous", "rotated"):
            x = made(shape, layout)
            yield f"sum {shape} to {other} {layout}", ops.sums, (x, made(shape, seed=1), made(other, seed=2)), None
        if len(x) < 100:
            yield f"sum {shape} to {other} small", ops.sums, (made(shape), made(shape, seed=1), made(other, seed=2)), small
    yield "sums in two directions", ops.sums_two, (made((7, 9, 40)), made((9, 40), seed=1), made((7, 1, 40), seed=2)), small
    yield "sums in all directions", ops.sums_two, (made((7, 9, 40)), made((9, 1), seed=1), made((7, 1, 1), seed=2)), None
    yield "a gradient that is one number", ops.sums, (made((23, 65)), made((1, 1), seed=1).expand(23, 65), made((65,))), None


def sums_of_rows(small):
    """The same beside reductions along the row: a program holds whole rows; one, and several of them a sum."""
    for shape, w, s in (
        ((1, 33), (33,), (1, 33)),
        ((9, 33), (9, 1), ()),
        ((150, 7), (7,), (150, 1)),
        ((23, 64), (64,), (1,)),
        ((150, 65), (65,), ()),
        ((1, 70), (70,), (1, 1)),
        ((4, 45, 33), (33,), (4, 1, 1)),
        ((4, 5, 33), (5, 1), (4, 1, 33)),
    ):
        for layout in ("contiguous", "transposed", "pitched") if len(shape) == 2 else ("contiguous", "rotated"):
            arguments = made(shape, layout), made(shape, seed=1), made(w, seed=2), made(s, seed=3)
            for config in (None, small):
                yield f"row sums {shape} to {w} and {s} {layout}", ops.row_sums, arguments, config
    expanded = made((1, 1)).expand(23, 65), made((23, 65), seed=1), made((65,), seed=2), made((), seed=3)
    yield "row sums, a gradient that is one number", ops.row_sums, expanded, small


def unique(index):
    """Each row at most once, as a scatter needs it; what lies outside stays."""
    return torch.where(torch.arange(len(index)) == 4, index.new_tensor(1), index)


def main(part, parts):
    """Every `parts`-th situation, from `part` on."""
    count, seen, faulty = 0, set(), 0
    for label, op, arguments, config in itertools.islice(situations(), part, None, parts):
        try:
            layout, faults = compare(label, op, arguments, config)
            seen.add((layout.form.layout, layout.form.walk, layout.form.outer > 0, layout.constants.get("WRAP")))
        except Exception as problem:  # a kernel that does not run is a fault like another
            faults = [f"{op.name} {label}: {type(problem).__name__}: {problem}".replace("\n", " ")[:600]]
        count += 1
        faulty += bool(faults)
        for fault in faults:
            print(fault)
    print("forms:", sorted("/".join(map(str, form)) for form in seen))
    print(f"{count} kernels, {faulty} wrong")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
