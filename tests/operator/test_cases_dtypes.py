"""Cases of public reports, group B: dtypes and promotion. Each call runs three times, as the kept plan must agree with the first."""

import math

import policy
import pytest
import torch

import rafters
from rafters import lang, tl

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
INF, NAN = float("inf"), float("nan")


def thrice(op, *arguments):
    """The result of three calls, which must be equal in value and dtype, and of the compiled call."""
    made = [op(*arguments) for _ in range(3)]
    torch._dynamo.reset()
    made.append(torch.compile(lambda *a: op(*a), backend="aot_eager", fullgraph=True)(*arguments))
    for other in made[1:]:
        assert other.dtype is made[0].dtype
        torch.testing.assert_close(other, made[0], rtol=0, atol=0, equal_nan=True)
    return made[0]


def t(values, dtype, device):
    return torch.tensor(values, dtype=dtype, device=device)


HALF, BF, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
ZERO_DIM = [
    ("mul", ([1.5, 2.5], HALF), (3.0, SINGLE), [4.5, 7.5], HALF),
    ("add", ([0.01], HALF), (65536.0, SINGLE), [INF], HALF),
    ("add", ([0.01], HALF), ([65536.0], SINGLE), [65536.0078125], SINGLE),
    ("add", (1.5, HALF), (2.0, SINGLE), 3.5, SINGLE),
    ("add", ([1, 2], torch.int64), (0.5, HALF), [1.5, 2.5], HALF),
    ("mul", ([1.5, 2.5], HALF), (2, torch.int64), [3.0, 5.0], HALF),
    ("add", ([1, 2], torch.int32), (2**40, torch.int64), [1, 2], torch.int32),
    ("add", ([True, False], torch.bool), (2, torch.int8), [3, 2], torch.int8),
    ("mul", ([1, 2], torch.uint8), (-1, torch.int8), [255, 254], torch.uint8),
    ("add", ([1.0, 2.0], BF), (2.0**-20, DOUBLE), [1.0, 2.0], BF),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "x", "y", "wanted", "dtype"), ZERO_DIM)
def test_case_19_a_0_d_tensor_lifts_no_dtype_of_its_category(name, x, y, wanted, dtype, device):
    x, y = t(*x, device), t(*y, device)
    for arguments in ((x, y), (y, x)):
        made = thrice(getattr(rafters, name), *arguments)
        assert made.dtype is dtype
        assert made.tolist() == wanted
        assert getattr(torch, name)(*arguments).dtype is dtype


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "x", "y", "wanted", "dtype"), ZERO_DIM)
def test_case_19_the_0_d_tensor_on_the_cpu(name, x, y, wanted, dtype):
    if not isinstance(x[0], list) or isinstance(y[0], list):
        pytest.skip("both are 0-d, or neither")
    made = thrice(getattr(rafters, name), t(*x, "cuda"), t(*y, "cpu"))
    assert made.dtype is dtype
    assert made.tolist() == wanted


@pytest.mark.parametrize("device", DEVICES)
def test_case_21_a_float_is_not_truncated_beside_integers(device):
    x = t([7, 6], torch.int32, device)
    assert thrice(rafters.add, x, 2.5).tolist() == [9.5, 8.5]
    assert thrice(rafters.mul, x, 0.5).tolist() == [3.5, 3.0]
    assert thrice(rafters.add, x, 2.5).dtype is SINGLE
    for out in (x, torch.zeros(2, dtype=torch.int32, device=device)):
        with pytest.raises(
            rafters.ArgumentError, match=r"add: argument 'out': got dtype torch.int32, wanted dtype torch.float32"
        ):
            rafters.add(x, 1.5, out=out)
    assert x.tolist() == [7, 6]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("x", "y", "wanted", "dtype"),
    [
        (([1.5], HALF), ([0.25], BF), [1.75], SINGLE),
        (([200], torch.uint8), ([-100], torch.int8), [100], torch.int16),
        (([True, False], torch.bool), ([True, True], torch.bool), [True, True], torch.bool),
        (([True], torch.bool), (1, None), [2], torch.int64),
        (([True], torch.bool), (True, None), [True], torch.bool),
        (([3], torch.int8), ([2.5], HALF), [5.5], HALF),
        (([2**40], torch.int64), ([1.0], SINGLE), [1099511627776.0], SINGLE),
        (([1], torch.int64), ([2.0**-40], DOUBLE), [1 + 2.0**-40], DOUBLE),
    ],
)
def test_case_22_mixed_dtypes(x, y, wanted, dtype, device):
    x = t(*x, device)
    y = y[0] if y[1] is None else t(*y, device)
    made = thrice(rafters.add, x, y)
    assert made.dtype is dtype
    assert made.tolist() == wanted


@rafters.rowwise(name="t_cases::rms")
def rms(x, eps: float = 1e-6):
    return x * lang.rsqrt(lang.row_mean(x * x) + eps)


@rafters.elementwise(name="t_cases::by_scalar")
def by_scalar(x, s: float):
    return x * s


@pytest.mark.parametrize("device", DEVICES)
def test_case_24_float64_with_python_floats(device):
    ones = torch.ones(3, dtype=DOUBLE, device=device)
    for factor in (3.141592653589793, 1 + 2.0**-40, 1e300, 1e-300):
        for op in (rafters.mul, by_scalar):
            assert thrice(op, ones, factor).tolist() == [factor] * 3
    assert thrice(rafters.add, ones, 2.0**-40).tolist() == [1 + 2.0**-40] * 3
    tiny = torch.full((1, 4), 1e-7, dtype=DOUBLE, device=device)
    wanted = 1e-7 / math.sqrt(1e-14 + 1e-12)
    assert thrice(rms, tiny, 1e-12).tolist()[0] == pytest.approx([wanted] * 4, rel=1e-14)


@rafters.elementwise(name="t_cases::cast_scalar")
def cast_scalar(x, s: float):
    return x * s.to(tl.float32)


@rafters.elementwise(name="t_cases::int_scalar")
def int_scalar(x, s: int):
    return x + s


@pytest.mark.parametrize("device", DEVICES)
def test_case_25_scalars_of_special_values(device):
    x = torch.tensor([3.0, -5.0], device=device)
    for s in (0, 1, 1.0, -1, 2, 16, 42.0, 2**31 - 1, 2**31, 2**33, True, 1, 5, 1, 16, 17):
        wanted = torch.tensor([3.0, -5.0]) * torch.tensor(float(s))
        for op in (cast_scalar, by_scalar, rafters.scale):
            assert op(x, s).tolist() == wanted.tolist(), (op, s)
        half = op(x.to(HALF), 42.0)
        assert half.tolist() == [126.0, -210.0]
    y = torch.tensor([3, -5], dtype=torch.int64, device=device)
    for s in (0, 1, -1, 5, 1, 16, 17, 2**31 - 1, 2**31, 2**33, -(2**31), -(2**31) - 1, 1):
        assert int_scalar(y, s).tolist() == [3 + s, -5 + s], s
        assert rafters.add(y, s).tolist() == [3 + s, -5 + s], s


@pytest.mark.parametrize("device", DEVICES)
def test_case_25_a_number_that_the_dtype_cannot_hold_is_refused_every_time(device):
    x = torch.tensor([1, 2], dtype=torch.int8, device=device)
    for _ in range(2):
        assert rafters.add(x, 5).tolist() == [6, 7]
        with pytest.raises(
            rafters.ArgumentError, match=r"add: argument 'y': got the number 300, wanted a number that torch.int8 can hold"
        ):
            rafters.add(x, 300)
        with pytest.raises(rafters.ArgumentError, match="got the number -129"):
            rafters.add(x, -129)


@rafters.elementwise(name="t_cases::relu6")
def relu6(x):
    return lang.minimum(lang.maximum(x, 0.0), 6.0)


@rafters.elementwise(name="t_cases::clamped")
def clamped(x):
    return lang.clamp(x, 0.0, 6.0)


@rafters.elementwise(name="t_cases::tl_clamped")
def tl_clamped(x):
    return tl.minimum(tl.maximum(x, 0.0), 6.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [HALF, BF, SINGLE, DOUBLE])
def test_case_26_literals_keep_the_dtype(dtype, device):
    x = t([-1, 0.5, 7, NAN], dtype, device)
    for op, of_nan in ((relu6, policy.EXTREMA_OF_NAN), (clamped, policy.EXTREMA_OF_NAN), (tl_clamped, 0.0)):
        made = thrice(op, x)
        assert made.dtype is dtype
        assert made.tolist()[:3] == [0, 0.5, 6]
        assert made[3].item() == of_nan or (math.isnan(of_nan) and made[3].isnan())


@rafters.elementwise(name="t_cases::switch")
def switch(x, k: tl.constexpr = 1):
    return x * k


@pytest.mark.parametrize("device", DEVICES)
def test_compile_time_values_that_compare_equal(device):
    """1, 1.0 and True are equal and hash alike, but are not one constant. A constant -0.0 is +0 in Triton, and so on every path."""
    x = torch.tensor([3, 5], dtype=torch.int32, device=device)
    for _ in range(2):
        assert switch(x, 2).dtype is torch.int32
        assert switch(x.float(), -0.0).signbit().tolist() == [False, False]
        assert switch(x.float(), 0.0).signbit().tolist() == [False, False]


@rafters.elementwise(name="t_cases::halved")
def halved(x, k: tl.constexpr = 1):
    return x * k // 2


@pytest.mark.parametrize("device", DEVICES)
def test_an_int_constant_does_not_serve_a_float(device):
    x = torch.tensor([7, 8], dtype=torch.int32, device=device)
    for _ in range(2):
        assert halved(x, 1).tolist() == [3, 4]
        with pytest.raises(rafters.RaftersError):  # a float product has no //
            halved(x, 1.0)


@pytest.mark.parametrize("device", DEVICES)
def test_case_35_the_store_rounds_to_nearest_even_and_overflows_to_inf(device):
    for value, dtype, wanted in [
        (1 + 2.0**-8, BF, 1.0),
        (1 + 3 * 2.0**-8, BF, 1.015625),
        (65519.0, HALF, 65504.0),
        (65520.0, HALF, INF),
        (3.4e38, BF, INF),
        (-3.4e38, BF, -INF),
        (2.0**-25, HALF, 0.0),
        (2.0**-25 * 1.5, HALF, 2.0**-24),
    ]:
        out = torch.zeros(9, dtype=dtype, device=device)
        rafters.add(torch.full((9,), value, device=device), 0, out=out)
        assert out.tolist() == [wanted] * 9, (value, dtype)
