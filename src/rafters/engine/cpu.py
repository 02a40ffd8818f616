"""The CPU path: the traced graph, block by block, so that no temporary is as large as a tensor."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from rafters.dtypes import FLOAT8
from rafters.engine.layouts import geometry
from rafters.engine.piece import Piece
from rafters.engine.promotion import totals
from rafters.trace.graph import Graph

# Elements a thread and block: the temporaries of a block stay in the cores' caches, and a block is long enough to hide its calls.
BLOCK = 1 << 16


def blocks(shape: Sequence[int], limit: int) -> Iterator[tuple[tuple[int, ...], int, int, int]]:
    """(outer index, dimension, start, stop) of blocks of at most `limit` elements, in memory order."""
    inner, split = 1, len(shape)
    while split > 0 and inner * shape[split - 1] <= limit:
        split -= 1
        inner *= shape[split]
    if split == 0:
        yield (), 0, 0, shape[0] if shape else 1
        return
    step = max(1, limit // inner)
    for outer in itertools.product(*(range(n) for n in shape[: split - 1])):
        for start in range(0, shape[split - 1], step):
            yield outer, split - 1, start, min(start + step, shape[split - 1])


def executor(
    graph: Graph,
    shape: tuple[int, ...],
    inputs: Sequence[Piece | str],
    indices: Sequence[Piece],
    outputs: Sequence[Piece],
    values: dict[str, torch.dtype],
    rowwise: bool,
    summed: Sequence[bool],
) -> Callable[[dict[str, Any]], None]:
    """`run(tensors)` writes the outputs. `tensors` holds arguments and results by name, and numbers as 0-d tensors. `summed`: the
    outputs that are sums over the dimensions that they lack."""
    memory = [p for p in (*inputs, *indices, *outputs) if isinstance(p, Piece)]
    expanded = [geometry.expand_strides(p.shape, p.strides, shape) for p in memory]
    leading = expanded[len(memory) - len(outputs) :] + expanded
    order = geometry.iteration_order(shape, leading)
    if rowwise:
        order = (len(shape) - 1, *(d for d in order if d != len(shape) - 1))
    domain = geometry.merge(shape, expanded, order, keep_last=rowwise)
    sizes = domain.shape or (1,)
    strides = {p.name: s or (0,) for p, s in zip(memory, domain.strides, strict=True)}
    block = BLOCK * torch.get_num_threads()
    limit = max(block, sizes[-1]) if rowwise else block
    into = graph.into if not any(p.index for p in memory) and len(outputs) == 1 else None
    same = all(isinstance(p, Piece) and p.dtype is values[p.name] is outputs[0].dtype for p in inputs)
    sums = {p.name for p, total in zip(outputs, summed, strict=True) if total and p.shape != shape}
    if into is not None and same and not sums:
        limit = math.prod(sizes) + 1  # one operation straight into the result: there is no temporary to keep small
    else:
        into = None
    # What is one value along the row is still a row: its reductions run over all of it.
    whole = {p.name for p in inputs if rowwise and isinstance(p, Piece)}
    whole |= {p.name for p in outputs if rowwise and p.shape and p.shape[-1] == shape[-1]}
    plan = [_windows(memory, strides, sizes, whole, *block) for block in blocks(sizes, limit)]

    def run(tensors: dict[str, Any]) -> None:
        results = {p.argument: tensors[p.argument] for p in outputs if p.name in sums}
        tensors = tensors | {name: _zeros(result) for name, result in results.items()}
        for full, windows in plan:
            taken = {p.name: _window(tensors, p, windows[p.name]) for p in memory}
            arguments = []
            for p in inputs:
                if isinstance(p, str):
                    arguments.append(tensors[p])
                    continue
                block = taken[p.name]
                if p.index:
                    block = _gathered(block, taken[p.index], p)
                arguments.append(block.to(values[p.name]))
            if into is not None:
                result = taken[outputs[0].name]
                into(*(a.expand(result.shape) for a in arguments), out=result)
                continue
            for p, value in zip(outputs, graph.hoisted(*arguments), strict=True):
                if p.name in sums:
                    _sum(taken[p.name], value.expand(full))
                    continue
                target = taken[p.name]
                if rowwise and value.dim() and target.shape[-1] == 1:
                    value = value[..., :1]  # one value a row, which the trace may not know from a row of equal ones
                _store(target, value, p, taken)
        for name, result in results.items():
            result.copy_(tensors[name])

    return run


Window = tuple[tuple[int, ...], tuple[int, ...], int]


def _windows(
    memory: Sequence[Piece],
    strides: dict[str, tuple[int, ...]],
    sizes: Sequence[int],
    whole: set[str],
    outer: tuple[int, ...],
    split: int,
    start: int,
    stop: int,
) -> tuple[tuple[int, ...], dict[str, Window]]:
    """The shape of one block, and shape, strides and offset of every operand in it.

    A broadcast dimension of an operand has size 1: nothing is computed twice.
    """
    windows = {}
    inner = (stop - start, *sizes[split + 1 :])
    for p in memory:
        s = strides[p.name]
        offset = p.offset + sum(i * t for i, t in zip(outer, s, strict=False)) + start * s[split]
        last = len(inner) - 1
        shape = tuple(
            1 if t == 0 and not (i == last and p.name in whole) else n
            for i, (n, t) in enumerate(zip(inner, s[split:], strict=True))
        )
        windows[p.name] = (shape, s[split:], offset)
    return inner, windows


def _window(tensors: dict[str, Any], piece: Piece, window: Window) -> torch.Tensor:
    tensor: torch.Tensor = tensors[piece.argument]
    shape, strides, offset = window
    if piece.index:
        shape, strides = (piece.index_size, *shape), (piece.index_stride, *strides)
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def _gathered(rows: torch.Tensor, index: torch.Tensor, piece: Piece) -> torch.Tensor:
    """The rows that `index` selects; NaN (0 for integers) where it lies outside."""
    inside = (index >= 0) & (index < piece.index_size)
    missing = float("nan") if piece.dtype.is_floating_point else 0
    if piece.index_size == 0:
        return torch.full(torch.broadcast_shapes(index.shape, rows.shape[1:]), missing, dtype=piece.dtype)
    flat = index.clamp(0, max(piece.index_size - 1, 0)).long()
    grid = torch.meshgrid(*(torch.arange(n) for n in rows.shape[1:]), indexing="ij") if rows.dim() > 1 else ()
    picked = rows[(flat, *(g if n > 1 else torch.zeros((), dtype=torch.long) for g, n in zip(grid, rows.shape[1:], strict=True)))]
    return torch.where(inside, picked, torch.tensor(missing, dtype=piece.dtype))


def _zeros(result: torch.Tensor) -> torch.Tensor:
    """Where a result is summed: the same places, in the dtype of the sum."""
    return torch.empty_strided(result.shape, result.stride(), dtype=totals(result.dtype)).zero_()


def _sum(target: torch.Tensor, value: torch.Tensor) -> None:
    dims = [d for d, (n, m) in enumerate(zip(value.shape, target.shape, strict=True)) if n != m]
    target += torch.sum(value, dims, keepdim=True, dtype=target.dtype) if dims else value


def _store(target: torch.Tensor, value: torch.Tensor, piece: Piece, taken: dict[str, torch.Tensor]) -> None:
    if piece.dtype in FLOAT8:
        largest = torch.finfo(piece.dtype).max
        value = value.clamp(-largest, largest)  # saturate; NaN stays
    if piece.index is None:
        target.copy_(value)
        return
    index = taken[piece.index]
    shape = torch.broadcast_shapes(index.shape, target.shape[1:], value.shape)
    value, index = value.expand(shape), index.expand(shape)
    inside = (index >= 0) & (index < piece.index_size)
    grid = torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij")
    where = tuple(g[inside] for g in grid)
    target.expand(piece.index_size, *shape)[(index[inside].long(), *where)] = value[inside].to(piece.dtype)
