"""A GPU that is a pair of clocks: enough of `torch.cuda` to run the timers and to know what they ought to find.

The host enqueues and runs ahead; the stream works off what was enqueued. Every launch costs `host_s` on one and its own time on
the other; a graph's replay costs `replay_s` once.
"""

import contextlib
import dataclasses
from types import SimpleNamespace

import made
import torch

DEVICE = torch.device("cuda", 0)
FACTS = dataclasses.replace(made.GPU, l2_bytes=1 << 16)


class Gpu:
    def __init__(self, host_s: float = 5e-6, replay_s: float = 3e-6):
        self.host, self.stream = 0.0, 0.0
        self.host_s, self.replay_s = host_s, replay_s
        self.capturing: list[float] | None = None
        self.refuse_sync = False
        self.launches = 0

    def launch(self, seconds: float) -> None:
        self.launches += 1
        if self.capturing is not None:
            self.capturing.append(seconds)
            return
        self.host += self.host_s
        self.stream = max(self.stream, self.host) + seconds

    def synchronize(self, *_) -> None:
        if self.refuse_sync or self.capturing is not None:
            raise RuntimeError("called a synchronizing CUDA operation")
        self.host = max(self.host, self.stream)

    def kernel(self, seconds: float):
        """A function of one tensor that takes `seconds`."""

        def run(x):
            self.launch(seconds)
            return x + 1

        return run

    def waiting_kernel(self, seconds: float):
        def run(x):
            self.launch(seconds)
            self.synchronize()
            return x + 1

        return run


def install(monkeypatch, gpu: Gpu) -> None:
    """Put `gpu` where torch looks for one."""

    class Event:
        def __init__(self, enable_timing=False):
            assert enable_timing

        def record(self):
            gpu.host += 0.2e-6
            gpu.stream = self.at = max(gpu.stream, gpu.host)

        def query(self):
            return self.at <= gpu.host

        def elapsed_time(self, other):
            return (other.at - self.at) * 1e3

    class Graph:
        def __init__(self):
            self.work = []

        def replay(self):
            gpu.launch(sum(self.work) + gpu.replay_s)

        def reset(self):
            self.work = []

    @contextlib.contextmanager
    def graph(target, stream=None):
        gpu.capturing = target.work
        try:
            yield
        finally:
            gpu.capturing = None

    class Stream:
        def __init__(self, device=None):
            pass

        def wait_stream(self, other):
            pass

    def debug_mode(mode):
        gpu.refuse_sync = mode == "error"

    fakes = {
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": graph,
        "Stream": Stream,
        "current_stream": lambda device=None: Stream(),
        "set_stream": lambda stream: None,
        "stream": lambda stream: contextlib.nullcontext(),
        "device": lambda device: contextlib.nullcontext(),
        "synchronize": gpu.synchronize,
        "_sleep": lambda cycles: gpu.launch(cycles / 2e9),
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": debug_mode,
        "mem_get_info": lambda device=None: (1 << 36, 1 << 37),
        "memory_reserved": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
        "empty_cache": lambda: None,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    clock = SimpleNamespace(perf_counter=lambda: gpu.host)
    monkeypatch.setattr("rafters.roofline.choosing.time", clock)
    monkeypatch.setattr("rafters.device.resolve", lambda device=None: DEVICE)
    monkeypatch.setattr("rafters.device.facts", lambda device=None: FACTS)
    monkeypatch.setattr("rafters.device.nvml_handle", lambda device: None)
    monkeypatch.setattr("rafters.roofline.measuring._environment_id", lambda device: "simulated")
