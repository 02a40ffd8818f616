"""Reductions over one row (the last dimension), for row-wise bodies.

A row-wise kernel is written from its trace, where the reduction and the column mask stand in one scope; `code` is what the
kernel calls on a tile [ROWS, COLS] whose masked lanes hold the neutral element already.
"""

import contextlib
import threading
from collections.abc import Iterator

import torch

from rafters.lang._define import define, helper, tl
from rafters.lang.arithmetic import _real, div
from rafters.lang.extrema import maximum, minimum


@helper
def _larger(x, y):
    return maximum(x, y)


@helper
def _smaller(x, y):
    return minimum(x, y)


@helper
def _comparable(x):
    """x in a type in which `maximum` gives the type it was given: it makes float32 of the half types."""
    if x.dtype.is_floating():
        y = _real(x)
    else:
        y = x
    return y


@define(lambda x: torch.sum(x.float() if x.is_floating_point() and x.dtype.itemsize < 4 else x, -1, keepdim=True))
def row_sum(x):
    """Sum of a row, float32 for half types, int64 for integers and bools; the result broadcasts against the row."""
    if x.dtype.is_floating():
        y = tl.sum(_real(x), 1, keep_dims=True)
    else:
        y = tl.sum(x.to(tl.int64), 1, keep_dims=True)
    return y


@define(
    lambda x: torch.sum(torch.ones_like(x, dtype=torch.float64 if x.dtype is torch.float64 else torch.float32), -1, keepdim=True)
)
def row_length(x):
    """Number of elements of a row, in float32 (float64 of a float64 row). The code's is the width of the tile, as in `row_mean`."""
    return tl.full([1, 1], x.shape[1], _real(x).dtype)


class _Deriving(threading.local):
    active = False


_deriving = _Deriving()


@contextlib.contextmanager
def deriving() -> Iterator[None]:
    """While a derivative is traced: PyTorch's rule for a mean would write down how long the traced row happens to be."""
    before, _deriving.active = _deriving.active, True
    try:
        yield
    finally:
        _deriving.active = before


def _mean(x):
    return row_sum.meaning(x) / row_length.meaning(x) if _deriving.active else torch.mean(x, -1, keepdim=True)


@define(_mean, real=True)
def row_mean(x):
    """Mean of a row. The code divides by the width of the tile, which is right where the tile is the row, no lane masked."""
    return div(tl.sum(_real(x), 1, keep_dims=True), x.shape[1])


@define(lambda x: torch.amax(x, -1, keepdim=True))
def row_max(x):
    """Largest element of a row; NaN if one is. Neutral element: -inf, or the smallest integer."""
    return tl.reduce(_comparable(x), 1, _larger, keep_dims=True).to(x.dtype)


@define(lambda x: torch.amin(x, -1, keepdim=True))
def row_min(x):
    """Smallest element of a row; NaN if one is. Neutral element: inf, or the largest integer."""
    return tl.reduce(_comparable(x), 1, _smaller, keep_dims=True).to(x.dtype)


@define(lambda x: torch.amax(torch.abs(x), -1, keepdim=True))
def row_absmax(x):
    """Largest magnitude of a row; NaN if one is. Neutral element: 0."""
    return tl.reduce(_comparable(tl.abs(x)), 1, _larger, keep_dims=True).to(x.dtype)
