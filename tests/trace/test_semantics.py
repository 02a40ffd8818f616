"""A traced body means what Triton means, where that differs from Python or PyTorch. Right values worked out by hand."""

import math

import pytest
import torch
from policy import TL_MAXIMUM_DROPS_NAN

from rafters import lang, tl
from rafters.errors import BodyError
from rafters.trace.body import read
from rafters.trace.run import run

NAN, INF = float("nan"), float("inf")


def traced(function, *arguments):
    names = [p.name for p in read(function).parameters]
    made = run(read(function), dict(zip(names, arguments, strict=True)))
    return made[0] if len(made) == 1 else made


def integers(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


def same(got, wanted, dtype=None):
    wanted = torch.tensor(wanted, dtype=got.dtype)
    assert dtype is None or got.dtype is dtype
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(torch.where(got.isnan(), 0, got), torch.where(wanted.isnan(), 0, wanted))


def floor_divide(x, y):
    return x // y


def modulo(x, y):
    return x % y


def test_integer_division_truncates():
    same(traced(floor_divide, integers(-7, 7, -7, 7), integers(2, 2, -2, -2)), [-3, 3, 3, -3], torch.int32)


def test_modulo_has_the_sign_of_the_dividend():
    same(traced(modulo, integers(-7, 7, -7, 7), integers(2, -2, -2, 2)), [-1, 1, -1, 1], torch.int32)
    same(traced(modulo, torch.tensor([-7.5, 7.5]), torch.tensor([2.0, -2.0])), [-1.5, 1.5], torch.float32)


def test_true_division_of_integers_is_float32():
    def body(x, y):
        return x / y

    same(traced(body, integers(7, -7), integers(2, 2)), [3.5, -3.5], torch.float32)


def test_division_of_halves_is_float32():
    def body(x):
        return x.to(tl.float16) / x.to(tl.float16), x.to(tl.bfloat16) * x.to(tl.bfloat16), x.to(tl.float16) / 3

    quotient, product, third = traced(body, torch.tensor([3.0]))
    assert quotient.dtype is torch.float32
    assert product.dtype is torch.bfloat16
    assert third.dtype is torch.float32
    assert third.item() == 1.0


def test_mixed_halves_are_float16():
    def body(x):
        return x.to(tl.float16) + x.to(tl.bfloat16)

    assert traced(body, torch.tensor([1.5])).dtype is torch.float16


def test_adding_bools_is_xor():
    def body(x, y):
        return (x > 0) + (y > 0), (x > 0) - (y > 0), (x > 0) * (y > 0)

    added, subtracted, multiplied = traced(body, torch.tensor([1.0, 1.0, -1.0]), torch.tensor([1.0, -1.0, -1.0]))
    same(added, [False, True, False], torch.bool)
    same(subtracted, [False, True, False], torch.bool)
    same(multiplied, [True, False, False], torch.bool)


def test_extrema_of_tl_drop_nan_and_those_of_lang_keep_it():
    def body(x, y):
        return (
            tl.maximum(x, y),
            tl.minimum(x, y),
            lang.maximum(x, y),
            lang.minimum(x, y),
            tl.clamp(x, 0.0, 1.0),
            lang.clamp(x, 0.0, 1.0),
        )

    x, y = torch.tensor([NAN, 1.0, NAN]), torch.tensor([1.0, NAN, NAN])
    high, low, lang_high, lang_low, clamped, lang_clamped = traced(body, x, y)
    assert TL_MAXIMUM_DROPS_NAN
    same(high, [1.0, 1.0, NAN])
    same(low, [1.0, 1.0, NAN])
    same(lang_high, [NAN, NAN, NAN])
    same(lang_low, [NAN, NAN, NAN])
    same(clamped, [0.0, 1.0, 0.0])
    same(lang_clamped, [NAN, 1.0, NAN])


def test_maximum_can_be_asked_to_keep_nan():
    def body(x):
        return tl.maximum(x, 1.0, propagate_nan=tl.PropagateNan.ALL)

    same(traced(body, torch.tensor([NAN, 0.0, 2.0])), [NAN, 1.0, 2.0])


def test_a_literal_takes_the_dtype_of_its_tensor():
    def body(x):
        return x + 1, x * 2, 1 - x, (x + 1) // 2

    plus, times, minus, half = traced(body, integers(255, 3, dtype=torch.uint8))
    same(plus, [0, 4], torch.uint8)
    same(times, [254, 6], torch.uint8)
    same(minus, [2, 254], torch.uint8)
    same(half, [0, 2], torch.uint8)


def test_a_float_literal_lifts_integers_to_float32():
    def body(x):
        return x * 0.5, x.to(tl.float64) * 3.141592653589793, x.to(tl.float16) + 1.0

    half, wide, narrow = traced(body, integers(7))
    same(half, [3.5], torch.float32)
    assert wide.dtype is torch.float64
    assert wide.item() == 7 * 3.141592653589793
    assert narrow.dtype is torch.float16


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8])
def test_a_literal_out_of_range_is_an_error(dtype):
    def body(x):
        return x + 70000

    with pytest.raises(BodyError, match="test_semantics"):
        traced(body, torch.ones(2, dtype=dtype))


def test_a_negative_literal_beside_an_unsigned_is_an_error():
    def body(x):
        return x + -1

    with pytest.raises(BodyError, match=r"unsigned|negative"):
        traced(body, torch.ones(2, dtype=torch.uint8))


def test_integers_wrap():
    def body(x):
        return x + x, x * x, -x

    plus, times, negative = traced(body, integers(2**31 - 1, -(2**31)))
    same(plus, [-2, 0], torch.int32)
    same(times, [1, 0], torch.int32)
    same(negative, [-(2**31) + 1, -(2**31)], torch.int32)


def test_shifts_of_signed_and_unsigned():
    def body(x, y):
        return x >> 1, y >> 1, x << 3

    right, unsigned, left = traced(body, integers(-5, 5, dtype=torch.int8), integers(251, 5, dtype=torch.uint8))
    same(right, [-3, 2], torch.int8)
    same(unsigned, [125, 2], torch.uint8)
    same(left, [-40, 40], torch.int8)


def test_bits_of_a_float():
    def body(x):
        return x.to(tl.int32, bitcast=True) & 0x7F800000, (x.to(tl.int32, bitcast=True) | 0x400000).to(tl.float32, bitcast=True)

    exponent, changed = traced(body, torch.tensor([1.0, -2.0]))
    same(exponent, [0x3F800000, 0x40000000], torch.int32)
    same(changed, [1.5, -3.0], torch.float32)


def test_bitwise_on_floats_is_an_error():
    def body(x):
        return x & 1

    with pytest.raises(BodyError, match="not defined"):
        traced(body, torch.ones(2))


def test_where_promotes_its_sides_and_takes_any_condition():
    def body(x):
        return tl.where(x, 1, 2.5), tl.where(x > 1, x, 0)

    mixed, kept = traced(body, integers(0, 3))
    same(mixed, [2.5, 1.0], torch.float32)
    same(kept, [0, 3], torch.int32)


def test_and_or_not_and_chains_are_per_element():
    def body(x):
        inside = 0 < x < 3
        return tl.where(inside and not x == 2, 1, 0), tl.where(x < 0 or x > 2, 1, 0)  # noqa: SIM201

    both, either = traced(body, integers(-1, 0, 1, 2, 3))
    same(both, [0, 0, 1, 0, 0])
    same(either, [1, 0, 0, 0, 1])


def test_compile_time_arithmetic_is_python():
    def body(x, N: tl.constexpr = -7):
        half = N // 2
        if N < 0 and x.dtype == tl.float32:
            y = x + half
        else:
            y = x
        for i in tl.static_range(3):
            y = y * 2 + i
        return y

    same(traced(body, torch.tensor([4.0]), -7), [4.0])  # -7 // 2 is -4: y = 0, 0, 1, 4
    same(traced(body, torch.tensor([4.0]), 7), [36.0])


def test_casts():
    def body(x):
        return x.to(tl.int32), x.to(tl.int1), x.to(tl.float16), tl.cast(x, tl.int8), float(x.to(tl.int32)), int(x)

    whole, truth, half, narrow, back, integer = traced(body, torch.tensor([-1.9, 0.0, 2.5]))
    same(whole, [-1, 0, 2], torch.int32)
    same(truth, [True, False, True], torch.bool)
    assert half.dtype is torch.float16
    same(narrow, [-1, 0, 2], torch.int8)
    same(back, [-1.0, 0.0, 2.0], torch.float32)
    same(integer, [-1, 0, 2], torch.int32)


def test_methods_and_functions_agree():
    def body(x):
        return (
            x.abs() - tl.abs(x),
            x.exp() - tl.exp(x),
            x.sqrt() - tl.sqrt(x),
            x.sigmoid() - tl.sigmoid(x),
            x.floor() - tl.floor(x),
        )

    for difference in traced(body, torch.tensor([0.5, 2.0])):
        same(difference, [0.0, 0.0])


def test_elementary_functions_of_halves_are_float32():
    def body(x):
        return tl.exp(x.to(tl.float16)), lang.sigmoid(x.to(tl.bfloat16)), lang.div(x.to(tl.float16), 3)

    for made in traced(body, torch.tensor([1.0])):
        assert made.dtype is torch.float32


def test_float64_stays():
    def body(x):
        return lang.exp(x), tl.sqrt(x), lang.div(x, 3), lang.sigmoid(x), x * 1e-300

    exponential, root, third, _, tiny = traced(body, torch.tensor([2.0], dtype=torch.float64))
    assert exponential.item() == pytest.approx(math.exp(2), rel=1e-15)
    assert root.item() == math.sqrt(2)
    assert third.item() == 2 / 3
    assert tiny.item() == 2e-300
