"""Is the result right? A function that is wrong has no speed."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rafters.roofline.rotation import Arguments, clone, tensors_in

Check = Callable[[Any, Any], str | None]

# Units in the last place of the output that a result may be away from the reference.
_ULPS = {torch.float32: 4.0, torch.float64: 4.0}
# What accumulating in float32 may lose, relative to the largest value of the result.
_ACCUMULATION = 4 * 2.0**-24
_CHUNK = 1 << 24


def compare(result: Any, expected: Any) -> str | None:
    """None if every tensor of `result` agrees with `expected`, else a sentence about the first that does not.

    Compared in float64. Integers and booleans are equal; floating-point values lie within 1 ulp (16 bits and less) or 4 ulp
    of the result's dtype, plus the rounding of an accumulation in float32. NaN equals NaN.
    """
    got, want = tensors_in(result), tensors_in(expected)
    if len(got) != len(want):
        return f"{len(got)} tensors came back, the reference gives {len(want)}"
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if g.shape != w.shape:
            return f"output {i} has shape {tuple(g.shape)}, the reference {tuple(w.shape)}"
        if difference := _difference(g.detach(), w.detach()):
            return f"output {i} ({g.dtype}): {difference}"
    return None


def run(fn: Callable[..., Any], reference: Callable[..., Any], arguments: Arguments, check: Check = compare) -> str | None:
    """What is wrong with `fn` on `arguments`, or None. A function that returns None is judged by what it did to its arguments."""
    theirs = clone(arguments)
    result, expected = fn(*arguments), reference(*theirs)
    if result is None:
        result = arguments
    if expected is None:
        expected = theirs
    return check(result, expected)


def _difference(got: torch.Tensor, want: torch.Tensor) -> str | None:
    exact = not (got.is_floating_point() or got.is_complex())
    largest = 0.0 if exact else _largest(want)
    flat_got, flat_want = got.reshape(-1), want.reshape(-1)
    for start in range(0, flat_got.numel(), _CHUNK):
        g, w = flat_got[start : start + _CHUNK], flat_want[start : start + _CHUNK]
        bad = (g != w) if exact else _outside(g, w, largest)
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            where = tuple(_unravel(start + at, got.shape))
            return f"{int(bad.sum())} of {g.numel()} values differ, the first at {where}: {g[at].item()} for {w[at].item()}"
    return None


def _outside(got: torch.Tensor, want: torch.Tensor, largest: float) -> torch.Tensor:
    info = torch.finfo(got.dtype)
    g, w = got.double(), want.double()
    exponent = torch.frexp(w.abs()).exponent - 1
    # Not torch.ldexp: it raises 2 to the exponent in float32.
    ulp = (info.eps * torch.exp2(exponent.double())).clamp(min=info.eps * info.smallest_normal)
    limit = _ULPS.get(got.dtype, 1.0) * ulp
    if got.dtype.itemsize > 1 and got.dtype != torch.float64:
        limit = limit + _ACCUMULATION * largest
    same = (g == w) | (g.isnan() & w.isnan())
    # "not inside" instead of "outside": a NaN on one side compares false and has to be caught.
    return ~(same | ((g - w).abs() <= limit))


def _largest(t: torch.Tensor) -> float:
    if not t.numel():
        return 0.0
    # float8 has no reductions, and float16 would overflow nothing here: go through float32 in chunks.
    chunks = (c.to(torch.float32).abs().nan_to_num(nan=0.0, posinf=0.0) for c in t.reshape(-1).split(_CHUNK))
    return max(float(c.max()) for c in chunks)


def _unravel(index: int, shape: Sequence[int]) -> list[int]:
    found: list[int] = []
    for size in reversed(shape):
        index, rest = divmod(index, size)
        found.insert(0, rest)
    return found
