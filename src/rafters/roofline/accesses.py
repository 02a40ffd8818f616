"""Which bytes of a storage were touched: the arithmetic under the minimum byte count."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Access:
    """`count` distinct bytes somewhere in [low, high) of one storage."""

    low: int
    high: int
    count: int


def of(t: torch.Tensor, elements: int | None = None) -> Access:
    """All that `t` can reach, a broadcast dimension once; or `elements` elements somewhere in there, as a gather touches."""
    size = t.element_size()
    if t.numel() == 0:
        return Access(0, 0, 0)
    reach = sum((n - 1) * int(s) for n, s in zip(t.shape, t.stride(), strict=True))
    low = int(t.storage_offset()) * size
    distinct = 1
    for n, s in zip(t.shape, t.stride(), strict=True):
        distinct *= n if s else 1
    # Strides that overlap (unfold) reach fewer elements than their sizes multiply to.
    distinct = min(distinct, reach + 1)
    return Access(low, low + (reach + 1) * size, min(distinct, elements if elements is not None else distinct) * size)


def distinct_bytes(accesses: Iterable[Access]) -> int:
    """Bytes touched at least once by accesses of one storage.

    Exact for dense ranges and for ranges that repeat. Where strided ranges interleave it is their sum, at most the whole span:
    the two halves of a row are the row.
    """
    ordered = sorted(set(accesses), key=lambda a: (a.low, a.high))
    total, low, high, count, dense = 0, 0, 0, 0, True
    for a in ordered:
        if a.low >= high:
            total, low, high, count, dense = total + count, a.low, a.high, a.count, _is_dense(a)
        elif dense and _is_dense(a):
            high = max(high, a.high)
            count = high - low
        else:
            high = max(high, a.high)
            count, dense = min(count + a.count, high - low), False
    return total + count


def _is_dense(a: Access) -> bool:
    return a.count == a.high - a.low


def covered(access: Access, by: Iterable[Access]) -> bool:
    """Whether one of `by` certainly contains every byte of `access`."""
    return any(access == b or (_is_dense(b) and b.low <= access.low and access.high <= b.high) for b in by)
