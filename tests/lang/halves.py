"""All numbers of the 16-bit types, the truth of what is computed from them, and the error in their own ulp."""

import numpy as np
import torch

DTYPES = [torch.bfloat16, torch.float16]


def _gelu_tanh(x):
    """In the form that does not cancel: x * sigmoid(2u)."""
    return x * torch.sigmoid(x * (1.5957691216057308 + 0.07135481627260025 * x * x))


TRUTH = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "silu": lambda x: x * torch.sigmoid(x),
    "silu_mul": lambda x, y: x * torch.sigmoid(x) * y,
    "gelu": lambda x: x * torch.erfc(x * -(0.5**0.5)) * 0.5,
    "gelu_tanh": _gelu_tanh,
}


def every(dtype):
    """All 65536 numbers of a 16-bit dtype."""
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)


def ulps16(got, truth):
    """Error of a 16-bit `got` against the float64 truth, in units of the last place of got's dtype; inf beside NaN."""
    info = torch.finfo(got.dtype)
    lowest, digits = int(np.log2(info.tiny)), -int(np.log2(info.eps))
    size = torch.floor(torch.log2(torch.where(truth.isfinite() & (truth != 0), truth.abs(), 1.0))).clamp(min=lowest)
    error = (got.double() - truth).abs() / torch.exp2(size - digits)
    same = (got.double() == truth) | (got.isnan() & truth.isnan()) | (got == truth.to(got.dtype))
    return torch.where(same, 0.0, torch.where(error.isnan(), torch.inf, error))
