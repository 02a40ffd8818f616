"""Ops that `rafters check` is asked about: a right one of every kind, and some with a fault of their author's."""

import torch

import rafters
from rafters import View, lang, tl


@rafters.elementwise
def swish(x, gate, alpha: float = 1.0):
    return x * gate * lang.sigmoid(alpha * gate)


@rafters.elementwise(accepts="float", views={"gate": View("x", "lo"), "up": View("x", "hi")})
def packed_gate(gate, up):
    return gate * lang.sigmoid(gate) * up


@rafters.elementwise(views={"row": View("table", rows="positions")})
def plus_row(x, row):
    return x + row


@rafters.rowwise(accepts="float")
def norm(x, weight, eps: float = 1e-6):
    return x * lang.rsqrt(lang.row_mean(x * x) + eps) * weight


def twice_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o, mask=o < n)
    tl.store(out_ptr + o, x * 2, mask=o < n)


@rafters.kernel(twice_kernel, reference=lambda x: x * 2)
def twice(x):
    return rafters.Launch(out=torch.empty_like(x), grid=-(-x.numel() // 256), n=x.numel(), BLOCK=256)


def short_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o, mask=o < n)
    tl.store(out_ptr + o, x * 2, mask=o < n - 1)


@rafters.kernel(short_kernel, reference=lambda x: x * 2)
def short(x):
    """Its kernel forgets the last element."""
    return rafters.Launch(out=torch.empty_like(x), grid=-(-x.numel() // 256), n=x.numel(), BLOCK=256)


@rafters.elementwise(reference=lambda x, y: x + 2 * y)
def not_as_it_says(x, y):
    """Its reference is another function than its body."""
    return x + y


def far_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + o.to(tl.int64) * 2**50, mask=o < n)
    tl.store(out_ptr + o, x, mask=o < n)


@rafters.kernel(far_kernel, reference=lambda x: x + 0)
def reads_far_off(x):
    """Its kernel reads where there is no memory."""
    return rafters.Launch(out=torch.empty_like(x), grid=-(-x.numel() // 256), n=x.numel(), BLOCK=256)
