"""The sampling loop: blocks of samples until the median is known well enough, or time is up."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rafters.roofline.clocks import ClockReader, Clocks
from rafters.roofline.statistics import Summary, summarize
from rafters.roofline.timers import Timer

_MAX_SAMPLES = 20_000
WARM_UP_S = 0.2
_MAX_WARM_UP_S = 1.5


@dataclass(frozen=True, slots=True)
class Rule:
    """When to stop: enough samples, enough measured time, a narrow enough interval; or the limit of wall time."""

    min_samples: int = 30
    min_time_s: float = 0.5
    ci_width: float = 0.005
    time_limit_s: float = 10.0
    warm_up_s: float = WARM_UP_S


@dataclass
class Samples:
    """Seconds per launch, with what the clocks said while they were taken."""

    kept: list[float] = field(default_factory=list)
    throttled: list[float] = field(default_factory=list)
    clocks: list[Clocks] = field(default_factory=list)
    stop_reason: str = ""
    measured_s: float = 0.0

    def add(self, block: list[float], clocks: Clocks | None, launches: int = 1) -> None:
        (self.throttled if clocks is not None and clocks.throttled else self.kept).extend(block)
        self.measured_s += sum(block) * launches
        if clocks is not None:
            self.clocks.append(clocks)

    @property
    def used(self) -> list[float]:
        """The samples that count; if all were throttled, those, for the reader to see with the warning."""
        return self.kept or self.throttled

    def summary(self) -> Summary:
        return summarize(self.used)

    def reason_to_stop(self, rule: Rule, elapsed_s: float) -> str:
        """Empty while more samples are needed."""
        if elapsed_s >= rule.time_limit_s:
            return "time limit"
        if len(self.kept) + len(self.throttled) >= _MAX_SAMPLES:
            return "sample limit"
        enough = len(self.kept) >= rule.min_samples and self.measured_s >= rule.min_time_s
        return "converged" if enough and self.summary().ci_width < rule.ci_width else ""


def warm_up(timer: Timer, read_clocks: ClockReader, seconds: float, now: Callable[[], float] = time.perf_counter) -> None:
    """Run the timed work itself for `seconds`, and on until the SM clock stands still (bounded)."""
    start, previous = now(), None
    while True:
        timer.enqueue()
        clocks = read_clocks()
        timer.collect()
        elapsed = now() - start
        mhz = clocks.sm_mhz if clocks else None
        settled = mhz is None or (previous is not None and abs(mhz - previous) <= 0.01 * mhz)
        previous = mhz
        if (elapsed >= seconds and settled) or elapsed >= max(_MAX_WARM_UP_S, seconds):
            return


def sample(timer: Timer, read_clocks: ClockReader, rule: Rule, now: Callable[[], float] = time.perf_counter) -> Samples:
    """Warm up, then take blocks of samples until `rule` says stop. Always ends: `rule.time_limit_s` counts wall time."""
    warm_up(timer, read_clocks, rule.warm_up_s, now)
    found, start = Samples(), now()
    while not found.stop_reason:
        take_block(found, timer, read_clocks)
        found.stop_reason = found.reason_to_stop(rule, now() - start)
    return found


def take_block(found: Samples, timer: Timer, read_clocks: ClockReader) -> None:
    """One block, with the clocks read while it runs."""
    timer.enqueue()
    clocks = read_clocks()
    found.add(timer.collect(), clocks, getattr(timer, "launches", 1))
