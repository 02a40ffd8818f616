"""From samples to a measurement: what they say, and whether that can be true."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rafters.cost import Cost
from rafters.device import DeviceFacts
from rafters.roofline import counting, sampling
from rafters.roofline.ceiling import Ceilings
from rafters.roofline.measurement import INVALID, THROTTLED, VALID, WRONG, Measurement
from rafters.roofline.statistics import summarize

# A figure above this share of the matched ceiling means a wrong byte count or data in the cache.
IMPOSSIBLE = 1.02
NOISY = 0.02
# How far a given byte count may be from the counted one: beyond the first it is remarked, beyond the second it is wrong.
DOUBTFUL, WRONG_BYTES = 1.02, 1.5


@dataclass(frozen=True, slots=True)
class Limit:
    """Seconds that `total_bytes` take at a bandwidth, and the factor by which no call can be faster."""

    total_bytes: int
    bandwidth: float
    margin: float = IMPOSSIBLE

    def share(self, seconds: float) -> float:
        return self.total_bytes / seconds / self.bandwidth

    def exceeded(self, samples: sampling.Samples) -> bool:
        """Whether these samples claim more than can be true."""
        median = samples.summary().median if samples.used else 0.0
        return median > 0 and self.share(median) > self.margin


def limit_of(ceilings: Ceilings | None, cost: Cost, facts: DeviceFacts) -> Limit | None:
    """The measured ceiling of the call's mix and size with 2 % or its own interval above it; else the theoretical bandwidth."""
    if ceilings is not None:
        mix = (cost.read_fraction, cost.total_bytes)
        return Limit(cost.total_bytes, ceilings.bandwidth(*mix), max(IMPOSSIBLE, 1 + ceilings.doubt(*mix)))
    return Limit(cost.total_bytes, facts.theoretical_bandwidth) if facts.theoretical_bandwidth else None


def doubt(given: Cost, fn: Callable[..., Any], arguments: Sequence[Any]) -> tuple[str | None, str | None]:
    """What counting says of a byte count that was given: a reason against it, or a remark; neither where nothing can be counted.

    Both directions matter: too many bytes flatter, half of them hide how good a kernel is.
    """
    if hasattr(fn, "_torchdynamo_orig_callable") or hasattr(fn, "_orig_mod"):
        return None, None  # compiled: watching it would compile it again
    try:
        counted = counting.count(fn, arguments)
    except Exception:  # the watched function is a stranger's: if it cannot be watched, its bytes cannot be doubted
        return None, None
    found = counted.minimum.total_bytes
    if not found:
        return None, None
    factor = max(given.total_bytes / found, found / given.total_bytes) if given.total_bytes else math.inf
    text = f"{given.total_bytes:,} bytes were given, counting finds {found:,}"
    if factor > WRONG_BYTES and not counted.hidden:
        return f"the byte count is wrong: {text}", None
    return None, f"bytes: {text}" if factor > DOUBTFUL else None


def pairing(rounds: dict[str, list[float]], baseline: str, provider: str) -> dict[str, Any]:
    """Ratio of a provider's round to the baseline's neighbouring one: what drifts is common to both and cancels."""
    pairs = zip(rounds[provider], rounds[baseline], strict=False)
    ratios = [ours / theirs for ours, theirs in pairs if ours > 0 and theirs > 0]
    if provider == baseline or not ratios:
        return {}
    s = summarize(ratios)
    return {"ratio_to": baseline, "ratio": s.median, "ratio_low": s.ci_low, "ratio_high": s.ci_high}


def conclude(
    common: dict[str, Any],
    samples: sampling.Samples,
    failure: str | None,
    notes: list[str],
    limit: Limit | None,
    pairing: dict[str, Any],
    doubt: str | None = None,
) -> Measurement:
    summary = samples.summary() if samples.used and failure is None else None
    verdict, reasons = VALID, []
    if failure is not None:
        verdict, pairing = WRONG, {}
        reasons.append(failure)
    elif summary is None or not math.isfinite(summary.median) or summary.median <= 0:
        verdict, pairing = INVALID, {}
        reasons.append(f"the timer gave {summary.median if summary else 'no'} seconds: nothing was measured")
        summary = None
    elif limit and limit.exceeded(samples):
        verdict = INVALID
        reasons.append(
            f"{limit.share(summary.median):.0%} of the ceiling of {limit.bandwidth / 1e9:,.0f} GB/s cannot be true: "
            "the byte count is too high or the data was in cache"
        )
    elif doubt is not None:
        verdict = INVALID
        reasons.append(doubt)
    elif not samples.kept:
        verdict = THROTTLED
        reasons.append(f"all {len(samples.throttled)} samples were taken while the GPU was throttled")
    if summary and summary.noise > NOISY:
        notes = [*notes, f"noisy: the middle half of the samples spreads over {summary.noise:.1%} of the median"]
    if samples.kept and samples.throttled:
        notes = [*notes, f"{len(samples.throttled)} throttled samples were dropped"]
    events = sorted({r for c in samples.clocks for r in c.reasons})
    if events:
        notes = [*notes, f"clock events: {', '.join(events)}"]
    return Measurement(
        **common,
        **pairing,
        seconds=summary,
        samples=len(samples.used),
        throttled=len(samples.throttled),
        stop_reason=samples.stop_reason or "not timed",
        verdict=verdict,
        reasons=tuple(reasons),
        notes=tuple(notes),
        sm_mhz=_middle([c.sm_mhz for c in samples.clocks]),
        memory_mhz=_middle([c.memory_mhz for c in samples.clocks]),
        power_w=_middle([c.power_w for c in samples.clocks]),
        temperature_c=_middle([c.temperature_c for c in samples.clocks]),
    )


def _middle(values: Sequence[Any]) -> Any:
    known = sorted(v for v in values if v is not None)
    return known[len(known) // 2] if known else None
