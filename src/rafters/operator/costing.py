"""Minimum bytes and FLOPs of a call."""

import math
from typing import Any

import torch

from rafters.cost import Cost
from rafters.engine.call import resolve
from rafters.engine.piece import Piece
from rafters.engine.prepare import trace_call
from rafters.engine.spec import Spec
from rafters.trace.nodes import COLUMN, POINT, ROW, TILE


def cost(spec: Spec, arguments: dict[str, Any]) -> Cost:
    """Each unique storage range read once and written once; broadcast dimensions once; a gather reads the rows it touches."""
    resolved = resolve(spec, arguments)
    inputs = resolved.inputs
    if spec.reference is None:  # of some inputs a body uses nothing, or the length of their rows
        inputs = tuple(p for p in inputs if p.name in trace_call(spec, resolved, arguments).read)
    read = {_range(arguments, p): _bytes(p, resolved.indices) for p in (*inputs, *resolved.indices)}
    written = 0
    for result, group in zip(resolved.results, spec.results, strict=True):
        shape = (*resolved.shape[:-1], 1) if group[0].per_row else result.shape if group[0].sum_to else resolved.shape
        written += math.prod(shape) * len(group) * result.dtype.itemsize
    return Cost(sum(read.values()), written, _flops(spec, arguments, resolved))


def _range(arguments: dict[str, Any], piece: Piece) -> tuple[Any, ...]:
    """What names the memory of a piece: the same tensor given twice is read once."""
    tensor = arguments[piece.argument]
    start = (
        (id(tensor),)
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta"
        else (tensor.data_ptr(), str(tensor.device))
    )
    return (*start, piece.offset, piece.shape, piece.strides, piece.index)


def _bytes(piece: Piece, indices: tuple[Piece, ...]) -> int:
    count = math.prod(n for n, s in zip(piece.shape, piece.strides, strict=True) if s != 0)
    if piece.index is not None:
        touched = next(math.prod(i.shape) for i in indices if i.name == piece.index)
        count *= min(touched, piece.index_size)
    return count * piece.dtype.itemsize


def _flops(spec: Spec, arguments: dict[str, Any], resolved: Any) -> int:
    if spec.reference is not None:
        return 0
    rows, cols = math.prod(resolved.shape[:-1]), resolved.shape[-1] if resolved.shape else 1
    counts = trace_call(spec, resolved, arguments).flops
    total: int = counts[TILE] * rows * cols + counts[COLUMN] * cols + counts[ROW] * rows + counts[POINT]
    return total
