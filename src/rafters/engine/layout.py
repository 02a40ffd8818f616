"""From the operands of a call to the form of its kernel, the values of the kernel's arguments and its grid."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rafters.engine import geometry
from rafters.engine.form import (
    COLUMN,
    FLAT,
    LINEAR,
    POINT,
    ROW,
    ROWS,
    STRIDED,
    TILE,
    TILED,
    WHOLE_ROWS,
    Form,
    Slot,
    row_kind,
)
from rafters.engine.geometry import Domain, Shape, Strides
from rafters.errors import ArgumentError

MAX_DIMENSIONS = 8
MAX_ROW = 1 << 20  # Triton's largest tile
INT32_REACH = 2**31 - 2**16  # offsets of a last block may pass the end by less than the largest block


@dataclass(frozen=True)
class Operand:
    """One tensor of a call as the kernel will see it: after views, before broadcasting. Strides in elements, `align` in bytes.

    `index` names the operand that selects along `index_stride`, of which there are `index_size`.
    """

    name: str
    dtype: torch.dtype
    shape: Shape
    strides: Strides
    align: int = 16
    index: str | None = None
    index_stride: int = 0
    index_size: int = 0


@dataclass(frozen=True)
class Argument:
    """A run-time integer of the kernel: its value, whether it is 64 bits wide, and what is known to divide it."""

    value: int
    wide: bool = False
    divisor: int = 1
    constant: bool = False


@dataclass(frozen=True)
class Layout:
    """Everything a launch needs beside the pointers, the numbers and the dtypes."""

    form: Form
    arguments: dict[str, Argument]
    constants: dict[str, Any]
    grid: int
    warps: int
    align: dict[str, int]
    wide: bool
    domain: Shape = field(default=())


def alignment(address: int, itemsize: int) -> int:
    """The alignment class of an address: 16, 8, 4 bytes, or that of the element."""
    for bytes_ in (16, 8, 4):
        if address % bytes_ == 0:
            return max(bytes_, itemsize)
    return itemsize


def _divisor(value: int) -> int:
    return math.gcd(value, 16) or 16


def next_power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class Config:
    """Elements a program and its warps; None where the closed form decides. `split=False` masks every block (for studies)."""

    block: int | None = None
    warps: int = 4
    split: bool = True
    provable: bool = False


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
    if not rowwise and not indices and (linear := _linear(domain, memory, inputs, outputs, warp_size, config)):
        return linear
    return _tiled(op, shape, domain, memory, inputs, indices, outputs, rowwise, warp_size, config)


def _slots(entries: Sequence[Operand | Slot], kinds: dict[str, str]) -> tuple[Slot, ...]:
    return tuple(e if isinstance(e, Slot) else Slot(e.name, kinds[e.name], e.index) for e in entries)


def _vector(memory: Sequence[Operand], kinds: dict[str, str]) -> int:
    """Elements in 16 bytes of the narrowest operand that varies along the row."""
    return 16 // min((o.dtype.itemsize for o in memory if kinds[o.name] in (TILE, COLUMN)), default=4)


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
    block = config.block or _vector(memory, kinds) * warp_size * config.warps
    widest = max([n - 1, *(geometry.reach(domain.shape, s) for s in domain.strides)])
    wide = widest >= INT32_REACH
    # A size the compiler may take as a multiple of 16 makes a mask provable; only a study asks for it.
    arguments = {"n": Argument(n, wide, _divisor(n) if config.provable else 1)}
    align = {o.name: o.align for o in memory}
    constants: dict[str, Any] = {"BLOCK": block, "INDEX": "int64" if wide else "int32"}
    if cols:
        vectors = [o for o in memory if kinds[o.name] == COLUMN]
        arguments["cols"] = Argument(cols, False, _divisor(cols) if vectors else 1)
        for operand, strides in zip(memory, domain.strides, strict=True):
            if kinds[operand.name] == COLUMN:
                arguments[f"{operand.name}_s1"] = Argument(strides[1], wide, constant=strides[1] == 1)
            elif kinds[operand.name] == ROW:
                arguments[f"{operand.name}_s0"] = Argument(strides[0], wide, constant=strides[0] == 1)
        constants["WRAP"] = block <= cols
    form = Form(ROWS if cols else FLAT, LINEAR, 0, _slots(inputs, kinds), (), _slots(outputs, kinds), config.split)
    return Layout(form, arguments, constants, -(-n // block), config.warps, align, wide, domain.shape)


def _tiled(
    op: str,
    whole: Shape,
    domain: Domain,
    memory: Sequence[Operand],
    inputs: Sequence[Operand | Slot],
    indices: Sequence[Operand],
    outputs: Sequence[Operand],
    rowwise: bool,
    warp_size: int,
    config: Config,
) -> Layout:
    """Rows and columns in tiles; the dimensions further out by the program's index."""
    shape, strides = domain.shape, dict(zip((o.name for o in memory), domain.strides, strict=True))
    if len(shape) == 1:
        # one row: of a row-wise op it has the stride that a second one would have, so that the kernel is the same
        next_row = {TILE: shape[0], ROW: 1, COLUMN: 0, POINT: 0}
        shape = (1, *shape)
        strides = {o.name: (next_row[row_kind(o.shape, whole)] if rowwise else 0, *strides[o.name]) for o in memory}
    col = len(shape) - 1
    row = col - 1
    if not rowwise:
        row = _crossing_dimension(shape, [strides[o.name] for o in memory if o.index is None])
    outer = [d for d in range(len(shape)) if d not in (row, col)]
    kinds = {
        o.name: row_kind(o.shape, whole) if rowwise else _kind(strides[o.name][row], strides[o.name][col], o in outputs)
        for o in memory
    }
    crossing = any(strides[o.name][row] == 1 and strides[o.name][col] > 1 for o in memory)
    if rowwise:
        cols = next_power_of_two(shape[col])
        if cols > MAX_ROW:
            raise ArgumentError(f"{op}: rows of {shape[col]} elements; a row has to fit one program, at most {MAX_ROW} elements")
        # from the width and the dtypes alone: a row is summed in the same order in any number of rows
        rows = max(1, _vector(memory, kinds) * warp_size * config.warps // cols)
        warps = max(1, min(8, cols * rows // 512)) if config.block is None else config.warps
    else:
        rows, cols, warps = _tile(shape[row], shape[col], _vector(memory, kinds), crossing, warp_size, config)
    long = max(shape) >= INT32_REACH
    arguments = {"rows": Argument(shape[row], long), "cols": Argument(shape[col], long, _divisor(shape[col]))}
    arguments |= {f"n{k}": Argument(shape[d], long) for k, d in enumerate(outer)}
    reaches = [geometry.reach(shape, strides[o.name]) + max(o.index_size - 1, 0) * o.index_stride for o in memory]
    wide = max(reaches) >= INT32_REACH
    align: dict[str, int] = {}
    for o in memory:
        s, item = strides[o.name], o.dtype.itemsize
        far = [s[d] for d in outer] + ([o.index_stride] if o.index else [])
        near = s[row] if s[col] in (0, 1) else s[col] if s[row] in (0, 1) else 1
        align[o.name] = alignment(math.gcd(o.align, near * item, *(f * item for f in far)), item)
        divisor = max(align[o.name] // item, 1)
        for k, d in enumerate(outer):
            arguments[f"{o.name}_o{k}"] = Argument(s[d], wide, divisor, constant=s[d] == 0)
        if kinds[o.name] in (TILE, ROW):
            arguments[f"{o.name}_s0"] = Argument(s[row], wide, divisor, constant=s[row] in (0, 1))
        if kinds[o.name] in (TILE, COLUMN):
            arguments[f"{o.name}_s1"] = Argument(s[col], wide, 1 if s[col] < 2 else divisor, constant=s[col] in (0, 1))
        if o.index:
            arguments[f"{o.name}_sx"] = Argument(o.index_stride, wide, divisor)
            arguments[f"{o.name}_nx"] = Argument(o.index_size, o.index_size >= 2**31)
    blocks = -(-shape[row] // rows) * (1 if rowwise else -(-shape[col] // cols))
    grid = blocks * math.prod(shape[d] for d in outer)
    layout = ROWS if not outer and not crossing and all(strides[o.name][col] in (0, 1) for o in memory) else STRIDED
    form = Form(
        layout,
        WHOLE_ROWS if rowwise else TILED,
        len(outer),
        _slots(inputs, kinds),
        _slots(indices, kinds),
        _slots(outputs, kinds),
        config.split,
    )
    ordered = tuple(shape[d] for d in (*outer, row, col))
    constants: dict[str, Any] = {"ROWS": rows, "COLS": cols, "INDEX": "int64" if long else "int32"}
    return Layout(form, arguments, constants, grid, warps, align, wide, ordered)


def _kind(row: int, col: int, output: bool) -> str:
    if output:
        return TILE if col else ROW
    return (TILE if row else COLUMN) if col else (ROW if row else POINT)


def _crossing_dimension(shape: Shape, strides: Sequence[Strides]) -> int:
    """The dimension to tile beside the last: one along which an operand that does not run along the last is dense."""
    col = len(shape) - 1
    for s in strides:
        if s[col] > 1 and 1 in s[:col]:
            return s.index(1)
    return col - 1


def _tile(rows: int, cols: int, vector: int, crossing: bool, warp_size: int, config: Config) -> tuple[int, int, int]:
    """(ROWS, COLS, warps) of a tile."""
    block = config.block or vector * warp_size * config.warps
    if crossing:
        # Both directions want whole 128-byte lines: a square tile, turned in shared memory.
        side = 8 * vector
        return min(side, next_power_of_two(rows)), min(side, next_power_of_two(cols)), config.warps
    # No wider than a row, so that some block of it is full, and little of the last one wasted.
    width = min(block, next_power_of_two(cols) if cols < 128 else next_power_of_two(cols + 1) // 2)
    while width > 128 and -(-cols // width) * width > 1.1 * cols:
        width //= 2
    return max(1, min(block // width, next_power_of_two(rows))), width, config.warps
