"""Elementary functions, accurate where Triton's own are fast. Integers and half types are computed in float32.

Bounds are in units of the last place of the result against the exact value, subnormal numbers included: docs/lang.md has the
table. float64 takes the device library (1 ulp or 2), of which Triton's interpreter has no expm1, log1p and tanh.
"""

import torch

from rafters.lang._define import HALF, define, libdevice, tl
from rafters.lang._float32 import erfc32, exp2_32, exp32, expm1_32, log1p32, log2_32, log32, ndtr32, sigmoid32, tanh32
from rafters.lang._half import erf_half, erfc_half, exp_half, ndtr_half, sigmoid_half, tanh_half
from rafters.lang.arithmetic import _real


@define(torch.exp, real=True)
def exp(x):
    """e^x, within 1.1 ulp. exp(-inf) = 0, exp(inf) = inf, NaN stays; `tl.exp` is 63 ulp off at |x| = 85."""
    t = _real(x)
    if t.dtype == tl.float64:
        y = tl.exp(t)
    elif HALF:
        y = exp_half(t)
    else:
        y = exp32(t)
    return y


@define(torch.exp2, real=True)
def exp2(x):
    """2^x, within 1.1 ulp; whole powers are exact."""
    t = _real(x)
    if t.dtype == tl.float64:  # noqa: SIM114 (Triton evaluates both sides of an `or`)
        y = tl.exp2(t)
    elif HALF:
        y = tl.exp2(t)
    else:
        y = exp2_32(t)
    return y


@define(torch.expm1, real=True)
def expm1(x):
    """e^x - 1, within 1.6 ulp, also near 0. expm1(-inf) = -1, expm1(-0) = -0."""
    t = _real(x)
    if t.dtype == tl.float64:
        y = libdevice.expm1(t)
    else:
        y = expm1_32(t)
    return y


@define(torch.log, real=True)
def log(x):
    """Natural logarithm, within 1 ulp. log(0) = -inf, NaN below 0."""
    t = _real(x)
    if t.dtype == tl.float64:
        y = tl.log(t)
    else:
        y = log32(t)
    return y


@define(torch.log2, real=True)
def log2(x):
    """Logarithm to base 2, within 1.7 ulp; exact at powers of two. log2(0) = -inf, NaN below 0."""
    t = _real(x)
    if t.dtype == tl.float64:
        y = tl.log2(t)
    else:
        y = log2_32(t)
    return y


@define(torch.log1p, real=True)
def log1p(x):
    """log(1 + x), within 1.5 ulp, also near 0. log1p(-1) = -inf, NaN below -1, log1p(-0) = -0."""
    t = _real(x)
    if t.dtype == tl.float64:
        y = libdevice.log1p(t)
    else:
        y = log1p32(t)
    return y


@define(torch.erf, real=True)
def erf(x):
    """Error function, within 2 ulp (the device library's). erf(+-inf) = +-1."""
    t = _real(x)
    if HALF and t.dtype != tl.float64:
        y = erf_half(t)
    else:
        y = tl.erf(t)
    return y


@define(torch.erfc, real=True)
def erfc(x):
    """1 - erf(x), within 4 ulp down to the smallest subnormal result. erfc(inf) = 0, erfc(-inf) = 2."""
    t = _real(x)
    if t.dtype == tl.float64:
        y = libdevice.erfc(t)
    elif HALF:
        y = erfc_half(t)
    else:
        y = erfc32(t)
    return y


@define(lambda x: torch.erfc(x * -0.7071067811865476) * 0.5, real=True)
def ndtr(x):
    """The normal distribution function (1 + erf(x / sqrt(2))) / 2, within 4 ulp in its tail too. ndtr(-inf) = 0, ndtr(inf) = 1."""
    t = _real(x)
    if t.dtype == tl.float64:
        # u = -x / sqrt(2) is rounded, which erfc magnifies 2 u^2 times in the tail: its derivative there puts it back.
        c = tl.full([], -0.7071067811865476, tl.float64)
        u = t * c
        lost = tl.fma(t, c, u * -1.0) + t * 4.833646656726457e-17
        y = libdevice.erfc(u) * 0.5
        y = tl.where((u > 1) & (u < 40), tl.fma(y * u * -2.0, lost, y), y)
    elif HALF:
        y = ndtr_half(t)
    else:
        y = ndtr32(t)
    return y


def stable_sigmoid(x):
    """PyTorch's vector loop on the CPU flushes where exp(-x) overflows, its scalar loop does not; this is right in both."""
    if x.numel() == 0 or bool(x.amin() >= -87.0):  # nothing to flush, in float32 or float64 (a NaN answers no)
        return torch.sigmoid(x)
    e = torch.exp(-x.abs())
    return torch.where(x < 0, e, 1.0) / (1.0 + e)


def _sigmoid_meaning(x):
    """On plain tensors the stable form; where PyTorch records (a gradient, a trace), its own operation with its own derivative."""
    plain = type(x) is torch.Tensor and x.device.type == "cpu" and not x.requires_grad and x.is_floating_point()
    recorded = (
        torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack()
    )
    return stable_sigmoid(x) if plain and not recorded else torch.sigmoid(x)


@define(_sigmoid_meaning, real=True)
def sigmoid(x):
    """1 / (1 + e^-x), within 1.6 ulp down to the smallest subnormal result. sigmoid(-inf) = 0."""
    t = _real(x)
    if t.dtype == tl.float64:
        e = tl.exp(-tl.abs(t))
        y = tl.where(t < 0, e, 1.0) / (1.0 + e)
    elif HALF:
        y = sigmoid_half(t)
    else:
        y = sigmoid32(t)
    return y


@define(torch.tanh, real=True)
def tanh(x):
    """Hyperbolic tangent, within 2 ulp. tanh(+-inf) = +-1, tanh(-0) = -0."""
    t = _real(x)
    if t.dtype == tl.float64:
        y = libdevice.tanh(t)
    elif HALF:
        y = tanh_half(t)
    else:
        y = tanh32(t)
    return y


@define(torch.sin, real=True)
def sin(x):
    """Sine, within 2 ulp at every argument (the device library's). NaN at +-inf."""
    return tl.sin(_real(x))


@define(torch.cos, real=True)
def cos(x):
    """Cosine, within 2 ulp at every argument (the device library's). NaN at +-inf."""
    return tl.cos(_real(x))
