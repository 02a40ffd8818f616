"""Arithmetic and rounding to whole numbers, with PyTorch's meaning where Triton's differs."""

import torch

from rafters.lang._define import define, helper, tl

INF = float("inf")


@helper
def _real(x):
    """`x` in the type that float maths is done in: float64 stays, all else (integers, half types) becomes float32."""
    t = tl.to_tensor(x)
    if t.dtype == tl.float64:
        y = t
    else:
        y = t.to(tl.float32)
    return y


@define(torch.add)
def add(x, y):
    """x + y; two bools give their `or`."""
    return x + y


@define(torch.where)
def where(condition, x, y):
    """x where the condition holds, else y."""
    return tl.where(condition, x, y)


@define(torch.div)
def div(x, y):
    """x / y, rounded correctly."""
    return tl.div_rn(_real(x), _real(y))


@define(torch.sqrt)
def sqrt(x):
    """Square root, rounded correctly."""
    return tl.sqrt_rn(_real(x))


@define(torch.rsqrt)
def rsqrt(x):
    """1 / sqrt(x)."""
    return tl.div_rn(1.0, tl.sqrt_rn(_real(x)))


@define(lambda x, y, z: x * y + z)
def fma(x, y, z):
    """x * y + z with one rounding."""
    return tl.fma(x, y, z)


@define(torch.abs)
def abs(x):
    """|x|."""
    return tl.abs(x)


@define(torch.floor)
def floor(x):
    """The largest whole number not above x."""
    return tl.floor(_real(x))


@define(torch.ceil)
def ceil(x):
    """The smallest whole number not below x."""
    return tl.ceil(_real(x))


@define(torch.round)
def rint(x):
    """The nearest whole number; halves go to the even one."""
    whole = tl.where(tl.abs(x) < 8388608.0, (tl.abs(x) + 8388608.0) - 8388608.0, tl.abs(x))
    return tl.where(x < 0, -whole, whole)


@define(torch.isnan)
def isnan(x):
    """Whether x is NaN."""
    return x != x


@define(torch.isinf)
def isinf(x):
    """Whether x is +inf or -inf."""
    return tl.abs(x) == INF
