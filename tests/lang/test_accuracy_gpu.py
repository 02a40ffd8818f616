"""Every word on the device against float64, on dense samples of all of float32."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rafters import lang

sys.path.insert(0, str(Path(__file__).parent))

from kernels import float32_samples, kernel

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
FLOAT = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log1p",
    "sqrt",
    "rsqrt",
    "erf",
    "sigmoid",
    "tanh",
    "sin",
    "cos",
    "rint",
    "floor",
    "ceil",
]
COUNT = 10_000_384  # a multiple of 1024
OPTIONS = {"enable_fp_fusion": False}


def run(name, out, *args):
    options = OPTIONS | ({} if torch.version.hip else {"enable_reflect_ftz": False})
    kernel(name, 1024)[(out.numel() // 1024,)](*args, out, num_warps=4, **options)
    return out


def ulps(got, truth, digits, lowest):
    """Error in units of the last place of the truth (float64, on the device)."""
    size = torch.floor(torch.log2(torch.where(truth.isfinite() & (truth != 0), truth.abs(), 1.0))).clamp(min=lowest)
    error = (got.double() - truth).abs() / torch.exp2(size - digits)
    overflow = got.isinf() & (got.sign() == truth.sign()) & (truth.abs() >= 3.4028235677973366e38)
    same = overflow | (got.isnan() & truth.isnan()) | (got.double() == truth)
    return torch.where(same, 0.0, torch.where(error.isnan(), torch.inf, error))


@pytest.mark.parametrize("name", FLOAT)
def test_float32(name):
    x = torch.from_numpy(float32_samples(COUNT)).cuda()
    truth = lang.WORDS[name].meaning(x.double())
    got = run(name, torch.empty_like(x), x)
    error = ulps(got, truth, 23, -126)
    worst = error.argmax()
    assert error[worst] <= 2, f"{name}({x[worst].item()!r}) = {got[worst].item()!r}, {error[worst].item():.2f} ulp off"
    zero = (got == 0) & (truth == 0)
    assert torch.equal(got[zero].signbit(), truth[zero].signbit())


@pytest.mark.parametrize("name", FLOAT)
def test_float64(name):
    """Against torch's own float64 kernel, itself within 2 ulp: 4 apart at most."""
    x = torch.from_numpy(float32_samples(1024 * 1024)).cuda().double()
    x = x * (1 + torch.rand_like(x) * 1e-7)
    truth = lang.WORDS[name].meaning(x)
    got = run(name, torch.empty_like(x), x)
    same = (got == truth) | (got.isnan() & truth.isnan())
    apart = (got.view(torch.int64) - truth.view(torch.int64)).abs()
    assert torch.where(same, 0, apart).max() <= 4


@pytest.mark.parametrize("name", ["div", "div_by"])
def test_quotients_are_ieee(name):
    x, y = (torch.from_numpy(float32_samples(COUNT, seed)).cuda() for seed in (1, 2))
    y = y[torch.randperm(COUNT, device="cuda")]
    want = torch.from_numpy(np.divide(x.cpu().numpy(), y.cpu().numpy())).cuda()
    got = run(name, torch.empty_like(x), x, y)
    size = want.abs()
    # div_by is exact for quotients from 2^-100 to 2^127, and at 0, inf and NaN.
    held = torch.ones_like(want, dtype=torch.bool) if name == "div" else ~((size > 0) & (size < 2.0**-100)) & (size < 2.0**127)
    assert torch.equal(got[held].nan_to_num(7.0), want[held].nan_to_num(7.0))


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extrema(name):
    x, y = (torch.from_numpy(float32_samples(COUNT, seed)).cuda() for seed in (3, 4))
    y = y[torch.randperm(COUNT, device="cuda")]
    want = getattr(torch, name)(x, y)
    assert torch.equal(run(name, torch.empty_like(x), x, y).nan_to_num(7.0), want.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_cast_fp8(dtype):
    import triton
    import triton.language as tl

    cast, kind = lang.cast_fp8, tl.float8e5 if dtype == torch.float8_e5m2 else tl.float8e4nv
    names = {"tl": tl, "cast": cast, "KIND": tl.constexpr(kind), "__name__": "cast_kernel"}
    at = "tl.program_id(0) * 1024 + tl.arange(0, 1024)"
    source = f"def run(x, out):\n    at = {at}\n    tl.store(out + at, cast(tl.load(x + at), KIND))\n"
    import linecache

    file = f"<cast {dtype}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), names)
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    dense = torch.exp2(torch.rand(1 << 20) * 44 - 24) * torch.randn(1 << 20).sign()
    x = torch.cat([every, dense])
    out = torch.empty(x.shape, dtype=dtype, device="cuda")
    triton.jit(names["run"])[(x.numel() // 1024,)](x.cuda(), out)
    want = lang.WORDS["cast_fp8"].meaning(x, kind)
    got = out.cpu()
    nan = got.float().isnan() & want.float().isnan()
    assert torch.equal(got.view(torch.uint8)[~nan], want.view(torch.uint8)[~nan])
