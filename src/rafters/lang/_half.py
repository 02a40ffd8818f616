"""The elementary functions for values that came from 16-bit memory: relative error below 2^-16.6, subnormal results included.

The arguments are float32 and of any size: a body may have scaled the values it read. `tl.exp2` and `tl.rsqrt` are the fast
instructions of the device (relative errors 2^-22.5 and 2^-22.9); the square of the latter is the cheapest reciprocal that Triton
offers, four instructions and a multiplication against nine for `1.0 / d`.
"""

from rafters.lang._define import helper, tl
from rafters.lang._float32 import clip32

LOG2E = 1.4426950408889634
TO_M24 = 5.9604644775390625e-08  # 2^-24
TANH_NEAR_0 = 0.11
TANH_CUBIC = -0.3320007  # best there: 2^-18.2


@helper
def exp_half(x):
    return tl.exp2(x * LOG2E)


@helper
def sigmoid_half(x):
    # 2^-24 / (2^-24 + 2^-24 e^-x): scaled so that e^-x stays finite until the result leaves the subnormals (x = -104), and no
    # side of zero needs its own form. An infinite sum gives 0.
    r = tl.rsqrt(tl.exp2(tl.fma(x, -LOG2E, -24.0)) + TO_M24)
    return (r * TO_M24) * r


@helper
def tanh_half(x):
    # 1 - 2 / (1 + e^2x); near 0, where that cancels, two terms of the series.
    r = tl.rsqrt(tl.exp2(x * (2.0 * LOG2E)) + 1.0)
    y = tl.fma(r * r, -2.0, 1.0)
    return tl.where(tl.abs(x) < TANH_NEAR_0, tl.fma(x * x, TANH_CUBIC, 1.0) * x, y)


@helper
def erf_half(x):
    # x * p(x^2) for |x| < 3.4, where 1 - erf is 2^-19.
    x = clip32(x, -3.4, 3.4)
    v = tl.fma(x, x, -5.78)
    p = tl.fma(v, -1.0520326797214263e-11, 1.5101071781931097e-10)
    p = tl.fma(v, p, -9.094448527591226e-10)
    p = tl.fma(v, p, 8.840544296617736e-09)
    p = tl.fma(v, p, -1.1794629983796767e-07)
    p = tl.fma(v, p, 1.1421626595620182e-06)
    p = tl.fma(v, p, -9.555436008668039e-06)
    p = tl.fma(v, p, 7.717175321886316e-05)
    p = tl.fma(v, p, -0.000595010700635612)
    p = tl.fma(v, p, 0.00447682524099946)
    p = tl.fma(v, p, -0.03565582260489464)
    return tl.fma(v, p, 0.4156644344329834) * x


@helper
def gauss_tail_half(x, RATE: "tl.constexpr", POWER: "tl.constexpr", SHIFT: "tl.constexpr"):
    """2^SHIFT * erfc(z), z = |x| * sqrt(POWER), for RATE = 3/8 * sqrt(POWER): e^(-z^2) * t * p(t) with t = 1 / (1 + 3/8 z)."""
    r = tl.rsqrt(tl.fma(tl.abs(x), RATE, 1.0))
    t = r * r
    p = tl.fma(t, -0.13509501516819, 0.38793474435806274)
    p = tl.fma(t, p, -0.12959298491477966)
    p = tl.fma(t, p, 0.2830584943294525)
    p = tl.fma(t, p, 0.1666657030582428)
    p = tl.fma(t, p, 0.21568897366523743)
    p = tl.fma(t, p, 0.21133945882320404)
    return tl.exp2(tl.fma(x * x, POWER * -LOG2E, SHIFT)) * (t * p)


@helper
def erfc_half(x):
    y = gauss_tail_half(x, 0.375, 1.0, 0.0)
    return tl.where(x < 0, 2.0 - y, y)


@helper
def ndtr_half(x):
    y = gauss_tail_half(x, 0.2651650429449553, 0.5, -1.0)
    return tl.where(x > 0, 1.0 - y, y)
