"""Two runs side by side: what changed, and whether it is more than noise."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from rafters.errors import MeasureError
from rafters.roofline.measurement import Measurement
from rafters.roofline.results import Results

SAME, FASTER, SLOWER, AMBIGUOUS, FAILED = "SAME", "FASTER", "SLOWER", "AMBIGUOUS", "FAILED"
# Where no round was shared, clocks and temperatures differ between runs by about this much.
UNPAIRED_DOUBT = 0.01


@dataclass(frozen=True, slots=True)
class Judgement:
    """One row of a comparison. `ratio` is time after / time before, in [`low`, `high`] with 95 % confidence."""

    name: str
    provider: str
    shape: str
    dtype: str
    before_s: float | None
    after_s: float | None
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"type": "judgement", **asdict(self)}


def compare(before: Results, after: Results, *, threshold: float = 0.02) -> list[Judgement]:
    """Judge every row that both runs hold, the last one where a run repeats it. The threshold is a share of the time: 0.02 lets
    2 % pass as SAME.

    FASTER or SLOWER if the whole interval of the ratio lies beyond the threshold, SAME if all of it lies within, AMBIGUOUS if it
    does neither, FAILED if the row was right before and has no valid time now, or an error in its place. Where both runs know the
    SM clock of a row that arithmetic or latency limits (under half of its bandwidth ceiling), times are compared at one clock.
    Raises MeasureError if the runs share no row, or come from different devices.
    """
    same_device(before, after)
    old = {_key(m): m for m in before.measurements}
    new = {_key(m): m for m in after.measurements}
    rows = [judge(old[key], m, threshold) for key, m in new.items() if key in old]
    rows += [_failed(m, after.errors[_call(m)]) for key, m in old.items() if key not in new and m.ok and _call(m) in after.errors]
    if not rows:
        raise MeasureError(f"compare: {before.source} and {after.source} have no row in common")
    return rows


def missing(before: Results, after: Results) -> list[str]:
    """The rows of `before` that `after` did not measure, as "name (provider) shape dtype"."""
    done = {_key(m) for m in after.measurements}
    left = {_key(m): m for m in before.measurements if _key(m) not in done and _call(m) not in after.errors}
    return [f"{m.name} ({m.provider}) {m.shape} {m.dtype}" for m in left.values()]


def judge(before: Measurement, after: Measurement, threshold: float) -> Judgement:
    """One row; see `compare`."""
    if not before.ok or not after.ok or before.seconds is None or after.seconds is None:
        broken = FAILED if before.ok else AMBIGUOUS
        bad = after if not after.ok else before
        return _row(before, after, None, None, None, broken, f"{bad.verdict}: {'; '.join(bad.reasons)}")
    factor, reason = _clock_factor(before, after)
    a, b = before.seconds, after.seconds
    ratio = b.median / a.median * factor
    low = b.ci_low / a.ci_high * factor * (1 - UNPAIRED_DOUBT)
    high = b.ci_high / a.ci_low * factor * (1 + UNPAIRED_DOUBT)
    return _row(before, after, ratio, low, high, verdict(low, high, threshold), reason)


def judge_pair(rival: Measurement, threshold: float = 0.02) -> Judgement:
    """A provider against the baseline it was raced with: from paired rounds, so that no doubt about clocks is added."""
    if rival.ratio is None or rival.ratio_low is None or rival.ratio_high is None:
        return _row(rival, rival, None, None, None, AMBIGUOUS, "not raced against anything")
    found = verdict(rival.ratio_low, rival.ratio_high, threshold)
    return _row(rival, rival, rival.ratio, rival.ratio_low, rival.ratio_high, found, f"paired with {rival.ratio_to}")


def verdict(low: float, high: float, threshold: float) -> str:
    """What an interval of time ratios says."""
    if low > 1 + threshold:
        return SLOWER
    if high < 1 - threshold:
        return FASTER
    return SAME if 1 - threshold <= low and high <= 1 + threshold else AMBIGUOUS


def summary(rows: Iterable[Judgement]) -> str:
    """How many of each, in a line, the bad ones first."""
    found = [r.verdict for r in rows]
    counted = [f"{found.count(v)} {v}" for v in (FAILED, SLOWER, AMBIGUOUS, FASTER, SAME) if v in found]
    return f"{len(found)} rows: {', '.join(counted)}"


def _clock_factor(before: Measurement, after: Measurement) -> tuple[float, str]:
    share = before.share_of_ceiling
    if not before.sm_mhz or not after.sm_mhz or share is None or share >= 0.5 or before.sm_mhz == after.sm_mhz:
        return 1.0, ""
    return after.sm_mhz / before.sm_mhz, f"at the same SM clock ({before.sm_mhz} and {after.sm_mhz} MHz measured)"


def same_device(before: Results, after: Results) -> None:
    """Raises MeasureError if the runs name devices and have none in common: their times say nothing about a change."""
    names = [{e.device.name for e in r.environments.values()} for r in (before, after)]
    if names[0] and names[1] and not names[0] & names[1]:
        raise MeasureError(f"compare: different devices, {' + '.join(sorted(names[0]))} and {' + '.join(sorted(names[1]))}")


def _key(m: Measurement) -> tuple[str, ...]:
    return (*_call(m), m.provider, m.state)


def _call(m: Measurement) -> tuple[str, str, str]:
    return (m.name, m.shape, m.dtype)


def _failed(before: Measurement, error: str) -> Judgement:
    return replace(_row(before, before, None, None, None, FAILED, error), after_s=None)


def _row(
    before: Measurement, after: Measurement, ratio: float | None, low: float | None, high: float | None, found: str, reason: str
) -> Judgement:
    old, new = (m.seconds.median if m.seconds else None for m in (before, after))
    return Judgement(after.name, after.provider, after.shape, after.dtype, old, new, ratio, low, high, found, reason)
