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
MAX_SLEEP_S = 0.25


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
        self._events = [event_pair() for _ in range(max(1, min(_MAX_BLOCK, int(_BLOCK_S / replay_s))))]

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
        self._events = [event_pair() for _ in range(count)]
        self._kept: deque[Any] = deque(maxlen=len(rotation.sets))
        self._next = 0
        self._sleep_s = 1.5 * host_s * count * self.launches + 100e-6
        self._gaps = False

    def enqueue(self) -> None:
        with torch.cuda.device(self._device):
            while not self._enqueue_behind_sleep() and self._sleep_s:
                torch.cuda.synchronize(self._device)
                # A function that waits for the GPU itself never gets ahead of it: give the waiting up, and say so.
                self._sleep_s = 2.0 * self._sleep_s if self._sleep_s < MAX_SLEEP_S else 0.0

    def _enqueue_behind_sleep(self) -> bool:
        """False if the GPU caught up with the host, so that this block has gaps in it."""
        if self._sleep_s:
            block(self._sleep_s)
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
        self._rotation = Rotation([], hot=False)  # a closed timer keeps no tensors alive


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
        self._rotation = Rotation([], hot=False)


def event_pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def block(seconds: float) -> None:
    """Keep the stream busy for about `seconds`: the kernel spins for SM cycles, about 2 a nanosecond."""
    torch.cuda._sleep(int(seconds * 2e9))
