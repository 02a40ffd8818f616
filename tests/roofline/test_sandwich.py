"""The time of a call between products is a difference of two chains."""

import itertools
import time

import fakes
import made
import pytest
import torch

from rafters.errors import MeasureError
from rafters.roofline import measure, sandwich, sandwiched


def test_difference_per_layer():
    chain, products = fakes.FakeTimer(itertools.repeat(10e-3)), fakes.FakeTimer(itertools.repeat(4e-3))
    found = sandwich._differences([chain, products], layers=3, min_rounds=4, time_limit_s=5.0, read_clocks=lambda: None)
    assert found.median == pytest.approx(2e-3)


def test_a_drift_that_is_common_to_both_chains_cancels():
    """Every block takes 0.05 % longer than the one before, whoever runs: ten times the call."""
    blocks = itertools.count()

    class Drifting(fakes.FakeTimer):
        def __init__(self, seconds):
            super().__init__(iter(()))
            self.seconds = seconds

        def collect(self):
            return [self.seconds * (1 + 0.0005 * next(blocks))] * 3

    chains = [Drifting(10e-3 + 24 * 0.5e-6), Drifting(10e-3)]
    found = sandwich._differences(chains, 24, 4, 5.0, lambda: None, itertools.count(0.0, 0.1).__next__)
    assert found.median == pytest.approx(0.5e-6, rel=0.1)
    assert found.ci_high - found.ci_low < 0.1 * found.median


def test_noise_ends_at_the_time_limit():
    noisy = fakes.FakeTimer(itertools.cycle([1e-3 * (7 * i % 31) for i in range(31)]))
    ticks = itertools.count(0.0, 0.01)
    found = sandwich._differences([noisy, fakes.FakeTimer(itertools.repeat(0.0))], 1, 4, 1.0, lambda: None, lambda: next(ticks))
    assert found.ci_low < found.ci_high


def test_a_real_chain_on_the_cpu():
    seconds = sandwiched(lambda a: time.sleep(3e-3), (torch.randn(8, 16),), inner=16, layers=4, time_limit_s=0.3, min_rounds=3)
    assert 2e-3 < seconds.median < 1.0  # the product takes microseconds; others may share these cores


def test_measure_carries_it_beside_the_time(monkeypatch):
    monkeypatch.setattr(sandwich, "sandwiched", lambda fn, args: made.seconds(3e-6))
    options = {"time_limit_s": 0.1, "warm_up_s": 0.0, "hot": True}
    x = torch.randn(8, 32)
    assert measure(torch.neg, (x,), **options).sandwiched_s is None
    assert measure(torch.neg, (x,), between_products=True, **options).sandwiched_s == 3e-6


def test_what_no_product_can_write_is_refused():
    with pytest.raises(MeasureError, match="contiguous floating-point matrix"):
        sandwiched(torch.neg, (torch.randn(4),))
