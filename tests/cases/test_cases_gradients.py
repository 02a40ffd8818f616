"""Cases of public reports, group G: gradients."""

import pytest
import torch

import rafters
from rafters import View, lang

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@rafters.elementwise(name="t_gradient_cases::silu_and_mul", views={"gate": View("x", part="lo"), "up": View("x", part="hi")})
def silu_and_mul(gate, up):
    return gate * lang.sigmoid(gate) * up


@rafters.rowwise(name="t_gradient_cases::weighted_rms")
def weighted_rms(x, weight, eps: float = 1e-6):
    return x * lang.rsqrt(lang.row_mean(x * x) + eps) * weight


@pytest.mark.parametrize("device", DEVICES)
def test_case_70_the_gradient_of_a_broadcast_input_is_summed(device):
    a = torch.ones(3, 1, device=device, requires_grad=True)
    c = torch.arange(8.0, device=device).reshape(2, 1, 4).requires_grad_()
    rafters.mul(a, c).sum().backward()
    assert a.grad.tolist() == [[28.0]] * 3
    assert c.grad.tolist() == [[[3.0] * 4]] * 2
    w = torch.ones(2, device=device, requires_grad=True)
    rafters.mul(w.expand(3, 2), torch.arange(6.0, device=device).reshape(3, 2)).sum().backward()
    assert w.grad.tolist() == [6, 9]


@pytest.mark.parametrize("device", DEVICES)
def test_case_70_dtypes(device):
    s = torch.tensor(2.0, device=device, requires_grad=True)
    x = torch.ones(3, dtype=torch.float16, device=device, requires_grad=True)
    out = rafters.mul(s, x)
    assert out.dtype is torch.float16
    out.sum().backward()
    assert (s.grad.item(), s.grad.dtype, s.grad.shape) == (3.0, torch.float32, ())
    assert (x.grad.tolist(), x.grad.dtype) == ([2.0] * 3, torch.float16)
    y = torch.full((3,), 0.5, device=device, requires_grad=True)
    x.grad = None
    rafters.mul(x, y).sum().backward()
    assert (x.grad.tolist(), x.grad.dtype) == ([0.5] * 3, torch.float16)
    assert (y.grad.tolist(), y.grad.dtype) == ([1.0] * 3, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_case_72_backward_destroys_nothing(device):
    x, w = (torch.randn(n, device=device, generator=torch.Generator(device).manual_seed(1)) for n in ((6, 8), (8,)))
    x.requires_grad_(), w.requires_grad_()
    g = torch.randn(6, 8, device=device, generator=torch.Generator(device).manual_seed(2))
    kept = [t.detach().clone() for t in (x, w, g)]
    y = rafters.silu_mul(x, w)
    first = torch.autograd.grad(y, (x, w), g, retain_graph=True)
    second = torch.autograd.grad(y, (x, w), g)
    assert all(map(torch.equal, first, second))
    assert all(map(torch.equal, (x, w, g), kept))
    assert all(made.data_ptr() != g.data_ptr() for made in first)


@pytest.mark.parametrize("device", DEVICES)
def test_case_72_one_gradient_feeds_two_ops(device):
    """A residual: y = f(x) + x."""
    x = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device).requires_grad_()
    w = torch.linspace(0.5, 1.5, 8, dtype=torch.float64, device=device)
    for op, theirs in (
        (lambda x: rafters.silu_mul(x, w), lambda x: torch.nn.functional.silu(x) * w),
        (lambda x: weighted_rms(x, w), lambda x: torch.nn.functional.rms_norm(x, (8,), w, 1e-6)),
    ):
        got = torch.autograd.grad(rafters.add(op(x), x).sin().sum(), x)
        torch.testing.assert_close(got, torch.autograd.grad((theirs(x) + x).sin().sum(), x))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", [0, 1])
def test_case_72_an_overwritten_saved_input_is_an_error(place, device):
    x, w = (torch.ones(4, device=device, requires_grad=True) * 1 for _ in range(2))
    y = rafters.silu_mul(x, w)
    with torch.no_grad():
        (x, w)[place].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_case_73_gated_activation(dtype, device):
    g = torch.tensor([1.0, -1, 0], dtype=dtype, device=device, requires_grad=True)
    u = torch.tensor([2.0, 3, 5], dtype=dtype, device=device, requires_grad=True)
    wanted = [1.855341, 0.216988, 2.5], [0.731059, -0.268941, 0.0]
    dg, du = torch.autograd.grad(rafters.silu_mul(g, u).sum(), (g, u))
    assert dg.tolist() == pytest.approx(wanted[0], abs=1e-6)
    assert du.tolist() == pytest.approx(wanted[1], abs=1e-6)
    packed = torch.cat((g, u)).detach().repeat(2, 1).requires_grad_()  # the gate in the first half
    (dx,) = torch.autograd.grad(silu_and_mul(packed).sum(), packed)
    for row in dx.tolist():
        assert row == pytest.approx([*wanted[0], *wanted[1]], abs=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_case_73_finite_for_large_gates(device):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        g = torch.tensor([1e4, -1e4, 88.7, -88.7, 104.0, -104.0], dtype=dtype, device=device, requires_grad=True)
        u = torch.full_like(g, 2.0, requires_grad=True)
        dg, du = torch.autograd.grad(rafters.silu_mul(g, u).sum(), (g, u))
        assert dg.isfinite().all()
        assert du.isfinite().all()
        assert dg[:2].tolist() == [2.0, 0.0]
        assert du[:2].tolist() == [g[0].item(), 0.0]


def weight_gradient(op, rows, device):
    x = torch.ones(rows, 8, dtype=torch.bfloat16, device=device)
    w = torch.ones(8, dtype=torch.bfloat16, device=device, requires_grad=True)
    (dw,) = torch.autograd.grad(op(x, w), w, torch.ones_like(x))
    return dw


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [1000, 4096, 65536 + 1024])
@pytest.mark.parametrize("op", [rafters.mul, rafters.scale], ids=lambda op: op.name)
def test_case_75_the_weight_gradient_is_summed_in_float32(op, rows, device):
    """A sum in bfloat16 stops at 256; 1000 and 4096 are bfloat16 numbers, and so is 66560."""
    made = [weight_gradient(op, rows, device) for _ in range(3)]
    assert made[0].dtype is torch.bfloat16
    assert made[0].tolist() == [float(rows)] * 8
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


@pytest.mark.parametrize("device", DEVICES)
def test_case_75_the_same_bits_each_time(device):
    """Values whose sum depends on the order, beside other work on the device."""
    x = torch.randn(3000, 40, generator=torch.Generator().manual_seed(3)).to(device, torch.bfloat16)
    upstream = torch.randn(3000, 40, generator=torch.Generator().manual_seed(4)).to(device, torch.bfloat16)
    w = torch.ones(40, device=device, requires_grad=True)  # float32, so that every bit of the sum shows
    first = torch.autograd.grad(rafters.mul(x, w), w, upstream.float())[0]
    for _ in range(3):
        again = torch.autograd.grad(rafters.mul(x, w), w, upstream.float())[0]
        assert torch.equal(first, again)
    exact = (x.double() * upstream.double()).sum(0)
    torch.testing.assert_close(first.double(), exact, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_case_75_a_row_wise_weight(device):
    x = torch.ones(1000, 8, dtype=torch.bfloat16, device=device)
    w = torch.ones(8, dtype=torch.bfloat16, device=device, requires_grad=True)
    (dw,) = torch.autograd.grad(weighted_rms(x, w, 0.0), w, torch.ones_like(x))
    assert dw.tolist() == [1000.0] * 8
