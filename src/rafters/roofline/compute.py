"""Compute ceilings: fp32 multiply-adds and the matrix products that torch has, in a burst and sustained."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rafters.dtypes import dtype_name
from rafters.errors import MeasureError
from rafters.roofline import choosing, sampling
from rafters.roofline import clocks as clocking
from rafters.roofline.ceiling import ComputeCeiling
from rafters.roofline.rotation import Rotation
from rafters.roofline.statistics import summarize

_COOL_S = 0.3


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic to time: `run` does `flops` operations; `check` says whether its result is right."""

    name: str
    dtype: str
    flops: int
    run: Callable[[], Any]
    check: Callable[[Any], bool]


def compute_ceilings(device: torch.device, *, quick: bool, progress: Callable[[str], None]) -> tuple[ComputeCeiling, ...]:
    """What `device` can do of each kind; kinds that it or this torch does not have are left out."""
    found = []
    for work in _works(device):
        progress(f"compute: {work.name}")
        try:
            right = work.check(work.run())
        except (RuntimeError, NotImplementedError, ValueError):  # this device has no such product
            continue
        if not right:
            raise MeasureError(f"compute ceiling {work.name}: wrong result on {device}")
        found.append(_time(work, device, sustain_s=0.3 if quick else 2.0))
    return tuple(found)


def _time(work: Work, device: torch.device, sustain_s: float) -> ComputeCeiling:
    """Burst: the best of the first block after a pause. Sustained: the median once the clocks have settled under load."""
    read_clocks = clocking.reader(device)
    timer = choosing.choose(work.run, Rotation([()], hot=True), device)
    try:
        time.sleep(_COOL_S if device.type == "cuda" else 0.0)
        timer.enqueue()
        burst = min(timer.collect())
        sampling.warm_up(timer, read_clocks, sustain_s)
        timer.enqueue()
        sustained = summarize(timer.collect()).median
    finally:
        timer.close()
    return ComputeCeiling(work.name, work.dtype, work.flops / min(burst, sustained), work.flops / sustained)


def _works(device: torch.device) -> Iterator[Work]:
    on_gpu = device.type == "cuda"
    if on_gpu and (fma := _fma(device)):
        yield fma
    size = 8192 if on_gpu else 1024
    if not on_gpu:
        yield _product("fp32 matmul", size, torch.float32, device)
    yield _product("bf16 matmul", size, torch.bfloat16, device)
    if on_gpu and hasattr(torch, "_scaled_mm"):
        yield _fp8_product(size, device)


def _product(name: str, size: int, dtype: torch.dtype, device: torch.device) -> Work:
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    out = torch.empty(size, size, device=device, dtype=dtype)
    return Work(name, dtype_name(dtype), 2 * size**3, lambda: torch.mm(a, b, out=out), lambda r: _agrees(r, a, b))


def _fp8_product(size: int, device: torch.device) -> Work:
    a = torch.randn(size, size, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(size, size, device=device).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)

    def run() -> torch.Tensor:
        return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return Work("fp8 matmul", dtype_name(a.dtype), 2 * size**3, run, lambda r: _agrees(r, a, b))


def _agrees(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the first rows are the product, in norm: an error of rounding inputs is none, one of 5 % is a wrong product."""
    want = a[:8].double() @ b.double()
    return bool((result[:8].double() - want).norm() < 0.05 * want.norm())


def _fma(device: torch.device) -> Work | None:
    try:
        from rafters.roofline import stream_kernels
    except ImportError:
        return None
    return Work("fp32 FMA", "fp32", *stream_kernels.fma_work(device))
