"""Timers: each turns a function and a rotation of arguments into samples of seconds per launch.

A timer first enqueues a block of launches and then collects it, so that the clocks can be read while the GPU is busy.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from rafters.roofline.rotation import Rotation

Function = Callable[..., Any]

# Below this one launch is too short for an event pair of its own (an event costs about a microsecond).
GRAPH_BELOW_S = 100e-6
# One replay should dwarf its own start, a few microseconds.
_REPLAY_S = 4e-3
_MAX_NODES = 4096
_BLOCK_S = 30e-3
_MAX_BLOCK = 32
# A block of events waits at most this long for the host to run ahead.
_MAX_SLEEP_S = 0.25


class Timer(Protocol):
    """What the sampling loop needs of a timer."""

    name: str
    notes: list[str]

    def enqueue(self) -> None: ...

    def collect(self) -> list[float]: ...

    def close(self) -> None: ...


class GraphTimer:
    """One CUDA graph of N launches over the rotated sets; a sample is one replay / N. No host time is in it."""

    name = "graph"

    def __init__(self, fn: Function, rotation: Rotation, estimate_s: float, device: torch.device):
        self.notes: list[str] = []
        self._device = device
        sets = rotation.sets
        # With a flush each set may be used once a pass; without one the rotation may go round again.
        passes = 1 if rotation.flush else max(1, min(_MAX_NODES // len(sets), round(_REPLAY_S / (estimate_s * len(sets)))))
        self.launches = passes * len(sets)
        self._flush = rotation.flush
        # Results live as long as a round, or the allocator would hand every launch the same block and no output leave the L2.
        kept: deque[Any] = deque(maxlen=len(sets))
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.device(device), torch.cuda.graph(self._graph, stream=stream):
            for i in range(self.launches):
                kept.append(fn(*sets[i % len(sets)]))
        self._keep = (kept, sets)
        replay_s = max(self.launches * estimate_s, 1e-6)
        self._events = [_event_pair() for _ in range(max(1, min(_MAX_BLOCK, int(_BLOCK_S / replay_s))))]

    def enqueue(self) -> None:
        with torch.cuda.device(self._device):
            for start, end in self._events:
                if self._flush:
                    self._flush()
                start.record()
                self._graph.replay()
                end.record()

    def collect(self) -> list[float]:
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) * 1e-3 / self.launches for start, end in self._events]

    def close(self) -> None:
        torch.cuda.synchronize(self._device)
        self._graph.reset()
        self._keep = None  # type: ignore[assignment]


class EventTimer:
    """An event pair around each launch, all of a block enqueued behind a blocking kernel, so that host gaps are not timed.

    Functions too short for that which no graph can hold share a pair between `launches` calls.
    """

    name = "events"

    def __init__(self, fn: Function, rotation: Rotation, estimate_s: float, host_s: float, device: torch.device):
        self.notes: list[str] = []
        self._fn, self._rotation, self._device = fn, rotation, device
        self.launches = max(1, min(len(rotation.sets), round(GRAPH_BELOW_S / max(estimate_s, 1e-7))))
        count = max(3, min(_MAX_BLOCK, int(_BLOCK_S / max(estimate_s * self.launches, 1e-6))))
        self._events = [_event_pair() for _ in range(count)]
        self._kept: deque[Any] = deque(maxlen=len(rotation.sets))
        self._next = 0
        self._sleep_s = 1.5 * host_s * count * self.launches + 100e-6
        self._gaps = False

    def enqueue(self) -> None:
        with torch.cuda.device(self._device):
            while not self._enqueue_behind_sleep() and self._sleep_s < _MAX_SLEEP_S:
                torch.cuda.synchronize(self._device)
                self._sleep_s = min(2.0 * self._sleep_s, _MAX_SLEEP_S)

    def _enqueue_behind_sleep(self) -> bool:
        """False if the GPU caught up with the host, so that this block has gaps in it."""
        _sleep(self._sleep_s)
        sets = self._rotation.sets
        for start, end in self._events:
            if self._rotation.flush:
                self._rotation.flush()
            start.record()
            for _ in range(self.launches):
                self._kept.append(self._fn(*sets[self._next % len(sets)]))
                self._next += 1
            end.record()
        ahead = not self._events[0][0].query()
        self._gaps = not ahead
        return ahead

    def collect(self) -> list[float]:
        torch.cuda.synchronize(self._device)
        gaps = "the host could not stay ahead of the GPU: gaps between launches are in the figure"
        if self._gaps and gaps not in self.notes:
            self.notes.append(gaps)
        return [start.elapsed_time(end) * 1e-3 / self.launches for start, end in self._events]

    def close(self) -> None:
        torch.cuda.synchronize(self._device)
        self._kept.clear()


class WallTimer:
    """`perf_counter` around calls of a synchronous function: the timer of a CPU."""

    name = "wall"

    def __init__(self, fn: Function, rotation: Rotation, estimate_s: float, clock: Callable[[], float] = time.perf_counter):
        self.notes: list[str] = []
        self._fn, self._rotation, self._clock = fn, rotation, clock
        # A sample lasts 100 us at least: the clock and the loop cost well under 1 % of it.
        self.launches = max(1, min(len(rotation.sets) if rotation.flush else 10_000, round(100e-6 / max(estimate_s, 1e-8))))
        self._kept: deque[Any] = deque(maxlen=len(rotation.sets))
        self._next = 0
        self._samples: list[float] = []

    def enqueue(self) -> None:
        deadline = self._clock() + _BLOCK_S
        self._samples = [self._sample()]
        while len(self._samples) < _MAX_BLOCK and self._clock() < deadline:
            self._samples.append(self._sample())

    def _sample(self) -> float:
        sets = self._rotation.sets
        if self._rotation.flush:
            self._rotation.flush()
        start = self._clock()
        for _ in range(self.launches):
            self._kept.append(self._fn(*sets[self._next % len(sets)]))
            self._next += 1
        return (self._clock() - start) / self.launches

    def collect(self) -> list[float]:
        return self._samples

    def close(self) -> None:
        self._kept.clear()


def choose(fn: Function, rotation: Rotation, device: torch.device, *, graph_below_s: float = GRAPH_BELOW_S) -> Timer:
    """The timer that suits the function: run and estimated first, then a graph for the short and event pairs for the long."""
    if device.type != "cuda":
        return WallTimer(fn, rotation, _wall_estimate(fn, rotation))
    host_s, estimate_s = _cuda_estimate(fn, rotation, device)
    if estimate_s >= graph_below_s:
        return EventTimer(fn, rotation, estimate_s, host_s, device)
    try:
        return GraphTimer(fn, rotation, estimate_s, device)
    except RuntimeError as error:
        torch.cuda.synchronize(device)
        timer = EventTimer(fn, rotation, estimate_s, host_s, device)
        timer.notes.append(f"no CUDA graph could be captured ({str(error).splitlines()[0][:120]}): event pairs instead")
        return timer


def host_seconds(fn: Function, rotation: Rotation, device: torch.device, rounds: int = 7) -> float | None:
    """Host time of one call: wall time of N calls without synchronizing / N, the median of `rounds`. None on a CPU.

    N stays far below the depth of the launch queue, or the host would wait for the GPU.
    """
    if device.type != "cuda":
        return None
    sets, found = rotation.sets, []
    fn(*sets[0])
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    fn(*sets[-1])
    torch.cuda.synchronize(device)
    calls = max(3, min(100, int(20e-3 / max(time.perf_counter() - start, 1e-6))))
    for _ in range(rounds):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        for i in range(calls):
            fn(*sets[i % len(sets)])
        found.append((time.perf_counter() - start) / calls)
    torch.cuda.synchronize(device)
    return sorted(found)[rounds // 2]


def _cuda_estimate(fn: Function, rotation: Rotation, device: torch.device) -> tuple[float, float]:
    """Host and device seconds of one call, roughly; also the first launch of everything, outside any capture."""
    sets = rotation.sets
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.device(device), torch.cuda.stream(side):
        for arguments in sets[:3]:
            fn(*arguments)
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        fn(*sets[-1])
        host_s = time.perf_counter() - start
        torch.cuda.synchronize(device)
        calls = 2 if time.perf_counter() - start > 10e-3 else 20
        _sleep(min(50.0 * host_s + 100e-6, _MAX_SLEEP_S))
        first, last = _event_pair()
        first.record()
        for i in range(calls):
            fn(*sets[i % len(sets)])
        last.record()
        torch.cuda.synchronize(device)
    return host_s, max(first.elapsed_time(last) * 1e-3 / calls, 1e-7)


def _wall_estimate(fn: Function, rotation: Rotation) -> float:
    found = []
    for i in range(4):
        start = time.perf_counter()
        fn(*rotation.sets[i % len(rotation.sets)])
        found.append(time.perf_counter() - start)
    return min(found)


def _event_pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _sleep(seconds: float) -> None:
    """Keep the stream busy for about `seconds`: the kernel spins for SM cycles, about 2 a nanosecond."""
    torch.cuda._sleep(int(seconds * 2e9))
