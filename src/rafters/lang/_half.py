"""The elementary functions for values that came from 16-bit memory: relative error 2^-17, subnormal results included.

The arguments are float32 and of any size: a body may have scaled the values it read. `tl.exp2` and `tl.rsqrt` are the fast
instructions of the device (relative errors 2^-22.5 and 2^-22.9); the square of the latter is the cheapest reciprocal that Triton
offers, four instructions and a multiplication against nine for `1.0 / d`.
"""

from rafters.lang._define import helper, tl

LOG2E = 1.4426950408889634
TO_M24 = 5.9604644775390625e-08  # 2^-24
TANH_NEAR_0 = 0.1
TANH_CUBIC = -0.33223301


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
