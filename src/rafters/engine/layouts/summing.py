"""Tiles whose programs walk down several blocks and sum some of the outputs: the gradients of broadcast arguments.

A program leaves one sum for its blocks. Where several programs contribute to one element, their sums go to a small buffer that a
further kernel of the same kind sums, until one program sees all: every sum runs in one order, which the shapes and dtypes decide.
Of a row-wise op the tiles are whole rows, so that a reduction along the row and the sums over the rows are one kernel.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rafters.engine.layouts import geometry
from rafters.engine.layouts.form import COLUMN, POINT, ROW, ROWS, STRIDED, SUMMED, TILE, Form, Slot, row_kind
from rafters.engine.layouts.geometry import Domain, Shape, Strides
from rafters.engine.layouts.operand import Config, Layout, Operand, Partial, next_power_of_two, slots, vector
from rafters.engine.layouts.tiling import (
    Axes,
    crosses,
    crossing_dimension,
    index_type,
    kind_of,
    row_tile,
    tile_arguments,
    with_rows,
)


# Found on an H200 (docs/measuring.md, "Gradients of broadcast arguments"); constants, so that the order of a sum is that of any device.
@dataclass(frozen=True)
class Walk:
    """How programs walk down: elements of a tile (tall ones: many loads in flight, few partial sums), its warps, programs enough for
    every multiprocessor of a large GPU, and the rows that one program walks alone, so that nothing is left to sum further."""

    elements: int
    warps: int
    programs: int
    alone: int


# By what a thread holds: one operand that is read and nothing written; the usual; so many values that a larger tile would spill.
LIGHT, USUAL, HEAVY = Walk(8192, 4, 256, 1024), Walk(8192, 8, 2048, 2048), Walk(4096, 8, 2048, 2048)
WIDTH, WIDTH_ALONE = 64, 32  # columns of a tile; fewer where one program walks all rows, so that there are enough programs
LONGEST_WALK = 8  # tiles
WIDEST = 8192  # columns that one program sums without a further kernel
# Where programs hold whole rows: warps in all (each program leaves a row of sums), and bytes of the next two rows that are loaded
# meanwhile, which lie in shared memory.
ROW_WARPS, LONGEST_ROW_WALK, MOST_IN_FLIGHT = 2048, 64, 64 * 1024


def is_summed(operand: Operand, strides: Strides, shape: Shape) -> bool:
    return operand.total is not None and any(s == 0 and n > 1 for s, n in zip(strides, shape, strict=True))


def summed(
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
    shape, strides = with_rows(whole, domain, memory, rowwise)
    alone = rowwise and shape[0] == 1  # one row is summed over as many are
    missing = {
        o.name: {d for d, n in enumerate(shape) if strides[o.name][d] == 0 and (n > 1 or (alone and d == 0))}
        if o.total
        else set()
        for o in outputs
    }
    axes = Axes.of(len(shape), _row(shape, [strides[o.name] for o in memory if o.index is None], missing))
    row, col = axes.row, axes.col
    left = tuple(name for name, dims in missing.items() if dims and not dims & {row, col})
    made = [o for o in outputs if o.name not in left]
    memory = [o for o in memory if o.name not in left]
    kinds = {
        o.name: row_kind(o.shape, whole) if rowwise else kind_of(strides[o.name][row], strides[o.name][col], False)
        for o in memory
    }
    kinds |= {o.name: _output_kind(missing[o.name], axes) for o in made if o.total or not rowwise}
    crossing = crosses((strides[o.name] for o in memory), axes)
    varying = sum(k == TILE for k in kinds.values())
    heavy = varying > 4 or any(o.dtype.itemsize == 8 for o in memory)
    walk = HEAVY if heavy else LIGHT if varying <= 1 else USUAL
    down = any(row in missing[o.name] for o in made)
    stages = 1
    if rowwise:
        rows, cols, warps, steps = _row_tile(op, shape, axes, down, vector(memory, kinds), warp_size, config)
        read = sum(o.dtype.itemsize for o in memory if o not in outputs and kinds[o.name] == TILE)
        stages = 1 + min(2, MOST_IN_FLIGHT // (rows * cols * max(read, 1)))
    else:
        rows, cols, warps, steps = _tile(shape, axes, down, walk, vector(memory, kinds), crossing, warp_size, config)
    blocks = {row: -(-shape[row] // (rows * steps)), col: -(-shape[col] // cols)}
    partials: dict[str, Partial] = {}
    for o in made:
        if not missing[o.name]:
            continue
        sizes = tuple(blocks.get(d, n) if d in missing[o.name] else n for d, n in enumerate(shape))
        if math.prod(sizes[d] for d in missing[o.name]) > 1:
            result = replace(
                o, shape=tuple(1 if d in missing[o.name] else n for d, n in enumerate(shape)), strides=strides[o.name]
            )
            partials[o.name] = Partial(sizes, result)
            strides[o.name] = geometry.contiguous_strides(sizes)
    # what a kernel writes into a buffer of its own is aligned, and in the dtype of the sum
    buffered = [replace(o, dtype=o.total, align=16) if o.name in partials and o.total else o for o in memory]
    arguments, align, wide = tile_arguments(shape, strides, buffered, kinds, axes)
    dense = not axes.outer and not (rowwise and crossing) and all(strides[o.name][col] in (0, 1) for o in memory)
    form = Form(
        ROWS if dense else STRIDED,
        SUMMED,
        len(axes.outer),
        slots(inputs, kinds),
        slots(indices, kinds),
        tuple(Slot(o.name, kinds[o.name], o.index, bool(missing[o.name])) for o in made),
        config.split,
    )
    grid = blocks[row] * blocks[col] * math.prod(shape[d] for d in axes.outer)
    constants: dict[str, Any] = {"ROWS": rows, "COLS": cols, "STEPS": steps, "STAGES": stages, "INDEX": index_type(shape)}
    ordered = tuple(shape[d] for d in (*axes.outer, row, col))
    return Layout(form, arguments, constants, grid, warps, align, wide, ordered, partials, left)


def _row(shape: Shape, strides: Sequence[Strides], missing: dict[str, set[int]]) -> int:
    """The dimension that a program walks down: one over which most of the outputs are summed, and of those the longest."""
    col = len(shape) - 1
    counts = Counter(d for dims in missing.values() for d in dims if d != col)
    if not counts:
        return crossing_dimension(shape, strides)
    return max(counts, key=lambda d: (counts[d], shape[d], d))


def _output_kind(missing: set[int], axes: Axes) -> str:
    if axes.row in missing:
        return POINT if axes.col in missing else COLUMN
    return ROW if axes.col in missing else TILE


def _row_tile(
    op: str, shape: Shape, axes: Axes, down: bool, per_thread: int, warp_size: int, config: Config
) -> tuple[int, int, int, int]:
    """(ROWS, COLS, warps, STEPS) of whole rows, of more warps than without sums where those of a long row need registers; a program walks
    down rows until few programs are left."""
    rows, cols, warps = row_tile(op, shape[axes.col], per_thread, warp_size, config)
    warps = max(warps, min(32, cols * rows // 1024))
    most = ROW_WARPS if config.block is None else warps
    tiles = -(-shape[axes.row] // rows) * math.prod(shape[d] for d in axes.outer)
    steps = min(
        LONGEST_ROW_WALK, next_power_of_two(max(tiles * warps // most, 1)), next_power_of_two(-(-shape[axes.row] // rows))
    )
    return rows, cols, warps, steps if down else 1


def _tile(
    shape: Shape, axes: Axes, down: bool, walk: Walk, per_thread: int, crossing: bool, warp_size: int, config: Config
) -> tuple[int, int, int, int]:
    """(ROWS, COLS, warps, STEPS): a tile, and how many of them a program walks down. From sizes and dtypes alone."""
    rows, cols = shape[axes.row], shape[axes.col]
    if crossing:
        side = 8 * per_thread
        height, width, warps = min(side, next_power_of_two(rows)), min(side, next_power_of_two(cols)), config.warps
    elif not down:  # sums along the columns alone: as much of a row as one program can hold
        width = min(next_power_of_two(cols), config.block or WIDEST)
        block = config.block or per_thread * warp_size * config.warps
        height, warps = max(1, min(block // width, next_power_of_two(rows))), max(config.warps, min(8, width // 512))
    elif rows <= walk.alone and config.block is None:
        width = min(WIDTH_ALONE, next_power_of_two(cols))
        height = min(walk.elements // width, next_power_of_two(rows))
        return height, width, USUAL.warps, -(-rows // height)
    else:
        tile, warps = config.block or walk.elements, walk.warps if config.block is None else config.warps
        width = min(WIDTH, next_power_of_two(cols), tile)
        height = max(1, min(tile // width, next_power_of_two(rows)))
    tiles = -(-rows // height) * -(-cols // width) * math.prod(shape[d] for d in axes.outer)
    steps = min(LONGEST_WALK, next_power_of_two(max(tiles // walk.programs, 1)), next_power_of_two(-(-rows // height)))
    return height, width, warps, steps if down else 1
