"""The typing rules of a traced body are Triton's, for every pair of dtypes, literal or not."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from rafters.dtypes import TRITON_NAMES
from rafters.trace.values import literal_dtype, promote

tl = pytest.importorskip("triton.language", reason="Triton's own rules are what is compared with")
DTYPES = [pytest.param(dtype, id=name) for dtype, name in TRITON_NAMES.items()]


class Made:
    """Stands for Triton's tensor: only its type is asked for."""

    def __init__(self, handle, type_):
        self.type = type_


@pytest.fixture(scope="module")
def semantic():
    """Triton's rules without a compile: they read no state but the builder of constants."""
    from triton.language.semantic import TritonSemantic

    made = object.__new__(TritonSemantic)
    made.tensor = Made
    made.builder = SimpleNamespace(get_int1=lambda value: None)
    made.scalar_constant = lambda value, dtype: Made(None, dtype)
    return made


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except TypeError:
        return "TypeError"


@pytest.mark.parametrize("a", DTYPES)
def test_every_pair(semantic, a):
    for b, a_literal, b_literal, division in itertools.product(TRITON_NAMES, (False, True), (False, True), (False, True)):
        x, y = (getattr(tl, TRITON_NAMES[dtype]) for dtype in (a, b))
        wanted = outcome(semantic.computation_type_impl, x, a_literal, y, b_literal, division)
        got = outcome(promote, a, a_literal, b, b_literal, division)
        got = got if isinstance(got, str) else getattr(tl, TRITON_NAMES[got])
        assert got == wanted, f"{a} (literal {a_literal}), {b} (literal {b_literal}), division {division}"


INTEGERS = (True, False, 0, 1, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**62)
FLOATS = (0.0, 1.0, -2.5, 3e38, 3.5e38, 1e-38, 1.2e-38, 1e-45, 1e300, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("number", [*INTEGERS, *FLOATS])
def test_dtype_of_a_literal(semantic, number):
    if isinstance(number, int) and number == 2**31:
        pytest.skip("Triton calls it uint32, which PyTorch cannot compute in; as int64 it has the same value")
    assert getattr(tl, TRITON_NAMES[literal_dtype(number)]) == semantic.to_tensor(number).type


def test_the_table_can_fail():
    assert promote(torch.float16, False, torch.bfloat16, False) is torch.float16
    assert promote(torch.bfloat16, False, torch.float32, True) is torch.bfloat16
    assert promote(torch.bfloat16, False, torch.float32, True, division=True) is torch.float32
    assert promote(torch.uint8, False, torch.int8, False) is torch.uint8
