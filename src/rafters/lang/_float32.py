"""The elementary functions in float32, by multiplications and fused multiply-adds alone.

No approximate instruction is used: a word gives the same bits on every device, and its error can be measured without one. The
polynomials are minimax fits with float32 coefficients. Constants are written so that they are what float32 makes of them.
"""

from rafters.lang._define import helper, tl

INF = float("inf")
LOG2E = 1.4426950216293335
LOG2E_LOW = 1.9259629911266175e-08
LN2 = 0.693145751953125  # 16 bits: times a whole number below 2^8 it is exact
LN2_LOW = 1.4286067653302e-06
LN2_NEAREST = 0.6931471824645996
# Added to a float32 of magnitude below 2^22 it leaves the nearest whole number k in the last bits. With 127 (the bias of the
# exponent) added to it as well, `bits << 23` is the float32 2^k.
ROUND = 12582912.0
TO_64 = 1.8446744073709552e19  # 2^64
TO_M64 = 5.421010862427522e-20  # 2^-64


@helper
def clip32(x, low: "tl.constexpr", high: "tl.constexpr"):
    """x within [low, high]; NaN stays."""
    y = x
    if low is not None:
        y = tl.maximum(y, low, propagate_nan=tl.PropagateNan.ALL)
    if high is not None:
        y = tl.minimum(y, high, propagate_nan=tl.PropagateNan.ALL)
    return y


@helper
def copysign32(magnitude, sign):
    """|magnitude| with the sign of `sign`."""
    x, s = magnitude.to(tl.int32, bitcast=True), sign.to(tl.int32, bitcast=True)
    return (((x ^ s) & 0x7FFFFFFF) ^ s).to(tl.float32, bitcast=True)


@helper
def expm1_near_0(r):
    """e^r - 1 for |r| <= ln(2) / 2; relative error of the polynomial 2^-26."""
    q = tl.fma(r, 0.0013940664939582348, 0.008366405963897705)
    q = tl.fma(r, q, 0.04166640341281891)
    q = tl.fma(r, q, 0.1666654497385025)
    q = tl.fma(r, q, 0.5)
    return tl.fma(r * r, q, r)


@helper
def exp_parts(x, shift):
    """(t, s) with e^x = (1 + t) * s * 2^-shift, s a power of two; for |x| < 2^7 and s within the normal numbers."""
    offset = shift + (ROUND + 127.0)
    rounded = tl.fma(x, LOG2E, offset)
    k = rounded - offset
    r = tl.fma(k, -LN2_LOW, tl.fma(k, -LN2, x))
    s = (rounded.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)
    return expm1_near_0(r), s


@helper
def exp32(x):
    # s is kept 2^64 away from the ends, so that the last product alone rounds into the subnormals, or overflows.
    x = clip32(x, -104.0, 89.0)
    t, s = exp_parts(x, tl.where(x < 0, 64.0, -64.0))
    return tl.fma(t, s, s) * tl.where(x < 0, TO_M64, TO_64)


@helper
def exp2_32(x):
    x = clip32(x, -151.0, 129.0)
    shift = tl.where(x < 0, ROUND + 191.0, ROUND + 63.0)
    rounded = x + shift
    s = (rounded.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)
    t = expm1_near_0((x - (rounded - shift)) * LN2_NEAREST)
    return tl.fma(t, s, s) * tl.where(x < 0, TO_M64, TO_64)


@helper
def expm1_32(x):
    y = clip32(x, -25.0, 89.0)
    t, s = exp_parts(y, -1.0)  # half of 2^k: 2^128 is no float32
    y = tl.where(tl.abs(y) < 0.25, t, tl.fma(s, t, s - 0.5) * 2.0)
    return tl.where(x == 0, x, y)


@helper
def near_reciprocal(d):
    """1 / d for 1 <= d <= 2 to 2^-18: a cubic and one Newton step. A quotient that uses it is corrected by its remainder."""
    r = tl.fma(d, -0.22183699905872345, 1.3310221433639526)
    r = tl.fma(d, r, -2.939340829849243)
    r = tl.fma(d, r, 2.8284225463867188)
    return tl.fma(tl.fma(d * -1.0, r, 1.0), r, r)


@helper
def sigmoid32(x):
    # With e = e^-|x|: 1 / (1 + e) to the right of zero, e / (1 + e) to the left; e keeps its accuracy down to the subnormals.
    # The remainder is taken from 1 and e, so that the rounding of 1 + e does not count.
    t, s = exp_parts(clip32(tl.abs(x) * -1.0, -104.0, None), 64.0)
    e = tl.fma(t, s, s) * TO_M64
    r = near_reciprocal(1.0 + e)
    top = tl.where(x < 0, e, 1.0)
    y = top * r
    return tl.fma(tl.fma(e * -1.0, y, top - y), r, y)


@helper
def tanh32(x):
    # With m = e^(-2|x|) - 1: tanh|x| = -m / (2 + m), the remainder again from m and 2.
    t, s = exp_parts(clip32(tl.abs(x) * -2.0, -20.0, None), 0.0)
    m = tl.fma(s, t, s - 1.0)
    r = near_reciprocal(m + 2.0)
    y = m * r
    y = tl.fma(tl.fma(m * -1.0, y, tl.fma(y, -2.0, m)), r, y)
    return copysign32(y, x)


@helper
def log1p_near_0(f):
    """log(1 + f) for |f| <= 1/3; relative error of the polynomial 2^-27."""
    g = tl.fma(f, -0.12880048155784607, 0.13984593749046326)
    g = tl.fma(f, g, -0.12187478691339493)
    g = tl.fma(f, g, 0.14005734026432037)
    g = tl.fma(f, g, -0.16680195927619934)
    g = tl.fma(f, g, 0.2001042664051056)
    g = tl.fma(f, g, -0.2499980628490448)
    g = tl.fma(f, g, 0.3333321511745453)
    g = tl.fma(f, g, -0.5)
    return tl.fma(f * f, g, f)


@helper
def log_parts(x):
    """(e, y) with log(x) = e * ln(2) + y, e whole, for 0 < x < inf."""
    tiny = x < 1.1754943508222875e-38
    bits = tl.where(tiny, x * 8388608.0, x).to(tl.int32, bitcast=True)
    e = (bits - 0x3F2AAAAB) >> 23  # so that the rest lies within [2/3, 4/3)
    f = (bits - (e << 23)).to(tl.float32, bitcast=True) - 1.0
    return e.to(tl.float32) + tl.where(tiny, -23.0, 0.0), log1p_near_0(f)


@helper
def log_ends(x, y):
    """y, the logarithm of x, mended at 0, inf, NaN and below 0."""
    # float("nan") in place: Triton compares the globals of a kernel with those it was compiled with, and NaN is not NaN.
    return tl.where(x > 0, tl.where(x < INF, y, x), tl.where(x == 0, -INF, float("nan")))


@helper
def log32(x):
    e, y = log_parts(x)
    return log_ends(x, tl.fma(e, LN2, tl.fma(e, LN2_LOW, y)))


@helper
def log2_32(x):
    e, y = log_parts(x)
    return log_ends(x, tl.fma(y, LOG2E, tl.fma(y, LOG2E_LOW, e)))


@helper
def log1p32(x):
    # u = 1 + x gives the exponent; f = (1 + x) / 2^e - 1 is then taken from x itself. A quarter of x, as 2^-128 is not normal.
    u = 1.0 + x
    e = (u.to(tl.int32, bitcast=True) - 0x3F2AAAAB) >> 23
    s = (0x40800000 - (e << 23)).to(tl.float32, bitcast=True)  # 2^(2 - e)
    y = log1p_near_0(tl.fma(x * 0.25, s, tl.fma(s, 0.25, -1.0)))
    e = e.to(tl.float32)
    y = log_ends(u, tl.fma(e, LN2, tl.fma(e, LN2_LOW, y)))
    return tl.where(tl.abs(x) < 2.9802322387695312e-08, x, y)


@helper
def gauss_tail(x, LIMIT: "tl.constexpr", RATE: "tl.constexpr", POWER: "tl.constexpr", FACTOR: "tl.constexpr"):
    """FACTOR * erfc(z), z = |x| * sqrt(POWER); 0 from LIMIT on. RATE is 3/8 * sqrt(POWER), FACTOR at least 1/2."""
    # e^(-z^2) * t * p(t - 5/8) with t = 1 / (1 + 3/8 z). What the rounding of the divisor lost is put back.
    x = clip32(tl.abs(x), None, LIMIT)
    d = tl.fma(x, RATE, 1.0)
    t = (0x7EF311C3 - d.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)  # 1 / d to 12 %
    e = tl.fma(d * -1.0, t, 1.0)
    t = tl.fma(tl.fma(e, e, e), t, t)
    e = tl.fma(tl.fma(x, RATE, 1.0 - d) * -1.0, t, tl.fma(d * -1.0, t, 1.0))
    t = tl.fma(tl.fma(e, e, e), t, t)
    w = t - 0.625
    p = tl.fma(w, 0.06131735071539879, 0.020299918949604034)
    p = tl.fma(w, p, -0.15153968334197998)
    p = tl.fma(w, p, -0.12356218695640564)
    p = tl.fma(w, p, 0.29247966408729553)
    p = tl.fma(w, p, 0.8151346445083618)
    p = tl.fma(w, p, 1.0315313339233398)
    p = tl.fma(w, p, 0.8478378653526306)
    p = tl.fma(w, p, 0.489524781703949)
    # As exp_parts, but the remainder r is taken from the exact product z * z.
    offset = 64.0 + (ROUND + 127.0)
    z2 = x * POWER
    rounded = tl.fma(x * z2, -LOG2E, offset)
    k = rounded - offset
    r = tl.fma(k, -LN2_LOW, tl.fma(x * -1.0, z2, k * -LN2))
    s = (rounded.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)
    y = t * p * s
    return tl.fma(expm1_near_0(r), y, y) * (FACTOR * TO_M64)


@helper
def erfc32(x):
    y = gauss_tail(x, 10.2, 0.375, 1.0, 1.0)
    return tl.where(x < 0, 2.0 - y, y)


@helper
def ndtr32(x):
    y = gauss_tail(x, 14.4, 0.2651650429449553, 0.5, 0.5)
    return tl.where(x > 0, 1.0 - y, y)
