"""Triton's side of the bandwidth ceilings: one kernel for every mix of streams read and written. Imported only on a GPU."""

# Compile-time arguments are UPPER, and the arguments of a jitted body are blocks, for which Python has no type.
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

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


@triton.jit
def empty_kernel(_x, PDL: tl.constexpr):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()


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


def launch_empty(x: torch.Tensor, pdl: bool) -> None:
    """A kernel that does nothing: the floor under every launch."""
    options = {"launch_pdl": True} if pdl else {}
    empty_kernel[(1,)](x, PDL=pdl, num_warps=1, **options)
