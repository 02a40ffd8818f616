"""Which calls stand for all calls of some dtypes and layouts: tensors without memory, to compile kernels for."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rafters.engine import target
from rafters.engine.plan import Elsewhere
from rafters.engine.spec import INDEX, TENSOR, Parameter, Spec
from rafters.errors import ArgumentError, argument_error

# The kinds of tensors that a layout mixes. All but the last of these say how a tensor of [rows, width] is laid out or broadcast.
MIXES = {
    "flat": ("dense",),
    "rows": ("dense", "vector", "per_row", "scalar"),
    "numbers": ("dense", "number"),
    "pitched": ("pitched",),
    "strided": ("dense", "transposed"),
}
KINDS = ("dense", "vector", "per_row", "scalar", "number", "pitched", "transposed")
NEED_WIDTHS = {"pitched", "strided", "transposed"}
# One row is a layout of its own, few rows get smaller tiles, small calls start in the shadow of the kernel before them.
MOST = (2, 2**20)
ROW_COUNTS = (1, *(2**k for k in range(1, 11)), MOST[1])
# Of a transposed tensor the number of rows is a pitch, and what divides it matters; so does the tile of few of them.
PITCHES = tuple(sorted({2**k + odd for k in range(11) for odd in (0, 1, 2, 4, 8) if odd < 2**k} | {MOST[1]}))
# Every class of width: what divides it, and whether a block is shorter than a row.
WIDTHS = tuple(base + odd for base in (64, 8192) for odd in (0, 8, 4, 2, 1))


@dataclass(frozen=True)
class Example:
    arguments: tuple[Any, ...]
    elsewhere: Elsewhere


def examples(
    spec: Spec,
    dtypes: Sequence[Any],
    layouts: Sequence[str | Sequence[str]],
    widths: Sequence[int],
    align: Sequence[int],
    values: Mapping[str, Any],
) -> Iterator[Example]:
    """Calls that need, between them, every kernel of these dtypes and layouts."""
    device = target.current_device()
    if device is None:
        return
    tensors = [p for p in spec.parameters if p.kind == TENSOR]
    _check(spec, layouts, widths, values)
    fixed = {p.name: _value(spec, p, values) for p in spec.parameters if p.kind != TENSOR}
    for layout, dtype in itertools.product(layouts, dtypes):
        each = tuple(dtype) if isinstance(dtype, tuple | list) else (dtype,) * len(tensors)
        if len(each) != len(tensors):
            raise argument_error(
                spec.name, "dtypes", f"{len(each)} dtypes", f"one dtype, or one for each of {len(tensors)} tensors"
            )
        for kinds, width in itertools.product(
            _mixes(spec, layout, tensors), widths or (WIDTHS if layout != "flat" else (1024, 1023))
        ):
            classes = [sorted({max(a, t.itemsize) for a in align}) if k != "number" else [16]
                       for k, t in zip(kinds, each, strict=True)]  # fmt: skip
            counts = PITCHES if "transposed" in kinds else ROW_COUNTS
            for addresses, rows in itertools.product(itertools.product(*classes), counts):
                made = {p.name: _tensor(spec, p, k, d, rows, width) for p, k, d in zip(tensors, kinds, each, strict=True)}
                named = {p.name: a for p, a in zip(tensors, addresses, strict=True)}
                arguments = tuple(made[p.name] if p.name in made else fixed[p.name] for p in spec.parameters)
                yield Example(arguments, Elsewhere(device, named))


def _check(spec: Spec, layouts: Sequence[str | Sequence[str]], widths: Sequence[int], values: Mapping[str, Any]) -> None:
    op = spec.name
    if any(p.kind == INDEX for p in spec.parameters):
        raise ArgumentError(f"{op}: it selects rows, whose numbers no layout names; give calls instead: {op}.warm((x, ...), ...)")
    names = {p.name for p in spec.parameters if p.kind != TENSOR}
    for unknown in values.keys() - names:
        raise argument_error(
            op, unknown, "a value", f"a scalar or compile-time argument of the op ({', '.join(sorted(names)) or 'none'})"
        )
    for layout in [layouts] if isinstance(layouts, str) else layouts:
        words = (layout,) if isinstance(layout, str) else tuple(layout)
        known = MIXES if isinstance(layout, str) else KINDS
        for word in words:
            if word not in known:
                raise argument_error(op, "layouts", repr(word), f"one of {', '.join(known)}")
        if not widths and (spec.rowwise or NEED_WIDTHS & set(words)):
            raise argument_error(op, "widths", "none", "the lengths of the rows, for which such kernels are made")


def _value(spec: Spec, p: Parameter, values: Mapping[str, Any]) -> Any:
    if p.name in values:
        return values[p.name]
    if p.default is not ...:
        return p.default
    if p.type in (float, int, bool):
        return p.type(1)
    raise argument_error(spec.name, p.name, "no value", f"the compile-time value to warm: {spec.name}.warm(..., {p.name}=...)")


def _mixes(spec: Spec, layout: str | Sequence[str], tensors: Sequence[Parameter]) -> Iterator[tuple[str, ...]]:
    """Kinds for the tensors: as given, or every mix that has what the layout is named after."""
    if not isinstance(layout, str):
        if len(layout) != len(tensors):
            raise argument_error(spec.name, "layouts", f"{len(layout)} words", f"one for each of {len(tensors)} tensors")
        yield tuple(layout)
        return
    kinds = MIXES[layout]
    choices = [(*(k for k in kinds if k == kinds[0] or not p.mutated), *(("absent",) if p.optional else ())) for p in tensors]
    for mix in itertools.product(*choices):
        present = {k for k in mix if k != "absent"}
        if present and present != {"number"} and (len(kinds) == 1 or (present & {"dense", "transposed"} and present - {"dense"})):
            yield mix


def _tensor(spec: Spec, p: Parameter, kind: str, dtype: torch.dtype, rows: int, width: int) -> Any:
    if kind in ("absent", "number"):
        return None if kind == "absent" else 1.0 if dtype.is_floating_point else 1
    halves = any(v.source == p.name and v.part for v in spec.views.values())
    cols = 2 * width if halves else width
    pitch = cols + 64 // dtype.itemsize - cols % (16 // dtype.itemsize)
    shape, strides = {
        "dense": ((rows, cols), (cols, 1)),
        "vector": ((cols,), (1,)),
        "per_row": ((rows, 1), (1, 1)),
        "scalar": ((), ()),
        "pitched": ((rows, cols), (pitch, 1)),
        "transposed": ((rows, cols), (1, rows)),
    }[kind]
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
