"""The instrument on a GPU, held against timers written here by other means."""

import statistics

import pytest
import torch

from rafters import device as devices
from rafters.cost import Cost
from rafters.roofline import ceilings, clocks, measure, race, sandwiched

pytestmark = pytest.mark.gpu


def operands(n, dtype=torch.bfloat16):
    return torch.randn(n, device="cuda", dtype=dtype), torch.randn(n, device="cuda", dtype=dtype)


def add_cost(n):
    return Cost(4 * n, 2 * n, n)


def sets_for(n):
    """As many operand pairs as outgrow the L2 five times over, four at least."""
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    return [operands(n) for _ in range(max(4, min(2000, 5 * l2 // (6 * n) + 1)))]


def graph_loop(n, *, keep=True, replays=30):
    """Seconds per torch.add from a hand-written graph over rotated inputs; `keep=False` lets every output reuse one block."""
    sets = sets_for(n)
    torch.add(*sets[0])
    torch.cuda.synchronize()
    graph, kept = torch.cuda.CUDAGraph(), []
    passes = max(1, 200 // len(sets))  # one replay starts in some microseconds, which are to vanish among the launches
    with torch.cuda.graph(graph):
        for a, b in sets * passes:
            out = torch.add(a, b)
            if keep:
                kept.append(out)
                del kept[: -len(sets)]
    found = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e-3 / (passes * len(sets)))
    return statistics.median(found[replays // 3 :])


def profiled(n, calls=60):
    """Seconds per torch.add as the profiler's own kernel records have it."""
    sets = sets_for(n)
    kept = [torch.add(*s) for s in sets]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for i in range(calls):
            kept[i % len(sets)] = torch.add(*sets[i % len(sets)])
        torch.cuda.synchronize()
    kernels = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return statistics.median(e.time_range.elapsed_us() for e in kernels) * 1e-6


def write_flushed(n, calls=40):
    """Seconds per torch.add behind a flush that writes: the way that is wrong."""
    a, b = operands(n)
    flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size // 4, device="cuda", dtype=torch.int32)
    found = []
    for _ in range(calls):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.zero_()
        start.record()
        torch.add(a, b)
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(found)


@pytest.mark.parametrize("exponent", [16, 20, 22, 24, 26, 28])
def test_agrees_with_a_hand_written_graph(exponent):
    n = 1 << exponent
    m = measure(torch.add, operands(n), add_cost(n), reference=torch.add)
    assert m.ok, m.reasons
    assert m.timer == ("graph" if exponent < 26 else m.timer)
    assert m.seconds.median == pytest.approx(graph_loop(n), rel=0.03)


@pytest.mark.parametrize("exponent", [24, 26, 28])
def test_agrees_with_the_profiler(exponent):
    n = 1 << exponent
    m = measure(torch.add, operands(n), add_cost(n))
    assert m.seconds.median == pytest.approx(profiled(n), rel=0.03)


def test_the_two_classic_errors_are_errors():
    n = 1 << 24
    right = measure(torch.add, operands(n), add_cost(n)).seconds.median
    assert write_flushed(n) > 1.08 * right  # dirty lines of the flush are written back inside the timed kernel
    n = 1 << 21  # an output that stays in the L2 while the inputs stream through it; from 2^23 on it does not
    assert graph_loop(n, keep=False) < 0.97 * graph_loop(n)  # the one output never leaves the L2


def test_cold_and_hot_differ_where_the_cache_could_hold_the_data():
    n = 1 << 21
    cold = measure(torch.add, operands(n), add_cost(n))
    hot = measure(torch.add, operands(n), add_cost(n), hot=True)
    assert (cold.state, hot.state) == ("cold", "hot")
    assert hot.seconds.median < cold.seconds.median
    large = 1 << 28
    cold, hot = (measure(torch.add, operands(large), add_cost(large), hot=h).seconds.median for h in (False, True))
    assert hot == pytest.approx(cold, rel=0.03)


def test_the_count_works_on_the_device():
    assert measure(torch.add, operands(1 << 20)).cost == add_cost(1 << 20)


def test_no_memory_is_left_behind():
    n = 1 << 24
    x = operands(n)
    measure(torch.add, x, add_cost(n), time_limit_s=1.0)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    measure(torch.add, x, add_cost(n), time_limit_s=1.0)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before[0]
    assert torch.cuda.memory_reserved() <= before[1] + 4 * 2**20  # a segment or two of the allocator's own


def test_what_no_graph_can_hold_is_timed_by_events_and_says_so():
    m = measure(lambda a, b: torch.add(a, b).sum().item(), operands(1 << 16), add_cost(1 << 16), time_limit_s=1.0)
    assert m.timer == "events"
    assert any("no CUDA graph could be captured" in note for note in m.notes)
    assert torch.add(*operands(8)).isfinite().all()  # the device is usable afterwards


def test_host_cost_is_its_own_figure():
    m = measure(torch.add, operands(1 << 28), add_cost(1 << 28))
    assert 1.0 < m.host_us < 100.0
    assert m.seconds.median > 5 * m.host_us * 1e-6


def test_a_slower_rival_is_seen_as_such():
    found = race(
        {"one pass": torch.add, "two passes": lambda a, b: torch.add(a, b).mul_(1)},
        operands(1 << 24),
        add_cost(1 << 24),
        reference=torch.add,
    )
    assert found["two passes"].ratio_low > 1.3


def test_sandwiched_time_is_positive_and_small():
    x = torch.randn(128, 4096, device="cuda", dtype=torch.bfloat16)
    seconds = sandwiched(torch.nn.functional.silu, (x,))
    assert 0.3e-6 < seconds.median < 20e-6


def test_facts_and_clocks():
    facts = devices.facts("cuda")
    assert facts.uuid
    assert facts.l2_bytes > 1 << 20
    assert facts.capability == "{}.{}".format(*torch.cuda.get_device_capability())
    if devices.nvml() is not None:
        reading = clocks.reader(torch.device("cuda", 0))()
        assert reading.sm_mhz > 0
        assert facts.driver
    if facts.name == "NVIDIA H200":
        assert facts.theoretical_bandwidth == pytest.approx(4.814e12, rel=1e-3)


@pytest.mark.slow
def test_ceilings_are_inside_the_known_bands(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = ceilings("cuda")
    theory = found.device.theoretical_bandwidth
    assert theory is None or max(found.mixes.values()) < theory
    assert found.t0 < 5e-6
    if found.device.name == "NVIDIA H200":
        bands = {1.0: (4.4, 4.6), 0.0: (4.5, 4.75), 0.5: (4.2, 4.3), 2 / 3: (4.35, 4.45)}
        for mix, (low, high) in bands.items():
            assert low <= found.bandwidth(mix) / 1e12 <= high, mix
        assert 1e-6 <= found.launch_floor_s <= 2.5e-6
