"""What quantizers need: a saturating cast to 8-bit floats, and the exact quotient by a scale that a whole row shares."""

import torch

from rafters.lang._define import define, tl
from rafters.lang.extrema import clamp


def _cast_meaning(x, dtype):
    dtype = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}.get(str(dtype), dtype)
    limit = torch.finfo(dtype).max
    return torch.clamp(x, -limit, limit).to(dtype)


@define(_cast_meaning)
def cast_fp8(x, dtype: "tl.constexpr"):
    """x as float8e4nv or float8e5: nearest even, saturating, NaN stays NaN."""
    if dtype == tl.float8e5:
        y = clamp(x, -57344.0, 57344.0)
    else:
        y = clamp(x, -448.0, 448.0)
    return y.to(dtype)


@define(torch.div)
def div_by(x, scale):
    """x / scale, rounded correctly."""
    return tl.div_rn(x, scale)
