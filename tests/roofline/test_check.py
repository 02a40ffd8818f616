"""The comparison that decides whether a result is right."""

import pytest
import torch

from rafters.roofline.check import compare


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_ulp_passes_and_two_fail_at_16_bits(dtype):
    want = torch.tensor([1.0, -3.0, 100.0, 0.7], dtype=dtype)
    steps = want.view(torch.int16)
    assert compare((steps + 1).view(dtype), want) is None
    assert "4 of 4 values differ" in compare((steps + 2).view(dtype), want)


def test_float32_allows_four_ulp():
    want = torch.tensor([1.0])
    assert compare((want.view(torch.int32) + 4).view(torch.float32), want) is None
    assert compare((want.view(torch.int32) + 40).view(torch.float32), want) is not None


def test_float64_beyond_the_range_of_float32():
    want = torch.tensor([1e300, 1e-300], dtype=torch.float64)
    assert compare(want * (1 + 4e-16), want) is None
    assert "2 of 2" in compare(want * (1 + 1e-12), want)


def test_nan_and_infinity_have_to_match():
    want = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0])
    assert compare(want.clone(), want) is None
    for i in range(4):
        wrong = want.clone()
        wrong[i] = 1.0
        assert f"the first at ({i},)" in compare(wrong, want)
    assert compare(torch.tensor([float("nan")]), torch.tensor([1.0])) is not None


def test_integers_are_exact_and_coordinates_are_named():
    want = torch.zeros(3, 4, dtype=torch.int64)
    wrong = want.clone()
    wrong[1, 2] = 1
    assert compare(wrong, want) == "output 0 (torch.int64): 1 of 12 values differ, the first at (1, 2): 1 for 0"


def test_count_and_shape():
    assert compare((torch.ones(1),), (torch.ones(1), torch.ones(1))).startswith("1 tensors came back")
    assert "shape (2,)" in compare(torch.ones(2), torch.ones(1))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_one_code_apart(dtype):
    want = torch.tensor([1.0, 2.0, -4.0]).to(dtype)
    assert compare((want.view(torch.uint8) + 1).view(dtype), want) is None
    assert compare((want.view(torch.uint8) + 2).view(dtype), want) is not None
