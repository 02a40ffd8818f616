"""Shapes and strides: broadcasting, the strides PyTorch gives a result, and the reduction of a call to few dimensions."""

from collections.abc import Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]
Strides = tuple[int, ...]


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """The common shape; ValueError(i, shape, dimension) of the first operand that does not fit."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = [1] * rank
    for position, shape in enumerate(shapes):
        for k, size in enumerate(shape, rank - len(shape)):
            if size != 1 and result[k] != size:
                if result[k] != 1:
                    raise ValueError(position, shape, k - rank)
                result[k] = size
    return tuple(result)


def expand_strides(shape: Shape, strides: Strides, target: Shape) -> Strides:
    """Strides over `target`, 0 where a dimension is broadcast."""
    missing = len(target) - len(shape)
    padded = [0] * missing + [0 if n == 1 and m != 1 else s for n, s, m in zip(shape, strides, target[missing:], strict=True)]
    return tuple(padded)


def iteration_order(shape: Shape, operands: Sequence[Strides]) -> tuple[int, ...]:
    """Dimensions from the fastest to the slowest, as PyTorch's TensorIterator orders them.

    The first operand with an opinion decides; a broadcast dimension has none; equal strides fall back to the sizes. The insertion
    sort is part of the contract: comparisons may be ambiguous, and another sort would give other strides.
    """

    def compare(a: int, b: int) -> int:
        for strides in operands:
            if strides[a] == 0 or strides[b] == 0:
                continue
            if strides[a] != strides[b]:
                return 1 if strides[a] > strides[b] else -1
            if shape[a] > shape[b]:
                return 1
        return 0

    order = list(range(len(shape)))[::-1]
    for i in range(1, len(order)):
        current = i
        for other in range(i - 1, -1, -1):
            decision = compare(order[other], order[current])
            if decision > 0:
                order[other], order[current] = order[current], order[other]
                current = other
            elif decision < 0:
                break
    return tuple(order)


def dense_strides(shape: Shape, order: Sequence[int]) -> Strides:
    """Strides of a dense tensor whose dimensions lie in memory in `order` (fastest first)."""
    strides = [0] * len(shape)
    step = 1
    for dimension in order:
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(strides)


def contiguous_strides(shape: Shape) -> Strides:
    return dense_strides(shape, range(len(shape) - 1, -1, -1))


def is_dense(shape: Shape, strides: Strides) -> bool:
    """Non-overlapping and dense in some order."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def output_strides(shape: Shape, operands: Sequence[tuple[Shape, Strides]]) -> Strides:
    """The strides PyTorch would give the result of an elementwise op on these operands."""
    same = [(s, t) for s, t in operands if s == shape]
    if len(same) == len(operands) and operands:
        first = operands[0][1]
        if all(t == first for _, t in operands) and is_dense(shape, first) and 0 not in shape:
            return first if all(n > 1 for n in shape) else dense_strides(shape, iteration_order(shape, [first]))
    return dense_strides(shape, iteration_order(shape, [expand_strides(s, t, shape) for s, t in operands]))


def reach(shape: Shape, strides: Strides) -> int:
    """Largest offset, in elements, that the operand touches (0 for an empty one)."""
    return 0 if 0 in shape else sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True))


def overlaps_itself(shape: Shape, strides: Strides) -> bool:
    """May two indices share an element? Exact for every view that slicing, permuting and expanding can make."""
    if 0 in shape:
        return False
    extent = 0
    for stride, size in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride <= extent:
            return True
        extent += stride * (size - 1)
    return False


@dataclass(frozen=True)
class Domain:
    """What a kernel iterates over: merged sizes, slowest first, and the strides of every operand over them."""

    shape: Shape
    strides: tuple[Strides, ...]

    @property
    def numel(self) -> int:
        result = 1
        for size in self.shape:
            result *= size
        return result


def merge(shape: Shape, operands: Sequence[Strides], order: Sequence[int], keep_last: bool = False) -> Domain:
    """Reorders the dimensions to `order` (fastest first), drops those of size 1 and joins those that all operands walk as one.

    With `keep_last` the fastest dimension (the row of a row-wise op) stays as it is.
    """
    dimensions = [d for i, d in enumerate(reversed(order)) if shape[d] != 1 or (keep_last and i == len(order) - 1)]
    sizes: list[int] = []
    strides: list[list[int]] = [[] for _ in operands]
    for position, d in enumerate(dimensions):
        last = keep_last and position == len(dimensions) - 1
        joined = (
            bool(sizes) and not last and all(s[-1] == operand[d] * shape[d] for s, operand in zip(strides, operands, strict=True))
        )
        if joined:
            sizes[-1] *= shape[d]
        else:
            sizes.append(shape[d])
        for s, operand in zip(strides, operands, strict=True):
            if joined:
                s[-1] = operand[d]
            else:
                s.append(operand[d])
    return Domain(tuple(sizes), tuple(tuple(s) for s in strides))
