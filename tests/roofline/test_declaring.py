"""Costs that a function declares."""

import pytest
import torch

from rafters.cost import Cost
from rafters.errors import MeasureError
from rafters.roofline import measure, measured

X = torch.ones(1000)


def test_declared_cost_is_used_and_the_function_unchanged():
    @measured(bytes=(lambda x: x.nbytes, lambda x: x.nbytes), flops=lambda x: x.numel())
    def double(x):
        """Twice."""
        return x * 2

    assert torch.equal(double(X), X * 2)
    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert double.cost(X) == Cost(4000, 4000, 1000)
    m = measure(double, (X,), time_limit_s=0.1, warm_up_s=0.0)
    assert m.cost == Cost(4000, 4000, 1000)


def test_one_number_is_half_read_and_half_written():
    assert measured(bytes=101, flops=7)(torch.neg).cost(X) == Cost(51, 50, 7)


@pytest.mark.parametrize(("amount", "text"), [(-1, "must not be negative, got -1"), (lambda x: "many", "must be a number")])
def test_bad_amounts(amount, text):
    with pytest.raises(MeasureError, match=text):
        measured(bytes=amount)(torch.neg).cost(X)


@pytest.mark.parametrize("factor", [2, 0.5])
def test_a_wrong_byte_count_is_invalid(factor):
    cost = Cost(int(4000 * factor), int(4000 * factor))
    m = measure(torch.neg, (X,), cost, time_limit_s=0.1, warm_up_s=0.0)
    assert m.verdict == "INVALID"
    assert m.reasons == (f"the byte count is wrong: {cost.total_bytes:,} bytes were given, counting finds 8,000",)


def test_a_byte_count_a_little_off_is_a_remark():
    m = measure(torch.neg, (X,), Cost(4000, 4800), time_limit_s=0.1, warm_up_s=0.0)
    assert m.verdict == "VALID"
    assert "bytes: 8,800 bytes were given, counting finds 8,000" in m.notes
