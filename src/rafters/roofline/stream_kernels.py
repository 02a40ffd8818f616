"""Triton's side of the ceilings: a kernel for every mix of streams, one of multiply-adds. Imported only on a GPU."""

# Compile-time arguments are UPPER, and the arguments of a jitted body are blocks, for which Python has no type.
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# (elements of float32 a program, warps): one or two 16-byte vectors a thread and as many programs as it takes. Unrolling
# further, persistent grids and cache hints were slower wherever they were tried.
SHAPES = ((512, 4), (1024, 8), (1024, 4), (2048, 8), (256, 2))


@triton.jit
def stream_kernel(a, b, c, out, second, scale, READS: tl.constexpr, WRITES: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if PDL:
        gdc_wait()
    value = tl.full((BLOCK,), 0.0, tl.float32) + scale
    if READS > 0:
        value = tl.load(a + at)
    if READS > 1:
        value += scale * tl.load(b + at)
    if READS > 2:
        value += scale * tl.load(c + at)
    if PDL:
        gdc_launch_dependents()
    if WRITES == 0:
        # One number a program keeps the loads alive; it is 1/256 of the traffic at most and not counted.
        tl.store(out + tl.program_id(0), tl.sum(value, axis=0))
    if WRITES > 0:
        tl.store(out + at, value)
    if WRITES > 1:
        tl.store(second + at, value)


def launch(
    reads: list[torch.Tensor], writes: list[torch.Tensor], mix_writes: int, scale: float, shape: tuple[int, int], pdl: bool
) -> None:
    """One launch over whole arrays, multiples of the block. Unused operands repeat a used one; a read writes its sums."""
    block, warps = shape
    count = (reads or writes)[0].numel()
    a, b, c = (reads + [writes[0]] * 3)[:3]
    options = {"launch_pdl": True} if pdl else {}
    stream_kernel[(count // block,)](
        a,
        b,
        c,
        writes[0],
        writes[-1],
        scale,
        READS=len(reads),
        WRITES=mix_writes,
        BLOCK=block,
        PDL=pdl,
        num_warps=warps,
        **options,
    )


@triton.jit
def fma_kernel(out, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # x -> x / 2 + 1 goes to 2 from anywhere: the result can be checked, and no round can be left out.
    x = at.to(tl.float32) * 0.0009765625
    half, one = tl.full((BLOCK,), 0.5, tl.float32), tl.full((BLOCK,), 1.0, tl.float32)
    for _ in range(ROUNDS):
        for _ in tl.static_range(32):
            x = tl.fma(x, half, one)
    tl.store(out + at, x)


def fma_work(device: torch.device) -> tuple[int, Callable[[], torch.Tensor], Callable[[torch.Tensor], bool]]:
    """FLOPs, the launch and the check of dependent multiply-adds, four chains a thread and 64 warps an SM."""
    block, rounds = 512, 256
    programs = torch.cuda.get_device_properties(device).multi_processor_count * 64
    out = torch.empty(programs * block, device=device)

    def run() -> torch.Tensor:
        fma_kernel[(programs,)](out, ROUNDS=rounds, BLOCK=block, num_warps=4)
        return out

    return 2 * 32 * rounds * block * programs, run, lambda result: bool(((result - 2).abs() < 1e-5).all())
