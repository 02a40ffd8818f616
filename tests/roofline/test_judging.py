"""Comparisons: what an interval of ratios says, row by row."""

import dataclasses

import made
import pytest

from rafters import device as devices
from rafters.errors import MeasureError
from rafters.roofline import Results, compare
from rafters.roofline.judging import judge, judge_pair, missing, summary, verdict


@pytest.mark.parametrize(
    ("low", "high", "want"),
    [
        (0.99, 1.01, "SAME"),
        (1.03, 1.05, "SLOWER"),
        (0.90, 0.97, "FASTER"),
        (1.00, 1.05, "AMBIGUOUS"),
        (0.90, 1.10, "AMBIGUOUS"),
        (0.97, 1.00, "AMBIGUOUS"),
    ],
)
def test_verdict_of_an_interval(low, high, want):
    assert verdict(low, high, 0.02) == want


@pytest.mark.parametrize(("factor", "want"), [(1.0, "SAME"), (1.5, "SLOWER"), (0.5, "FASTER"), (1.02, "AMBIGUOUS")])
def test_rows(factor, want):
    before, after = made.measurement(), made.measurement(median=1e-3 * factor)
    row = judge(before, after, 0.02)
    assert row.verdict == want
    assert row.ratio == pytest.approx(factor)
    assert row.low < row.ratio < row.high
    assert row.high - row.low > 0.02 * factor  # runs of different times are never compared to better than the doubt


def test_a_row_that_fell_from_valid_is_failed():
    broken = made.measurement(median=None, verdict="WRONG", reasons=("after timing: all differ",))
    assert judge(made.measurement(), broken, 0.02).verdict == "FAILED"
    assert judge(made.measurement(), broken, 0.02).reason == "WRONG: after timing: all differ"
    assert judge(broken, made.measurement(), 0.02).verdict == "AMBIGUOUS"


def test_a_row_that_the_clock_limits_is_compared_at_one_clock():
    slow = {"median": 4e-3}  # a fifth of the ceiling: latency or arithmetic, not memory
    before, after = made.measurement(sm_mhz=1000, **slow), made.measurement(sm_mhz=1500, **slow)
    row = judge(before, after, 0.02)
    assert row.ratio == pytest.approx(1.5)  # the same time at a faster clock is a slower kernel
    assert "same SM clock" in row.reason
    near = {"median": 0.85e-3}  # at the ceiling the memory sets the time, whatever the SM clock
    assert judge(made.measurement(sm_mhz=1000, **near), made.measurement(sm_mhz=1500, **near), 0.02).ratio == pytest.approx(1.0)


def test_paired_rounds_need_no_doubt():
    row = judge_pair(made.measurement(ratio_to="torch", ratio=0.97, ratio_low=0.965, ratio_high=0.975))
    assert (row.verdict, row.reason) == ("FASTER", "paired with torch")
    assert judge_pair(made.measurement()).verdict == "AMBIGUOUS"


def test_files_are_matched_by_row():
    before = Results([made.measurement("a"), made.measurement("b")], source="before")
    after = Results([made.measurement("b", median=2e-3), made.measurement("c")], source="after")
    rows = compare(before, after)
    assert [(r.name, r.verdict) for r in rows] == [("b", "SLOWER")]
    assert summary(rows) == "1 rows: 1 SLOWER"


def test_a_row_that_became_an_error_is_failed_and_others_are_named():
    before = Results([made.measurement("a"), made.measurement("b"), made.measurement("c")], source="before")
    after = Results([made.measurement("a")], source="after", errors={("b", "4096x4096", "bf16"): "CompileError: no"})
    rows = compare(before, after)
    assert [(r.name, r.verdict, r.reason) for r in rows] == [("a", "SAME", ""), ("b", "FAILED", "CompileError: no")]
    assert (rows[1].before_s, rows[1].after_s) == (1e-3, None)
    assert missing(before, after) == ["c (ours) 4096x4096 bf16"]


def test_the_last_of_a_repeated_row_counts():
    before = Results([made.measurement(median=9e-3), made.measurement()])
    after = Results([made.measurement(median=9e-3), made.measurement()])
    assert [r.verdict for r in compare(before, after)] == ["SAME"]


def test_nothing_in_common_and_other_devices_are_refused():
    with pytest.raises(MeasureError, match="no row in common"):
        compare(Results([made.measurement("a")], source="x"), Results([made.measurement("b")], source="y"))
    here = devices.environment("cpu")
    there = dataclasses.replace(here, device=made.GPU)
    with pytest.raises(MeasureError, match="different devices"):
        compare(Results([made.measurement()], environments={"h": here}), Results([made.measurement()], environments={"t": there}))
