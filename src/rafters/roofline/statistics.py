"""Order statistics of timing samples: nothing here assumes a distribution, because timings do not follow one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """Quantiles of the samples and the 95 % interval of their median, all in the unit of the samples (seconds)."""

    median: float
    p5: float
    p25: float
    p75: float
    p95: float
    min: float
    ci_low: float
    ci_high: float

    @property
    def ci_width(self) -> float:
        """Width of the interval relative to the median; what adaptive stopping looks at."""
        return (self.ci_high - self.ci_low) / self.median if self.median > 0 else 0.0

    @property
    def noise(self) -> float:
        """Interquartile range relative to the median."""
        return (self.p75 - self.p25) / self.median if self.median > 0 else 0.0


def summarize(samples: Sequence[float]) -> Summary:
    """Summary of at least one sample."""
    ordered = sorted(samples)
    low, high = median_ranks(len(ordered))
    median, p5, p25, p75, p95 = (quantile(ordered, q) for q in (0.5, 0.05, 0.25, 0.75, 0.95))
    return Summary(median, p5, p25, p75, p95, min=ordered[0], ci_low=ordered[low], ci_high=ordered[high])


def quantile(ordered: Sequence[float], q: float) -> float:
    """Quantile of sorted samples, linear between neighbours."""
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def median_ranks(count: int, confidence: float = 0.95) -> tuple[int, int]:
    """0-based ranks of the sorted samples between which the true median lies with `confidence`.

    The number of samples below the median is binomial(count, 1/2), whatever the distribution. Fewer than six samples cannot
    give 95 %: their whole range is returned.
    """
    tail = (1.0 - confidence) / 2.0
    if count > 1000:  # 0.5 ** count would underflow; the normal approximation is exact to a rank here
        low = math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1
        return low, count - 1 - low
    term = cumulative = 0.5**count
    low = 0
    while cumulative <= tail:
        term *= (count - low) / (low + 1)
        low += 1
        cumulative += term
    low = max(low - 1, 0)
    return low, count - 1 - low
