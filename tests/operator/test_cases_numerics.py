"""Cases of public reports, group C: numerics of elementwise maths. What a report leaves open is read from policy.py."""

import math

import policy
import pytest
import torch

import rafters
from rafters import lang

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
INF, NAN = float("inf"), float("nan")
HALF, BF, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


@rafters.rowwise(name="t_numerics::peak")
def peak(x):
    return x * 0 + lang.row_absmax(x), x * 0 + lang.row_max(x), x * 0 + lang.row_min(x)


def is_value(got, wanted):
    return math.isnan(got) if math.isnan(wanted) else got == wanted


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [SINGLE, BF, HALF, DOUBLE])
@pytest.mark.parametrize("repeats", [1, 64])  # a scalar loop, and one of whole vectors
def test_case_27_silu_at_the_ends(repeats, dtype, device):
    x = torch.tensor([-INF, -1e4, -100, -90, -88, -20, 0, -0.0, 20, 1e4, INF, NAN], dtype=DOUBLE)
    wanted = [policy.SILU_OF_MINUS_INF, -0.0, -3.7e-42, -7.37e-38, -5.328e-37, -4.1223e-8, 0.0, -0.0, 20.0, 1e4, INF, NAN]
    x = x.to(dtype)
    made = rafters.silu(x.repeat(repeats).to(device)).cpu().view(repeats, -1)
    for row in made:
        for value, got, want in zip(x.tolist(), row.tolist(), wanted, strict=True):
            if math.isnan(want):
                assert math.isnan(got), value
            elif abs(want) < 1e-3:
                smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
                assert abs(got - want) <= max(1e-36, 1e-2 * abs(want), smallest), value
                assert math.copysign(1, got) == math.copysign(1, want), value
            else:
                near = (
                    pytest.approx(20.0, rel=1e-8) if dtype is DOUBLE and want == 20.0 else torch.tensor(want, dtype=dtype).item()
                )
                assert got == near, value


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [SINGLE, BF, HALF, DOUBLE])
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_case_29_gelu_of_large_arguments(name, dtype, device):
    op = getattr(rafters, name)
    large = torch.tensor([8, 10.5, 11, 13.24, 20, 40, 1e4, 65504], dtype=dtype, device=device)
    torch.testing.assert_close(op(large), large, rtol=1e-12 if dtype is DOUBLE else 0, atol=0)
    negative = op(-large)
    assert (negative.abs() <= 1e-12).all()
    assert (negative <= 0).all()
    ends = op(torch.tensor([INF, -INF, NAN], dtype=dtype, device=device)).tolist()
    assert ends[0] == INF
    assert is_value(ends[1], policy.GELU_OF_MINUS_INF)
    assert math.isnan(ends[2])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gelu_tanh", {-3.0: -3.63739e-3, -4.0: -7.02459e-5, -5.0: -2.29180e-7, -6.0: -8.43965e-11}),
        ("gelu", {-4.0: -1.266850e-4, -5.0: -1.433258e-6, -6.0: -5.919526e-9}),
    ],
)
def test_case_30_negative_tail_of_gelu(name, values, device):
    op = getattr(rafters, name)
    assert op(torch.tensor([-4.0], device=device)).item() == pytest.approx(values[-4.0], rel=policy.GELU_TAIL)
    wide = op(torch.tensor(list(values), dtype=DOUBLE, device=device)).tolist()
    assert wide == pytest.approx(list(values.values()), rel=1e-5)
    tail = op(torch.linspace(-3, -14, 4000, device=device))
    assert (tail <= 0).all()
    magnitude = tail.abs()
    assert (magnitude[1:] <= magnitude[:-1] * (1 + 1e-2) + 1e-7).all()  # it decays, up to rounding


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [SINGLE, BF, HALF, DOUBLE])
def test_case_31_nan_through_extrema(dtype, device):
    nan, one = torch.tensor([NAN] * 40, dtype=dtype, device=device), torch.ones(40, dtype=dtype, device=device)
    assert math.isnan(policy.EXTREMA_OF_NAN)
    for op in (rafters.maximum, rafters.minimum):
        assert op(nan, one).isnan().all()
        assert op(one, nan).isnan().all()
        assert op(nan, 1.0).isnan().all()
    for bounds in ((0, 1), (0, None), (None, 1), (nan, one), (one, nan)):
        made = rafters.clamp(nan if bounds[0] is not nan and bounds[1] is not nan else one, *bounds)
        assert made.isnan().all(), bounds
    assert rafters.relu(nan).isnan().all()
    row = torch.tensor([[1, NAN, 2], [1, -3, 2]], dtype=dtype, device=device)
    for made, of_second in zip(peak(row), (3.0, 2.0, -3.0), strict=True):
        assert made[0].isnan().all()
        assert made[1].tolist() == [of_second] * 3


@rafters.elementwise(name="t_numerics::floor_of_quotient")
def floor_of_quotient(x, y):
    return lang.floor(lang.div(x, y))


@pytest.mark.parametrize("device", DEVICES)
def test_case_32_division_is_correctly_rounded(device):
    assert rafters.div(torch.tensor([4.6875], device=device), 0.9375).item() == 5.0
    k = torch.arange(1, 1001, device=device, dtype=SINGLE)[:, None]
    m = torch.arange(1, 1001, device=device, dtype=SINGLE)
    assert torch.equal(floor_of_quotient(k * m, m), k.expand(1000, 1000))
    x, y = (torch.randn(200_000, generator=torch.Generator().manual_seed(i)).exp() for i in range(2))
    exact = (x.double() / y.double()).float()
    assert torch.equal(rafters.div(x.to(device), y.to(device)).cpu(), exact)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [SINGLE, HALF])
def test_case_34_softcap_does_not_overflow(dtype, device):
    x = torch.tensor([1000, 4400, 5000, 60000, -60000, 10], dtype=dtype, device=device)
    made = rafters.softcap(x, 50.0).tolist()
    assert made[:5] == [50, 50, 50, 50, -50]
    assert made[5] == pytest.approx(50 * math.tanh(0.2), rel=1e-3 if dtype is HALF else 1e-6)
    assert (rafters.softcap(torch.tensor([3e38, -INF, INF], device=device), 50.0)).tolist() == [50, -50, 50]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["add", "mul", "sub", "scale", "maximum"])
def test_subnormals_are_kept(name, device):
    """No flush to zero, in any operand or result, scalar loop or vector."""
    tiny = torch.full((100,), 1e-45, device=device)
    small = torch.full((100,), 1.2e-38, device=device)
    op = getattr(rafters, name)
    for x, y in ((tiny, tiny), (small, tiny), (small, torch.full_like(small, 0.25))):
        wanted = getattr(torch, "mul" if name == "scale" else name)(x.cpu().double(), y.cpu().double()).float()
        assert torch.equal(op(x, y).cpu(), wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_no_contraction(device):
    """x * s + b rounds twice: a fused multiply-add would give 2^-24 here, not 0."""
    x = torch.full((100,), 1 + 2.0**-12, device=device)
    b = -(x * x)
    assert rafters.scale_bias(x, x, b).tolist() == [0.0] * 100
    assert rafters.mul_add(x, x, b).tolist() == [0.0] * 100
