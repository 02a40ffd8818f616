"""Arithmetic, and rounding to whole numbers, with PyTorch's meaning where Triton's differs."""

import torch

from rafters.lang._define import define, helper, tl
from rafters.lang._float32 import copysign32

INF = float("inf")


def _tensors(*values):
    """The values as tensors on one device. A 0-d tensor of the CPU beside a GPU's comes there by a product: nothing is copied, and
    torch.compile fuses it."""
    devices = [v.device for v in values if isinstance(v, torch.Tensor)]
    device = next((d for d in devices if d.type != "cpu"), devices[0])
    made = [v if isinstance(v, torch.Tensor) else torch.tensor(v, device=device) for v in values]
    return [v if v.device == device else torch.ones((), dtype=v.dtype, device=device) * v for v in made]


@helper
def _real(x):
    """`x` in the type that float maths is done in: float64 stays, all else (integers, half types) becomes float32."""
    if not isinstance(x, tl.tensor):
        y = tl.full([], x, tl.float32)
    elif x.dtype == tl.float64:
        y = x
    else:
        y = x.to(tl.float32)
    return y


@helper
def _beside(number, x):
    """An operand that stands beside `x`: a Python float takes the type of a float `x` (Triton would round it to float32)."""
    if isinstance(number, tl.tensor):
        y = number
    elif not isinstance(x, tl.tensor):  # noqa: SIM114 (Triton evaluates both sides of an `or`)
        y = tl.full([], number, tl.float32)
    elif isinstance(number, float) and not x.dtype.is_floating():
        y = tl.full([], number, tl.float32)
    else:
        y = tl.full([], number, x.dtype)
    return y


def _add_meaning(x, y):
    return x + y  # torch: the `or` of two bools


@define(_add_meaning)
def add(x, y):
    """x + y; two bools give their `or` (in Triton they give `xor`)."""
    a, b = _beside(x, y), _beside(y, x)
    if (a.dtype == tl.int1) and (b.dtype == tl.int1):
        z = a | b
    else:
        z = a + b
    return z


@define(lambda condition, x, y: torch.where(condition.bool(), x, y))
def where(condition, x, y):
    """x where the condition holds (is not 0), else y; the side not taken may be NaN."""
    return tl.where(condition != 0, _beside(x, y), _beside(y, x))


@define(torch.true_divide, real=True)
def div(x, y):
    """x / y, rounded correctly (IEEE), subnormals included; integers divide as float32. x / 0 = +-inf, 0 / 0 = NaN."""
    a, b = _real(_beside(x, y)), _real(_beside(y, x))
    if (a.dtype == tl.float64) or (b.dtype == tl.float64):
        z = a / b
    else:
        z = tl.div_rn(a, b)
    return z


@define(torch.sqrt, real=True)
def sqrt(x):
    """Square root, rounded correctly (IEEE). sqrt(-0) = -0, NaN below 0."""
    t = _real(x)
    if t.dtype == tl.float64:
        y = tl.sqrt(t)
    else:
        y = tl.sqrt_rn(t)
    return y


@define(torch.rsqrt, real=True)
def rsqrt(x):
    """1 / sqrt(x), within 1.5 ulp. rsqrt(+-0) = +-inf, rsqrt(inf) = 0, NaN below 0."""
    return div(1.0, sqrt(x))


@define(lambda x, y, z: x * y + z)
def fma(x, y, z):
    """x * y + z with one rounding (the traced form and Triton's interpreter round twice)."""
    a, b, c = _beside(_beside(x, y), z), _beside(_beside(y, x), z), _beside(_beside(z, x), y)
    if (a.dtype.is_floating()) or (b.dtype.is_floating()) or (c.dtype.is_floating()):
        w = tl.fma(a, b, c)
    else:
        w = a * b + c
    return w


def _lerp_meaning(start, end, weight):
    a, b, w = _tensors(start, end, weight)
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), w.dtype)
    return torch.lerp(a.to(dtype), b.to(dtype), w.to(dtype))


@define(_lerp_meaning)
def lerp(start, end, weight):
    """start + weight * (end - start), fused; from the other end where |weight| >= 0.5, so that weight = 1 gives end."""
    distance = end - start
    return tl.where(tl.abs(weight) < 0.5, fma(weight, distance, start), fma(distance, weight - 1.0, end))


@define(torch.abs)
def abs(x):
    """|x|; NaN stays."""
    return tl.abs(x)


@define(torch.floor)
def floor(x):
    """The largest whole number not above x; -0, NaN and infinities stay, integers too."""
    if x.dtype.is_floating():
        y = tl.floor(x)
    else:
        y = x
    return y


@define(torch.ceil)
def ceil(x):
    """The smallest whole number not below x; ceil(-0.5) = -0; NaN and infinities stay, integers too."""
    if x.dtype.is_floating():
        y = tl.ceil(x)
    else:
        y = x
    return y


@define(torch.round)
def rint(x):
    """The nearest whole number, halves to the even one; rint(-0.5) = -0; NaN and infinities stay, integers too."""
    # Adding 2^23 (float64: 2^52) leaves no place for a fraction; larger numbers have none.
    if x.dtype == tl.float64:
        y = tl.abs(x)
        y = tl.where(y < 4503599627370496.0, (y + 4503599627370496.0) - 4503599627370496.0, y)
        y = tl.where(x < 0, y * -1.0, tl.where(x == 0, x, y))
    elif x.dtype.is_floating():
        y = tl.abs(x)
        y = copysign32(tl.where(y < 8388608.0, (y + 8388608.0) - 8388608.0, y).to(tl.float32), x.to(tl.float32))
    else:
        y = x
    return y


@define(torch.isnan)
def isnan(x):
    """Whether x is NaN."""
    return x != x


@define(torch.isinf)
def isinf(x):
    """Whether x is +inf or -inf."""
    return tl.abs(_real(x)) == INF
