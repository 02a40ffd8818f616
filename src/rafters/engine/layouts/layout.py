"""From the operands of a call to the form of its kernel, the values of the kernel's arguments and its grid."""

from collections.abc import Sequence
from typing import Any

from rafters.engine.layouts import geometry
from rafters.engine.layouts.form import COLUMN, FLAT, LINEAR, POINT, ROW, ROWS, TILE, Form, Slot, row_kind
from rafters.engine.layouts.geometry import Domain, Shape, Strides
from rafters.engine.layouts.operand import INT32_REACH, MAX_DIMENSIONS, Argument, divisor, slots, vector
from rafters.engine.layouts.operand import Config as Config
from rafters.engine.layouts.operand import Layout as Layout
from rafters.engine.layouts.operand import Operand as Operand
from rafters.engine.layouts.operand import alignment as alignment
from rafters.engine.layouts.summing import is_summed, summed
from rafters.engine.layouts.tiling import tiled
from rafters.errors import ArgumentError


def lay_out(
    op: str,
    inputs: Sequence[Operand | Slot],
    indices: Sequence[Operand],
    outputs: Sequence[Operand],
    shape: Shape,
    rowwise: bool = False,
    warp_size: int = 32,
    config: Config | None = None,
) -> Layout:
    """Chooses the form. `shape` is the domain; a `Slot` among the inputs is a number, a compile-time value or an absent tensor."""
    config = config or Config()
    memory = [o for o in (*inputs, *indices, *outputs) if isinstance(o, Operand)]
    expanded = [geometry.expand_strides(o.shape, o.strides, shape) for o in memory]
    written = len(memory) - len(outputs)
    leading = [*expanded[written:], *expanded[:written]]
    order = geometry.iteration_order(shape, leading)
    if rowwise:
        last = len(shape) - 1
        order = (last, *(d for d in order if d != last))
    domain = geometry.merge(shape, expanded, order, keep_last=rowwise)
    if not domain.shape:
        domain = Domain((1,), tuple((1,) if e.shape == shape or o >= written else (0,) for o, e in enumerate(memory)))
    if len(domain.shape) > MAX_DIMENSIONS:
        raise ArgumentError(
            f"{op}: the operands need {len(domain.shape)} separate dimensions after merging, at most {MAX_DIMENSIONS} are "
            "supported; make one of them contiguous"
        )
    sums = rowwise and any(o.total and row_kind(o.shape, shape) != TILE for o in outputs)  # of one row as of many
    if sums or any(is_summed(o, strides, domain.shape) for o, strides in zip(memory, domain.strides, strict=True)):
        return summed(op, shape, domain, memory, inputs, indices, outputs, rowwise, warp_size, config)
    if not rowwise and not indices and (linear := _linear(domain, memory, inputs, outputs, warp_size, config)):
        return linear
    return tiled(op, shape, domain, memory, inputs, indices, outputs, rowwise, warp_size, config)


def _linear(
    domain: Domain,
    memory: Sequence[Operand],
    inputs: Sequence[Operand | Slot],
    outputs: Sequence[Operand],
    warp_size: int,
    config: Config,
) -> Layout | None:
    """One walk over dense memory: `flat`, or dense `rows` whose vectors and row values are addressed by column and row."""
    kinds: dict[str, str] = {}
    if len(domain.shape) == 1:
        by_stride: dict[Strides, str] = {(1,): TILE, (0,): POINT}
        cols = 0
    elif len(domain.shape) == 2:
        cols = domain.shape[1]
        if cols >= INT32_REACH:  # the column is counted in 32 bits
            return None
        by_stride = {(cols, 1): TILE, (0, 0): POINT}
    else:
        return None
    for operand, strides in zip(memory, domain.strides, strict=True):
        kind = by_stride.get(strides)
        if kind is None and cols and operand not in outputs:
            kind = COLUMN if strides[0] == 0 else ROW if strides[1] == 0 else None
        if kind is None or (kind == POINT and operand in outputs):
            return None
        kinds[operand.name] = kind
    n = domain.numel
    block = config.block or vector(memory, kinds) * warp_size * config.warps
    widest = max([n - 1, *(geometry.reach(domain.shape, s) for s in domain.strides)])
    wide = widest >= INT32_REACH
    # A size the compiler may take as a multiple of 16 makes a mask provable; only a study asks for it.
    arguments = {"n": Argument(n, wide, divisor(n) if config.provable else 1)}
    align = {o.name: o.align for o in memory}
    constants: dict[str, Any] = {"BLOCK": block, "INDEX": "int64" if wide else "int32"}
    if cols:
        vectors = [o for o in memory if kinds[o.name] == COLUMN]
        arguments["cols"] = Argument(cols, False, divisor(cols) if vectors else 1)
        for operand, strides in zip(memory, domain.strides, strict=True):
            if kinds[operand.name] == COLUMN:
                arguments[f"{operand.name}_s1"] = Argument(strides[1], wide, constant=strides[1] == 1)
            elif kinds[operand.name] == ROW:
                arguments[f"{operand.name}_s0"] = Argument(strides[0], wide, constant=strides[0] == 1)
        constants["WRAP"] = block <= cols
    form = Form(ROWS if cols else FLAT, LINEAR, 0, slots(inputs, kinds), (), slots(outputs, kinds), config.split)
    return Layout(form, arguments, constants, -(-n // block), config.warps, align, wide, domain.shape)
