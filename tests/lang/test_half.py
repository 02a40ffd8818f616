"""The codes for 16-bit values: every bfloat16 and every float16, with the approximate instructions wrong by all that PTX allows."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rafters import lang, ops
from rafters.trace.names import for_triton

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from kernels import compiled
from ptx_machine import Machine

# ex2.approx is within 2 ulp; rsqrt.approx within a relative 2^-22.9, which is 2.2 ulp at most.
OFF = [{"ex2": 0.0, "rsqrt": 0.0}, *({"ex2": e, "rsqrt": r} for e in (-2.0, 2.0) for r in (-2.2, 2.2))]
DTYPES = [torch.bfloat16, torch.float16]
TRUTH = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
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


def code(name):
    """The half form of a word or of an op's body."""
    return lang.WORDS[name].half_jit if name in lang.WORDS else for_triton(getattr(ops, name).spec.body.function, half=True)


@pytest.mark.parametrize("name", TRUTH)
def test_every_half(name):
    ptx = compiled(name, ("cuda", 90, 32), word=code(name)).asm["ptx"]
    for dtype in DTYPES:
        x = every(dtype)
        truth = TRUTH[name](x.double())
        for off in OFF:
            result = torch.from_numpy(Machine(ptx, off)(np.float32, x.float().numpy()).copy())
            got = result.to(dtype)
            error = ulps16(got, truth)
            worst = error.argmax()
            assert error[worst] <= 1, f"{name}({x[worst].item()!r}) = {got[worst].item()!r}, truth {truth[worst].item()!r} {off}"
            zero = (got == 0) & (truth == 0)
            assert torch.equal(got[zero].signbit(), truth[zero].signbit())
