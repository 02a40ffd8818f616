"""The timers of a GPU against a simulated one, whose true times are known; the timer of a CPU against a fake clock."""

import itertools

import pytest
import simulated
import torch

from rafters.cost import Cost
from rafters.roofline import choosing, clocks, measure, race, sandwich, timers
from rafters.roofline import rotation as rotating

X = (torch.zeros(256),)


@pytest.fixture
def gpu(monkeypatch):
    found = simulated.Gpu()
    simulated.install(monkeypatch, found)
    return found


def rotation(sets=8, flush=None):
    return rotating.Rotation([rotating.clone(X) for _ in range(sets)], hot=False, flush=flush)


@pytest.mark.parametrize(
    ("seconds", "name"),
    [(0.6e-6, "graph"), (5e-6, "graph"), (50e-6, "graph"), (150e-6, "events"), (2e-3, "events"), (50e-3, "events")],
)
def test_short_kernels_get_a_graph_long_ones_events_and_both_are_right(gpu, seconds, name):
    timer = choosing.choose(gpu.kernel(seconds), rotation(), simulated.DEVICE)
    assert timer.name == name
    timer.enqueue()
    assert timer.collect() == pytest.approx([seconds] * len(timer.collect()), rel=5e-3)
    assert timer.notes == []


def test_a_graph_is_long_enough_to_dwarf_its_own_start_and_walks_all_sets(gpu):
    timer = choosing.choose(gpu.kernel(2e-6), rotation(sets=100), simulated.DEVICE)
    assert timer.launches % 100 == 0
    assert timer.launches * 2e-6 > 100 * gpu.replay_s


def test_with_a_flush_each_set_is_used_once_and_the_flush_is_not_timed(gpu):
    flushed = []

    def flush():
        flushed.append(1)
        gpu.launch(40e-6)

    timer = choosing.choose(gpu.kernel(2e-6), rotation(sets=1000, flush=flush), simulated.DEVICE)
    assert timer.launches == 1000
    timer.enqueue()
    assert timer.collect()[0] == pytest.approx(2e-6, rel=5e-3)
    assert len(flushed) == len(timer.collect())


def test_events_do_not_see_a_slow_host(gpu):
    gpu.host_s = 400e-6  # slower than the kernel: without the blocking kernel every figure would be the host's
    timer = choosing.choose(gpu.kernel(150e-6), rotation(), simulated.DEVICE)
    timer.enqueue()
    samples = timer.collect()
    assert samples == pytest.approx([150e-6] * len(samples), rel=5e-3)
    assert timer.notes == []


def test_a_function_that_waits_is_timed_by_events_with_both_remarks(gpu):
    timer = choosing.choose(gpu.waiting_kernel(20e-6), rotation(), simulated.DEVICE)
    assert timer.name == "events"
    timer.enqueue()
    timer.collect()
    assert "no CUDA graph could be captured" in timer.notes[0]
    assert "the host could not stay ahead" in timer.notes[1]
    before = gpu.host
    timer.enqueue()
    assert gpu.host - before < timers.MAX_SLEEP_S  # the waiting was given up


def test_results_live_for_a_round(gpu):
    alive = []

    def fn(x):
        alive.append(torch.zeros(1))
        gpu.launch(2e-6)
        return alive[-1]

    timer = timers.GraphTimer(fn, rotation(sets=16), 2e-6, simulated.DEVICE)
    assert len(timer._keep[0]) == 16
    timer.close()
    assert timer._keep is None


def test_host_cost_is_the_host_s_alone(gpu):
    assert choosing.host_seconds(gpu.kernel(3e-6), rotation(), simulated.DEVICE) == pytest.approx(5e-6)
    assert choosing.host_seconds(gpu.kernel(30e-3), rotation(), simulated.DEVICE) == pytest.approx(5e-6)


def test_a_whole_measurement(gpu):
    m = measure(gpu.kernel(5e-6), X, Cost(1024, 1024), time_limit_s=2.0, min_time_s=0.01, warm_up_s=0.0)
    assert (m.verdict, m.timer, m.stop_reason, m.state) == ("VALID", "graph", "converged", "cold")
    assert m.seconds.median == pytest.approx(5e-6, rel=5e-3)
    assert m.host_us == pytest.approx(5.0)
    assert m.environment == "simulated"


def test_above_the_theoretical_bandwidth_is_invalid_without_ceilings(gpu):
    m = measure(gpu.kernel(0.2e-6), X, Cost(10**6, 10**6), time_limit_s=0.5, min_time_s=0, warm_up_s=0.0)
    assert m.verdict == "INVALID"
    assert "of the ceiling of 3,072 GB/s cannot be true" in m.reasons[0]


def test_a_race(gpu):
    found = race(
        {"a": gpu.kernel(200e-6), "b": gpu.kernel(100e-6)}, X, Cost(1024, 1024), min_time_s=0.01, time_limit_s=1.0, warm_up_s=0.0
    )
    assert found["b"].ratio == pytest.approx(0.5, rel=1e-2)


def test_sandwiched_difference_of_graphs(gpu):
    def chain(n, seconds):
        def run():
            for _ in range(n):
                gpu.launch(seconds)

        return run

    empty = rotating.Rotation([()], hot=False)
    both = [choosing.choose(chain(24, s), empty, simulated.DEVICE, graph_below_s=float("inf")) for s in (22e-6, 20e-6)]
    assert [t.name for t in both] == ["graph", "graph"]
    found = sandwich._differences(both, 24, 3, 1.0, clocks.reader(simulated.DEVICE))
    assert found.median == pytest.approx(2e-6, rel=1e-2)


def test_wall_timer_divides_by_its_calls_and_leaves_the_flush_out():
    ticks = itertools.count(0.0, 1e-3)  # every look at the clock takes a millisecond
    flushed = []
    timer = timers.WallTimer(lambda x: x, rotation(4, flush=lambda: flushed.append(next(ticks))), 10e-6, lambda: next(ticks))
    assert timer.launches == 4
    timer.enqueue()
    samples = timer.collect()
    assert samples == pytest.approx([1e-3 / 4] * len(samples))
    assert len(flushed) == len(samples)
