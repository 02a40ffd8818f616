"""What measure and race conclude, driven by fake timers and clocks: every end is bounded and says why."""

import dataclasses
import itertools
import json
import math
import time

import fakes
import made
import pytest
import torch

from rafters import device as devices
from rafters.cost import Cost
from rafters.errors import MeasureError
from rafters.roofline import Ceilings, Measurement, measure, race
from rafters.roofline.ceiling import Point
from rafters.roofline.measurement import read_lines, write_lines

X = (torch.arange(4096.0), torch.ones(4096))
COST = Cost(2 * 4 * 4096, 4 * 4096, 4096)


# 1 GB/s whatever the mix, 10 us to start, on another device than this: it is not measured again.
ROOF = Ceilings(made.GPU, (Point("add", 2 / 3, 1 << 40, (1 << 40) / 1e9, "made up"),), 10e-6)


def run(fn=torch.add, seconds=(), **options):
    options = {"warm_up_s": 0.0, "time_limit_s": 0.3, "reference": torch.add, **options}
    if seconds:
        options["timer"] = fakes.timer(itertools.chain(seconds, itertools.repeat(seconds[-1])))
    return measure(fn, X, options.pop("cost", COST), **options)


def test_constant_timer_converges_on_its_constant():
    m = run(seconds=[0.02])
    assert (m.verdict, m.stop_reason, m.timer) == ("VALID", "converged", "fake")
    assert m.seconds.median == m.seconds.p5 == m.seconds.p95 == 0.02
    assert m.samples == 30
    assert m.bandwidth == pytest.approx(COST.total_bytes / 0.02)
    assert (m.shape, m.dtype, m.name) == ("4096", "fp32", "add")


def test_zero_timer_is_invalid_and_ends():
    start = time.perf_counter()
    m = run(seconds=[0.0])
    assert m.verdict == "INVALID"
    assert "nothing was measured" in m.reasons[0]
    assert m.seconds is None
    assert m.bandwidth is None
    assert time.perf_counter() - start < 3


def test_jumping_timer_hits_the_time_limit_and_is_called_noisy():
    growing = (1e-3 * 1.001**i for i in range(200_000))
    m = measure(torch.add, X, COST, timer=fakes.timer(growing), warm_up_s=0.0, time_limit_s=0.02, reference=torch.add)
    assert any("noisy" in n for n in m.notes)
    assert m.stop_reason == "time limit"


def test_always_throttled_ends_with_the_samples_and_a_warning():
    start = time.perf_counter()
    m = run(seconds=[0.02], clocks=fakes.throttled)
    assert m.verdict == "THROTTLED"
    assert not m.ok
    assert m.stop_reason in ("time limit", "sample limit")
    assert m.throttled == m.samples > 0
    assert m.seconds.median == 0.02
    assert "throttled" in m.reasons[0]
    assert json.loads(json.dumps(m.to_json()))["verdict"] == "THROTTLED"
    assert time.perf_counter() - start < 3


def test_some_throttled_samples_are_dropped_and_counted():
    readings = itertools.chain([None, fakes.throttled()], itertools.repeat(None))  # the warm-up, the first block, the others
    times = itertools.chain([9.0] * 6, itertools.repeat(0.02))
    m = measure(torch.add, X, COST, timer=fakes.timer(times), clocks=lambda: next(readings), warm_up_s=0.0, reference=torch.add)
    assert (m.verdict, m.throttled, m.samples) == ("VALID", 3, 30)
    assert m.seconds.p95 == 0.02
    assert "3 throttled samples were dropped" in m.notes


def test_byte_count_too_high_is_invalid():
    seconds = 1.03 * COST.total_bytes / 1e9
    assert run(seconds=[seconds], ceilings=ROOF, min_time_s=0).verdict == "VALID"
    m = run(seconds=[seconds / 2], ceilings=ROOF, min_time_s=0)
    assert m.verdict == "INVALID"
    assert "194% of the ceiling of 1 GB/s cannot be true" in m.reasons[0]


def test_beyond_two_percent_the_interval_of_the_ceiling_counts():
    seconds = COST.total_bytes / 1e9 / 1.08
    unsure = Ceilings(made.GPU, (dataclasses.replace(ROOF.points[0], doubt=0.1),), 10e-6)
    assert run(seconds=[seconds], ceilings=ROOF, min_time_s=0).verdict == "INVALID"
    assert run(seconds=[seconds], ceilings=unsure, min_time_s=0).verdict == "VALID"


def test_a_call_above_the_ceiling_has_it_measured_again_first():
    """A ceiling from a busy moment, on this device: a thousandth of what its memory moves."""
    points = tuple(Point(name, mix, 1 << 20, (1 << 20) / 1e6, "torch.add x 1") for name, mix in (("add", 2 / 3), ("read", 1.0)))
    here = Ceilings(devices.facts("cpu"), points, 1e-6)
    x = (torch.randn(1 << 22), torch.randn(1 << 22))
    cost = Cost(2 * x[0].nbytes, x[0].nbytes)
    m = measure(torch.add, x, cost, reference=torch.add, time_limit_s=0.3, warm_up_s=0.0, ceilings=here)
    assert m.ceiling > 1e8  # what was measured now, and not 1 MB/s
    assert [(p.mix, p.bytes, p.kernel) for p in here.points[2:]] == [("add", cost.total_bytes, "torch.add x 1")]
    m = run(seconds=[1e-9], ceilings=here, min_time_s=0)  # nothing makes the impossible true
    assert m.verdict == "INVALID"


def test_a_call_without_work_has_no_share():
    m = run(lambda a, b: a, cost=Cost(0, 0), seconds=[1e-6], ceilings=ROOF, reference=None, min_time_s=0)
    assert (m.share_of_attainable, m.share_of_ceiling) == (None, None)


def test_no_bytes_given_where_some_are_moved_is_a_wrong_count():
    m = run(cost=Cost(0, 0), seconds=[0.02])
    assert m.verdict == "INVALID"
    assert "0 bytes were given, counting finds 49,152" in m.reasons[0]


@pytest.mark.parametrize("odd", [torch.eye(4).to_sparse(), torch.ones(4, device="meta")], ids=["sparse", "meta"])
def test_a_tensor_without_bytes_of_its_own_is_refused(odd):
    with pytest.raises(MeasureError, match="no plain storage"):
        measure(torch.neg, (odd,), COST)
    with pytest.raises(MeasureError, match="no plain storage"):
        measure(torch.neg, lambda: (odd,), COST)


def test_hot_is_labelled_and_not_judged_by_the_memory_ceiling():
    m = run(seconds=[1e-6], ceilings=ROOF, hot=True, min_time_s=0)
    assert (m.state, m.verdict, m.share_of_ceiling) == ("hot", "VALID", None)


def test_share_of_attainable():
    m = run(seconds=[2 * (10e-6 + COST.total_bytes / 1e9)], ceilings=ROOF, min_time_s=0)
    assert m.share_of_attainable == pytest.approx(0.5)
    assert m.share_of_ceiling < m.share_of_attainable


def test_wrong_before_timing_is_not_timed():
    m = run(torch.sub, seconds=[0.02])
    assert (m.verdict, m.seconds, m.stop_reason, m.samples) == ("WRONG", None, "not timed", 0)
    assert m.reasons[0].startswith("before timing: output 0 (torch.float32)")


def test_wrong_from_call_11_on_has_no_speed():
    calls = itertools.count(1)
    m = run(lambda a, b: a + b if next(calls) < 11 else a - b, name="late")
    assert (m.verdict, m.seconds, m.bandwidth) == ("WRONG", None, None)
    assert m.reasons[0].startswith("after timing")


def test_a_kept_old_output_is_caught_by_fresh_inputs():
    kept = []

    def cached(a, b):
        kept.append(a + b)
        return kept[0]

    assert run(cached).reasons[0].startswith("after timing")


def test_an_in_place_function_is_judged_by_its_arguments():
    def double_(a, b):
        a.mul_(2)

    def scale_(a, b):
        a.mul_(3)

    assert run(double_, reference=double_, seconds=[0.02]).verdict == "VALID"
    assert run(scale_, reference=double_, seconds=[0.02]).verdict == "WRONG"
    assert X[0][1] == 1.0  # the caller's own tensors are never touched


def test_without_reference_a_note_says_so():
    m = run(seconds=[0.02], reference=None)
    assert m.verdict == "VALID"
    assert m.notes == ("not checked: no reference was given",)


def test_own_check():
    m = run(torch.sub, seconds=[0.02], check=lambda got, want: None)
    assert m.verdict == "VALID"


def test_race_pairs_rounds_so_that_drift_cancels():
    drift = itertools.count(1)  # every block is slower than the one before, whoever runs

    class Drifting(fakes.FakeTimer):
        def __init__(self, factor):
            super().__init__(iter(()))
            self.factor = factor

        def collect(self):
            return [1e-3 * self.factor * (1 + 0.001 * next(drift))] * 3

    factors = {"slow": 2.0, "fast": 1.0}
    named = {n: (lambda a, b, n=n: a + b) for n in factors}
    by_function = {id(f): factors[n] for n, f in named.items()}
    found = race(
        named,
        X,
        COST,
        name="add",
        reference=torch.add,
        warm_up_s=0.0,
        time_limit_s=0.2,
        timer=lambda fn, rotation, device: Drifting(by_function[id(fn)]),
    )
    assert found["slow"].ratio is None
    fast = found["fast"]
    assert (fast.ratio_to, fast.provider, fast.name) == ("slow", "fast", "add")
    assert fast.ratio == pytest.approx(0.5, rel=2e-3)
    assert fast.ratio_low <= fast.ratio <= fast.ratio_high


def test_race_keeps_the_right_ones_when_one_is_wrong():
    found = race({"right": torch.add, "wrong": torch.sub}, X, COST, reference=torch.add, time_limit_s=0.2, warm_up_s=0.0)
    assert found["right"].verdict == "VALID"
    assert found["right"].seconds.median > 0
    assert found["wrong"].verdict == "WRONG"


def test_the_timer_is_closed_when_the_function_fails_later():
    made = []

    def factory(fn, rotation, device):
        made.append(fakes.FakeTimer(iter([1.0])))  # runs dry inside the loop
        return made[0]

    with pytest.raises((StopIteration, RuntimeError)):
        measure(torch.add, X, COST, timer=factory, warm_up_s=0.0)
    assert made[0].closed


def test_real_wall_timer_is_near_a_known_sleep():
    m = measure(lambda a: time.sleep(2e-3), (X[0],), Cost(1, 0), time_limit_s=0.5, warm_up_s=0.0)
    assert 2e-3 <= m.seconds.median < 2e-2


def test_one_tensor_instead_of_arguments_is_refused():
    with pytest.raises(MeasureError, match=r"write \(x,\)"):
        measure(torch.neg, X[0], COST)


def test_json_lines_round_trip(tmp_path):
    m = run(seconds=[0.02])
    path = tmp_path / "deep" / "results.jsonl"
    write_lines(path, [m])
    write_lines(path, [m])
    assert [Measurement.from_json(r) for r in read_lines(path)] == [m, m]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seconds": "x"}, "must be a mapping"),
        ({"seconds": {"median": 1.0}}, "missing"),
        (
            {"seconds": dict.fromkeys(("median", "p5", "p25", "p75", "p95", "min", "ci_low", "ci_high"), 0.0)},
            "seconds.median is 0.0",
        ),
        ({"seconds": dict.fromkeys(("median", "p5", "p25", "p75", "p95", "min", "ci_low", "ci_high"), math.nan)}, "is nan"),
        ({"cost": {"read_bytes": "a", "written_bytes": 1}}, "cost.read_bytes is 'a'"),
        ({"cost": {"read_bytes": -5, "written_bytes": 1}}, "cost.read_bytes is -5"),
        ({"ceiling": math.inf}, "ceiling is inf"),
        ({"shape": None}, "shape is no text"),
        ({"name": 5}, "name is no text"),
    ],
)
def test_what_is_no_measurement_is_refused_when_read(change, says):
    with pytest.raises(MeasureError, match="not a measurement") as refused:
        Measurement.from_json({**made.measurement().to_json(), **change})
    assert says in str(refused.value)


def test_unwritable_folder_and_damaged_file_are_clear_errors(tmp_path):
    (tmp_path / "file").write_text("{\n")
    with pytest.raises(MeasureError, match="cannot be written to"):
        write_lines(tmp_path / "file" / "results.jsonl", [])
    with pytest.raises(MeasureError, match="line 1: not JSON"):
        list(read_lines(tmp_path / "file"))
    with pytest.raises(MeasureError, match="not a measurement"):
        Measurement.from_json({"name": "x"})
