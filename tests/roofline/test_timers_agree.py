"""Which timers of benchmarks/timers_agree.py count at a size, and when they disagree."""

import pytest

timers_agree = pytest.importorskip("timers_agree")  # needs triton

ROW = {
    "exponent": 16,
    "adds": 3204,
    "measure_us": 1.30,
    "graph_us": 1.31,
    "device_us": 1.30,
    "wall_us": 1.32,
    "period_us": 2.60,
    "slowed": 2.0,
    "duration_us": 1.05,
}


def test_a_profiler_that_slows_what_it_watches_does_not_count():
    assert set(timers_agree.comparable(ROW)) == {"graph", "device", "wall"}
    assert timers_agree.disagreements(ROW) == {}
    assert "graph device wall" in timers_agree.line(ROW)
    quiet = {**ROW, "slowed": 1.005}
    assert timers_agree.disagreements(quiet) == {"period": pytest.approx(2.0 / 1.005)}  # less what the profiler adds
    assert "period is +99.0% off" in timers_agree.line(quiet)


def test_before_the_profiler_ran_three_timers_count():
    row = {k: v for k, v in ROW.items() if k not in ("period_us", "slowed", "duration_us")}
    assert set(timers_agree.comparable(row)) == {"graph", "device", "wall"}
    assert timers_agree.line(row).count("-") == 4


def test_a_period_may_be_missing_and_a_duration_counts_where_the_gap_is_small():
    large = {**ROW, "exponent": 24, "period_us": None}
    assert set(timers_agree.comparable(large)) == {"graph", "device", "wall", "duration"}
    assert set(timers_agree.disagreements(large)) == {"duration"}
