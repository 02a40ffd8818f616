"""What quantizers need: a saturating cast to 8-bit floats, and the exact quotient by a scale that a whole row shares."""

import torch

from rafters.lang._define import INTERPRETED, define, helper, tl
from rafters.lang._float32 import copysign32
from rafters.lang.arithmetic import _real
from rafters.lang.extrema import clamp

_TORCH_TYPES = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}


def _cast_meaning(x, dtype):
    dtype = _TORCH_TYPES.get(str(dtype), dtype)
    limit = torch.finfo(dtype).max
    return torch.clamp(x, -limit, limit).to(dtype)


@helper
def _round_to_bits(x, MANTISSA: "tl.constexpr", LOWEST: "tl.constexpr"):
    """float32 x at the nearest number (half to even) of MANTISSA bits after the point and smallest normal exponent LOWEST."""
    # 1.5 * 2^(23 - MANTISSA) times the power of two below |x|: its last place is the one to round to.
    exponent = tl.maximum(x.to(tl.int32, bitcast=True) & 0x7F800000, (127 + LOWEST) << 23)
    c = ((exponent + ((23 - MANTISSA) << 23)) | 0x400000).to(tl.float32, bitcast=True)
    return tl.where(x == x, copysign32((x + c) - c, x), float("nan"))


@define(_cast_meaning)
def cast_fp8(x, dtype: "tl.constexpr"):
    """x as `tl.float8e4nv` or `tl.float8e5`: nearest even, saturating (448, 57344; infinities too), NaN stays NaN.

    float8e4nv needs sm_89 or newer, whose conversion is exact. Elsewhere Triton's own conversions truncate or round twice
    (float8e5 before sm_89, the interpreter), so the value is rounded first.
    """
    y = x.to(tl.float32)
    if dtype == tl.float8e5:
        z = _round_to_bits(clamp(y, -57344.0, 57344.0), 2, -14).to(dtype)
    elif INTERPRETED:  # it also makes a number of a NaN
        z = _round_to_bits(clamp(y, -448.0, 448.0), 3, -6).to(dtype)
        z = tl.where(y == y, z.to(tl.uint8, bitcast=True), 0x7F).to(tl.uint8).to(dtype, bitcast=True)
    else:
        z = clamp(y, -448.0, 448.0).to(dtype)
    return z


@define(torch.true_divide, real=True)
def div_by(x, scale):
    """x / scale for a scale that many elements share: a multiplication by its reciprocal and two fused multiply-adds each.

    The IEEE quotient wherever its magnitude is from 2^-100 to 2^127, within 2 ulp below; so the codes of any 8-bit or 4-bit
    format are those of a true division. Infinities, NaN and a scale of 0 or inf give what a division gives.
    """
    x, scale = _real(x), _real(scale)
    if (x.dtype == tl.float64) or (scale.dtype == tl.float64):
        y = x / scale
    else:
        # A power of two brings the scale to [1/2, 1), where its reciprocal and the remainders are exact enough; all of this is
        # done once a row. 2^126 is the largest such power whose own exponent is in range; a subnormal scale takes no more.
        bits = scale.to(tl.int32, bitcast=True) & 0x7F800000
        power = tl.minimum(tl.maximum(0x7E800000 - bits, 0x00800000), 0x7E800000).to(tl.float32, bitcast=True)
        s = scale * power
        r = tl.div_rn(1.0, s)
        x = x * power
        q = x * r
        y = tl.fma(tl.fma(s * -1.0, q, x), r, q)
        y = tl.where(tl.abs(y) > 0, y, q)  # NaN beside an infinity, and a zero without its sign
    return y
