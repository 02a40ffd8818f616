"""Which timer suits a function: it is run, estimated, and then told apart by how long it takes."""

import time
import warnings

import torch

from rafters.roofline.rotation import Rotation
from rafters.roofline.timers import (
    GRAPH_BELOW_S,
    MAX_SLEEP_S,
    EventTimer,
    Function,
    GraphTimer,
    Timer,
    WallTimer,
    block,
    event_pair,
)


def choose(fn: Function, rotation: Rotation, device: torch.device, *, graph_below_s: float = GRAPH_BELOW_S) -> Timer:
    """The timer that suits the function: run and estimated first, then a graph for the short and event pairs for the long."""
    if device.type != "cuda":
        return WallTimer(fn, rotation, _wall_estimate(fn, rotation))
    host_s, estimate_s = _cuda_estimate(fn, rotation, device)
    if estimate_s >= graph_below_s:
        return EventTimer(fn, rotation, estimate_s, host_s, device)
    stream = torch.cuda.current_stream(device)
    try:
        _refuse_synchronizing(fn, rotation)
        return GraphTimer(fn, rotation, estimate_s, device)
    except RuntimeError as error:
        torch.cuda.set_stream(stream)  # a capture that failed leaves its own stream current
        torch.cuda.synchronize(device)
        timer = EventTimer(fn, rotation, estimate_s, host_s, device)
        timer.notes.append(f"no CUDA graph could be captured ({str(error).splitlines()[0][:120]}): event pairs instead")
        return timer


def _refuse_synchronizing(fn: Function, rotation: Rotation) -> None:
    """RuntimeError if `fn` waits for the GPU: found before capture, since one that fails can leave torch's generator broken."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            fn(*rotation.sets[0])
        finally:
            torch.cuda.set_sync_debug_mode(mode)


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
        block(min(50.0 * host_s + 100e-6, MAX_SLEEP_S))
        first, last = event_pair()
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
