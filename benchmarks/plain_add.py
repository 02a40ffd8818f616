"""The textbook Triton add: what a first kernel looks like, and what `rafters.add` has to equal."""

from collections.abc import Callable

import torch
import triton
import triton.language as tl

BLOCK, WARPS = 1024, 4


def _add_kernel(p_x, p_y, p_out, n, BLOCK: tl.constexpr):  # noqa: N803  (compile-time, as everywhere in Triton)
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(p_x + o, mask=m)
    y = tl.load(p_y + o, mask=m)
    tl.store(p_out + o, x + y, mask=m)


# Triton specializes on sizes that are multiples of 16: the mask can then be proved and costs nothing.
_specialized = triton.jit(_add_kernel)
_unspecialized = triton.jit(_add_kernel, do_not_specialize=["n"])


def _launcher(kernel: object) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        n = x.numel()
        kernel[(triton.cdiv(n, BLOCK),)](x, y, out, n, BLOCK=BLOCK, num_warps=WARPS)
        return out

    return add


textbook = _launcher(_specialized)
masked = _launcher(_unspecialized)
