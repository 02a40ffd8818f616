"""Views of arguments, as body parameters and outputs read them: halves of the last dimension, rows selected by an index."""

from dataclasses import dataclass, replace

import torch

from rafters.errors import argument_error


@dataclass(frozen=True)
class Piece:
    """A view of an argument as one body parameter (or output) reads it: `offset` in elements from the argument's own start."""

    name: str
    argument: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    offset: int = 0
    index: str | None = None
    index_stride: int = 0
    index_size: int = 0


def leading(index: Piece, rank: int) -> Piece:
    """An index over the domain: its dimensions are the first ones."""
    rest = rank - len(index.shape)
    return replace(index, shape=(*index.shape, *(1,) * rest), strides=(*index.strides, *(0,) * rest))


def part(op: str, piece: Piece, which: str | None) -> Piece:
    """A half of the last dimension."""
    if which is None:
        return piece
    if not piece.shape or piece.shape[-1] % 2:
        got = f"shape {tuple(piece.shape)}"
        raise argument_error(op, piece.argument, got, "an even last dimension (it is read in two halves)")
    half, step = piece.shape[-1] // 2, piece.strides[-1]
    interleaved = which in ("even", "odd")
    offset = (step if interleaved else half * step) if which in ("hi", "odd") else 0
    strides = (*piece.strides[:-1], step * 2 if interleaved else step)
    return Piece(piece.name, piece.argument, (*piece.shape[:-1], half), strides, piece.dtype, piece.offset + offset, piece.index,
                 piece.index_stride, piece.index_size)  # fmt: skip


def gather(op: str, piece: Piece, index: Piece, rank: int) -> Piece:
    """`piece` with its first dimension replaced by the dimensions of `index`."""
    if not piece.shape:
        raise argument_error(op, piece.argument, "a 0-d tensor", "at least one dimension, whose rows are selected")
    rest = len(piece.shape) - 1
    middle = max(rank - len(index.shape) - rest, 0)
    shape = (*index.shape, *(1,) * middle, *piece.shape[1:])
    strides = (*(0,) * (len(index.shape) + middle), *piece.strides[1:])
    return Piece(
        piece.name, piece.argument, shape, strides, piece.dtype, piece.offset, index.name, piece.strides[0], piece.shape[0]
    )
