"""Order statistics against values that can be worked out by hand or by brute force."""

import math
import random

import pytest

from rafters.roofline.statistics import median_ranks, quantile, summarize


def coverage(count: int, low: int, high: int) -> float:
    """Probability that the median lies between two ranks, from the binomial distribution itself."""
    inside = sum(math.comb(count, k) for k in range(low + 1, high + 1))
    return inside / 2**count


@pytest.mark.parametrize("count", [6, 7, 30, 101, 1000, 2001])
def test_interval_covers_95_percent_and_no_narrower_one_does(count):
    low, high = median_ranks(count)
    assert high == count - 1 - low
    assert coverage(count, low, high) >= 0.95
    assert coverage(count, low + 1, high - 1) < 0.96  # one rank further in is at most at the edge


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_samples_give_their_whole_range(count):
    assert median_ranks(count) == (0, count - 1)


def test_quantiles_are_linear_between_neighbours():
    assert quantile([0.0, 10.0], 0.25) == 2.5
    assert quantile([3.0], 0.95) == 3.0


def test_summary_of_a_known_set():
    samples = [float(i) for i in range(101)]
    random.Random(0).shuffle(samples)
    s = summarize(samples)
    assert (s.median, s.p5, s.p25, s.p75, s.p95, s.min) == (50.0, 5.0, 25.0, 75.0, 95.0, 0.0)
    assert (s.ci_low, s.ci_high) == (40.0, 60.0)
    assert s.ci_width == pytest.approx(0.4)
    assert s.noise == pytest.approx(1.0)


def test_zero_samples_have_no_relative_width():
    assert summarize([0.0] * 10).ci_width == 0.0
