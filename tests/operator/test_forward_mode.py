"""Forward mode by derived ops: dual tensors give PyTorch's tangents, never a silent zero."""

import pytest
import torch
import torch.autograd.forward_ad as forward
import torch.nn.functional as F

import rafters
from rafters import Output, View, lang, ops, tl

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
X, Y, W = ((3, 4), (3, 4), (4,))


@rafters.elementwise(name="t_forward::halves", views={"gate": View("x", "lo"), "up": View("x", "hi")})
def halves(gate, up, alpha: float = 1.0):
    return gate * lang.sigmoid(alpha * gate) * up


@rafters.elementwise(name="t_forward::summed", outputs=(Output("w", sum_to="w"),))
def summed(x, w):
    return x * w


@rafters.elementwise(name="t_forward::several")
def several(x, y):
    return x * y, x > y, x + y


@rafters.elementwise(name="t_forward::cut", accepts="float")
def cut(x):
    return x.to(tl.int32).to(tl.float32)


@rafters.rowwise(name="t_forward::rms_norm")
def rms_norm(x, weight, eps: float = 1e-6):
    return x * lang.rsqrt(lang.row_mean(x * x) + eps) * weight


@rafters.rowwise(name="t_forward::spread", outputs=(Output("x", per_row=True),))
def spread(x):
    centred = x - lang.row_mean(x)
    return lang.row_sum(centred * centred)


def torch_spread(x):
    centred = x - x.mean(-1, keepdim=True)
    return (centred * centred).sum(-1, keepdim=True)


def torch_halves(x, alpha=1.0):
    gate, up = x.chunk(2, -1)
    return gate * torch.sigmoid(alpha * gate) * up


CASES = {
    "add": (ops.add, torch.add, (X, W), ()),
    "mul": (ops.mul, torch.mul, (W, X), ()),
    "div": (ops.div, torch.div, (X, Y), ()),
    "lerp": (ops.lerp, torch.lerp, (X, Y, W), ()),
    "gelu": (ops.gelu, F.gelu, (X,), ()),
    "softcap": (ops.softcap, lambda x, cap: cap * torch.tanh(x / cap), (X,), (2.0,)),
    "silu_mul": (ops.silu_mul, lambda g, u: F.silu(g) * u, (X, W), ()),
    "halves": (halves, torch_halves, ((3, 8),), (1.5,)),
    "rms_norm": (rms_norm, lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), (X, W), ()),
    "spread": (spread, torch_spread, (X,), ()),
    "summed": (summed, lambda x, w: (x * w).sum(0), (X, W), ()),
}


def drawn(shape, seed, dtype, device):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=["fp32", "fp64", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_tangents_of_all_and_of_each_argument(name, dtype, device):
    op, function, shapes, numbers = CASES[name]
    primals = [drawn(s, i, dtype, device) for i, s in enumerate(shapes)]
    tangents = [drawn(s, 10 + i, dtype, device) for i, s in enumerate(shapes)]
    for moved in [range(len(shapes)), *([i] for i in range(len(shapes)))]:
        with forward.dual_level():
            duals = [forward.make_dual(p, tangents[i]) if i in moved else p for i, p in enumerate(primals)]
            got = forward.unpack_dual(op(*duals, *numbers))
            exact = [
                forward.make_dual(p.double(), tangents[i].double()) if i in moved else p.double() for i, p in enumerate(primals)
            ]
            want = forward.unpack_dual(function(*exact, *numbers))
        limit = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}[dtype]
        assert got.tangent.dtype is got.primal.dtype is dtype
        torch.testing.assert_close(got.primal.double(), want.primal, rtol=limit, atol=limit)
        torch.testing.assert_close(got.tangent.double(), want.tangent, rtol=limit, atol=limit)


def test_the_tangent_is_an_op_of_its_own():
    with forward.dual_level():
        ops.silu(forward.make_dual(torch.randn(3), torch.randn(3)))
        spread(forward.make_dual(torch.randn(2, 3), torch.randn(2, 3)))
    assert hasattr(torch.ops.rafters, "silu_jvp")
    assert hasattr(torch.ops.t_forward, "spread_jvp")


def test_several_results_and_one_without_a_tangent():
    x, y = torch.randn(3), torch.randn(3)
    with forward.dual_level():
        product, larger, total = several(forward.make_dual(x, torch.ones(3)), y)
        assert torch.equal(forward.unpack_dual(product).tangent, y)
        assert torch.equal(forward.unpack_dual(total).tangent, torch.ones(3))
        assert forward.unpack_dual(larger).tangent is None
        assert torch.equal(larger, x > y)


def test_what_has_no_derivative_has_no_tangent():
    with forward.dual_level():
        assert forward.unpack_dual(cut(forward.make_dual(torch.randn(3), torch.ones(3)))).tangent is None


def test_forward_over_reverse_and_reverse_over_forward():
    x, w = torch.randn(3, 4, dtype=torch.float64, requires_grad=True), torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ops.silu_mul, (x, w), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(ops.silu_mul, (x, w), check_fwd_over_rev=True, check_rev_over_rev=True)
