"""Rows and columns in tiles: the layouts whose operands are not all dense in one order."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rafters.engine.layouts import geometry
from rafters.engine.layouts.form import COLUMN, POINT, ROW, ROWS, STRIDED, TILE, TILED, WHOLE_ROWS, Form, Slot, row_kind
from rafters.engine.layouts.geometry import Domain, Shape, Strides
from rafters.engine.layouts.operand import (
    INT32_REACH,
    MAX_ROW,
    Argument,
    Config,
    Layout,
    Operand,
    alignment,
    divisor,
    next_power_of_two,
    slots,
    vector,
)
from rafters.errors import ArgumentError


@dataclass(frozen=True)
class Axes:
    """Which dimensions of a domain are the rows and the columns of its tiles; the others are `outer`."""

    row: int
    col: int
    outer: tuple[int, ...]

    @classmethod
    def of(cls, rank: int, row: int) -> "Axes":
        return cls(row, rank - 1, tuple(d for d in range(rank) if d not in (row, rank - 1)))


def tiled(
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
    shape, strides = with_rows(whole, domain, memory, rowwise)
    row = len(shape) - 2
    if not rowwise:
        row = crossing_dimension(shape, [strides[o.name] for o in memory if o.index is None])
    axes = Axes.of(len(shape), row)
    col = axes.col
    kinds = {
        o.name: row_kind(o.shape, whole) if rowwise else kind_of(strides[o.name][row], strides[o.name][col], o in outputs)
        for o in memory
    }
    crossing = crosses(strides.values(), axes)
    if rowwise:
        rows, cols, warps = row_tile(op, shape[col], vector(memory, kinds), warp_size, config)
    else:
        # where the rows are outermost, few of them get the tile of many: one kernel for any number of rows
        most = shape[row] if axes.outer else MAX_ROW
        rows, cols, warps = _tile(most, shape[col], vector(memory, kinds), crossing, warp_size, config)
    arguments, align, wide = tile_arguments(shape, strides, memory, kinds, axes)
    blocks = -(-shape[row] // rows) * (1 if rowwise else -(-shape[col] // cols))
    grid = blocks * math.prod(shape[d] for d in axes.outer)
    layout = ROWS if not axes.outer and not crossing and all(strides[o.name][col] in (0, 1) for o in memory) else STRIDED
    form = Form(
        layout,
        WHOLE_ROWS if rowwise else TILED,
        len(axes.outer),
        slots(inputs, kinds),
        slots(indices, kinds),
        slots(outputs, kinds),
        config.split,
    )
    ordered = tuple(shape[d] for d in (*axes.outer, row, col))
    constants: dict[str, Any] = {"ROWS": rows, "COLS": cols, "INDEX": index_type(shape)}
    return Layout(form, arguments, constants, grid, warps, align, wide, ordered)


def with_rows(whole: Shape, domain: Domain, memory: Sequence[Operand], rowwise: bool) -> tuple[Shape, dict[str, Strides]]:
    """Shape and strides of a domain that has rows. One row of a row-wise op has the strides that a second one would have, so that the
    kernel is that of many."""
    strides = dict(zip((o.name for o in memory), domain.strides, strict=True))
    if len(domain.shape) > 1:
        return domain.shape, strides
    next_row = {TILE: domain.shape[0], ROW: 1, COLUMN: 0, POINT: 0}
    of_row = {o.name: next_row[row_kind(o.shape, whole)] if rowwise else 0 for o in memory}
    return (1, *domain.shape), {name: (of_row[name], *s) for name, s in strides.items()}


def row_tile(op: str, length: int, per_thread: int, warp_size: int, config: Config) -> tuple[int, int, int]:
    """(ROWS, COLS, warps) of whole rows, from their length and the dtypes alone: a row is summed in the same order in any number of
    rows."""
    cols = next_power_of_two(length)
    if cols > MAX_ROW:
        raise ArgumentError(f"{op}: rows of {length} elements; a row has to fit one program, at most {MAX_ROW} elements")
    rows = max(1, per_thread * warp_size * config.warps // cols)
    return rows, cols, max(1, min(8, cols * rows // 512)) if config.block is None else config.warps


def index_type(shape: Shape) -> str:
    """The type in which rows and columns are counted."""
    return "int64" if max(shape) >= INT32_REACH else "int32"


def tile_arguments(
    shape: Shape, strides: dict[str, Strides], memory: Sequence[Operand], kinds: dict[str, str], axes: Axes
) -> tuple[dict[str, Argument], dict[str, int], bool]:
    """Sizes and strides as the kernel takes them, the alignment of each operand's rows, and whether offsets need 64 bits."""
    row, col, outer = axes.row, axes.col, axes.outer
    long = index_type(shape) == "int64"
    arguments = {"rows": Argument(shape[row], long), "cols": Argument(shape[col], long, divisor(shape[col]))}
    arguments |= {f"n{k}": Argument(shape[d], long) for k, d in enumerate(outer)}
    reaches = [geometry.reach(shape, strides[o.name]) + max(o.index_size - 1, 0) * o.index_stride for o in memory]
    wide = max(reaches) >= INT32_REACH
    align: dict[str, int] = {}
    for o in memory:
        s, item = strides[o.name], o.dtype.itemsize
        far = [s[d] for d in outer] + ([o.index_stride] if o.index else [])
        near = s[row] if s[col] in (0, 1) else s[col] if s[row] in (0, 1) else 1
        align[o.name] = alignment(math.gcd(o.align, near * item, *(f * item for f in far)), item)
        known = max(align[o.name] // item, 1)
        for k, d in enumerate(outer):
            arguments[f"{o.name}_o{k}"] = Argument(s[d], wide, known, constant=s[d] == 0)
        if kinds[o.name] in (TILE, ROW) or o.total:
            arguments[f"{o.name}_s0"] = Argument(s[row], wide, known, constant=s[row] in (0, 1))
        if kinds[o.name] in (TILE, COLUMN) or o.total:
            arguments[f"{o.name}_s1"] = Argument(s[col], wide, 1 if s[col] < 2 else known, constant=s[col] in (0, 1))
        if o.index:
            arguments[f"{o.name}_sx"] = Argument(o.index_stride, wide, known)
            arguments[f"{o.name}_nx"] = Argument(o.index_size, o.index_size >= 2**31)
    return arguments, align, wide


def crosses(strides: Iterable[Strides], axes: Axes) -> bool:
    """Is an operand dense along the rows of the tiles, where others are along the columns?"""
    return any(s[axes.row] == 1 and s[axes.col] > 1 for s in strides)


def kind_of(row: int, col: int, output: bool) -> str:
    if output:
        return TILE if col else ROW
    return (TILE if row else COLUMN) if col else (ROW if row else POINT)


def crossing_dimension(shape: Shape, strides: Sequence[Strides]) -> int:
    """The dimension to tile beside the last: one along which an operand that does not run along the last is dense."""
    col = len(shape) - 1
    for s in strides:
        if s[col] > 1 and 1 in s[:col]:
            return s.index(1)
    return col - 1


def _tile(rows: int, cols: int, per_thread: int, crossing: bool, warp_size: int, config: Config) -> tuple[int, int, int]:
    """(ROWS, COLS, warps) of a tile."""
    block = config.block or per_thread * warp_size * config.warps
    if crossing:
        # Both directions want whole 128-byte lines: a square tile, turned in shared memory.
        side = 8 * per_thread
        return min(side, next_power_of_two(rows)), min(side, next_power_of_two(cols)), config.warps
    # No wider than a row, so that some block of it is full, and little of the last one wasted.
    width = min(block, next_power_of_two(cols) if cols < 128 else next_power_of_two(cols + 1) // 2)
    while width > 128 and -(-cols // width) * width > 1.1 * cols:
        width //= 2
    return max(1, min(block // width, next_power_of_two(rows))), width, config.warps
