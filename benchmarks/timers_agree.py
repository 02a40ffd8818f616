"""Does `measure` agree with timers that share nothing with it? `python benchmarks/timers_agree.py --out benchmarks/results`

torch.add in bfloat16 at n = 2^16 ... 2^28, cold. Beside `measure` stands a train: one hand-written CUDA graph of N adds over
rotated arguments and results. All figures are seconds per add:

  graph      CUDA events around a replay / N
  device     the GPU's own %globaltimer, read by a kernel before and one after the adds / N
  wall       the host's clock around many replays that end with one synchronization / all of their adds
  period     from the profiler's record of each kernel of a replay: (start of the last - start of the first) / (N - 1)
  duration   the profiler's median duration of the kernels of plain launches, which leaves out the gap between two of them

The profiler slows what it watches: `slowed` is the train by %globaltimer with it / without. A period is divided by that before it
is compared (`less`), and counts where it is under 10 %; a duration counts from 2^24 on, where the gap (half a microsecond or more) is
small beside it. The others count at every size.

Then the two classic errors: the same train with one result block for all its adds, and single adds behind a flush that writes.
"""

# Compile-time arguments are UPPER.
# ruff: noqa: N803

import argparse
import json
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from rafters import device as devices
from rafters.cost import Cost
from rafters.roofline import measure

EXPONENTS = (16, 18, 20, 22, 24, 26, 28)
ERROR_EXPONENTS = (20, 21, 22, 23, 24, 26)
# Two timers agree within this; the profiler slows a train it may be compared on by less than that.
AGREEMENT, DISTURBED = 0.03, 0.10
DURATION_FROM = 24
_TRAIN_S = 5e-3
_MAX_NODES = 4000
_REPLAYS = 30


@triton.jit
def stamp_kernel(p_stamps, SLOT: tl.constexpr):
    tl.store(p_stamps + SLOT, globaltimer())


def operands(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, device="cuda", dtype=torch.bfloat16), torch.randn(n, device="cuda", dtype=torch.bfloat16)


def add_cost(n: int) -> Cost:
    return Cost(4 * n, 2 * n, n)


def sets_for(n: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """As many operand pairs as, with their results, outgrow the L2 five times over; four at least."""
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    return [operands(n) for _ in range(max(4, min(2000, 5 * l2 // (6 * n) + 1)))]


class Train:
    """`count` adds in one CUDA graph, between two reads of the GPU's timer; `keep=False` gives every add the same result block."""

    def __init__(self, n: int, *, keep: bool = True):
        sets = sets_for(n)
        guess = 6 * n / 4.3e12 + 1.3e-6  # a replay takes some microseconds to start, which are to vanish among the adds
        passes = max(1, min(_MAX_NODES // len(sets), math.ceil(_TRAIN_S / (guess * len(sets)))))
        self.count = passes * len(sets)
        self._stamps = torch.zeros(2, dtype=torch.int64, device="cuda")
        torch.add(*sets[0])
        stamp_kernel[(1,)](self._stamps, SLOT=0)
        stamp_kernel[(1,)](self._stamps, SLOT=1)
        torch.cuda.synchronize()
        self._graph, kept = torch.cuda.CUDAGraph(), deque[torch.Tensor](maxlen=len(sets) if keep else 0)
        with torch.cuda.graph(self._graph):
            stamp_kernel[(1,)](self._stamps, SLOT=0)
            for a, b in sets * passes:
                kept.append(torch.add(a, b))
            stamp_kernel[(1,)](self._stamps, SLOT=1)
        self._alive = (sets, kept)
        self._for(0.3)

    def _for(self, seconds: float) -> None:
        """Replay for about so long, so that the clocks settle."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self._graph.replay()
            torch.cuda.synchronize()

    def _replay_and(self, read: Callable[[], float]) -> float:
        self._graph.replay()
        torch.cuda.synchronize()
        return read()

    def graph(self) -> float:
        found = []
        for _ in range(_REPLAYS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            self._graph.replay()
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end) * 1e-3 / self.count)
        return statistics.median(found)

    def device(self, replays: int = _REPLAYS) -> float:
        def read() -> float:
            first, last = self._stamps.tolist()
            return (last - first) * 1e-9 / self.count

        return statistics.median(self._replay_and(read) for _ in range(replays))

    def wall(self) -> float:
        replays = max(_REPLAYS, round(0.3 / (self.graph() * self.count)))
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(replays):
            self._graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / (replays * self.count)

    def profiled(self, replays: int = 5) -> tuple[float | None, float]:
        """(period, the train by %globaltimer meanwhile); no period where the profiler did not record every add."""
        with _profile() as profile:
            meanwhile = self.device(replays)
        starts = sorted(e.time_range.start for e in _kernels(profile) if "stamp" not in e.name)
        if len(starts) != replays * self.count:
            return None, meanwhile
        trains = [starts[i : i + self.count] for i in range(0, len(starts), self.count)]
        return statistics.median((t[-1] - t[0]) * 1e-6 / (self.count - 1) for t in trains[1:]), meanwhile


def _profile() -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])


def _kernels(profile: Any) -> list[Any]:
    found = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return [e for e in found if not e.name.startswith(("Memcpy", "Memset"))]


def duration(n: int, calls: int = 60) -> float:
    """The profiler's median duration of an add among plain launches over rotated arguments and results."""
    sets = sets_for(n)
    kept = [torch.add(*s) for s in sets]
    with _profile() as profile:
        for i in range(calls):
            kept[i % len(sets)] = torch.add(*sets[i % len(sets)])
        torch.cuda.synchronize()
    return statistics.median(e.time_range.elapsed_us() for e in _kernels(profile)) * 1e-6


def write_flushed(n: int, calls: int = 40) -> float:
    """Seconds of an add behind a flush that writes 2 x L2, as `triton.testing.do_bench` flushes: the way that is wrong."""
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


def errors(exponent: int) -> dict[str, Any]:
    """One size, timed rightly and in two wrong ways; microseconds per add."""
    n = 1 << exponent
    rotated, one_block = (Train(n, keep=keep).graph() * 1e6 for keep in (True, False))
    return {
        "type": "timing_errors",
        "n": n,
        "rotated_us": rotated,
        "one_result_block_us": one_block,
        "write_flush_us": write_flushed(n) * 1e6,
    }


def row(exponent: int) -> dict[str, Any]:
    """One size, all timers but the profiler; times in microseconds per add."""
    n = 1 << exponent
    m = measure(torch.add, operands(n), add_cost(n), reference=torch.add)
    train = Train(n)
    found = {"graph": train.graph(), "device": train.device(), "wall": train.wall()}
    return {
        "type": "timers",
        "n": n,
        "exponent": exponent,
        "adds": train.count,
        "verdict": m.verdict,
        "timer": m.timer,
        "measure_us": m.seconds.median * 1e6 if m.seconds else None,
        **{f"{name}_us": s * 1e6 for name, s in found.items()},
    }


def with_profiler(found: dict[str, Any]) -> dict[str, Any]:
    """The row with the profiler's figures. They come after all others: what it leaves behind in the driver can slow what follows."""
    train = Train(found["n"])
    train.profiled(2)  # the profiler's own start is in its first use
    period, meanwhile = train.profiled()
    return {
        **found,
        "period_us": period * 1e6 if period is not None else None,
        "slowed": meanwhile * 1e6 / found["device_us"],
        "duration_us": duration(found["n"]) * 1e6,
    }


def comparable(found: dict[str, Any]) -> dict[str, float]:
    """Timer -> microseconds, of those that count at this size; see the head of this file."""
    counted = {name: found[f"{name}_us"] for name in ("graph", "device", "wall")}
    if found.get("period_us") is not None and found["slowed"] < 1 + DISTURBED:
        counted["period"] = found["period_us"] / found["slowed"]
    if "duration_us" in found and found["exponent"] >= DURATION_FROM:
        counted["duration"] = found["duration_us"]
    return counted


def disagreements(found: dict[str, Any]) -> dict[str, float]:
    """Timers that count and do not agree: their time over that of `measure`."""
    ratios = {name: us / found["measure_us"] for name, us in comparable(found).items()}
    return {name: ratio for name, ratio in ratios.items() if abs(ratio - 1) > AGREEMENT}


_SHOWN = ("measure", "graph", "device", "wall", "period", "duration")
HEAD = f"{'n':>5} {'adds':>5} {' '.join(f'{name:>9}' for name in _SHOWN)} {'slowed':>7} {'less':>9}  counted"


def line(found: dict[str, Any]) -> str:
    """The row as text, microseconds."""
    times = [found.get(f"{name}_us") for name in _SHOWN]
    shown = " ".join(f"{us:9.3f}" if us is not None else f"{'-':>9}" for us in times)
    less = comparable(found).get("period")
    slowed = f"{found['slowed']:7.3f}" if "slowed" in found else f"{'-':>7}"
    slowed += f" {less:9.3f}" if less else f" {'-':>9}"
    wrong = "".join(f"; {name} is {ratio - 1:+.1%} off" for name, ratio in disagreements(found).items())
    exponent = f"2^{found['exponent']}"
    return f"{exponent:>5} {found['adds']:5d} {shown} {slowed}  {' '.join(comparable(found))}{wrong}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the raw rows")
    options = parser.parse_args(arguments)
    print(HEAD, flush=True)
    timed = []
    for exponent in EXPONENTS:
        timed.append(row(exponent))
        print(line(timed[-1]), flush=True)
        torch.cuda.empty_cache()
    wrong = []
    for exponent in ERROR_EXPONENTS:
        found = errors(exponent)
        wrong.append(found)
        print(f"2^{exponent}: " + ", ".join(f"{k} {v:.2f}" for k, v in found.items() if k.endswith("_us")), flush=True)
        torch.cuda.empty_cache()
    print(HEAD, flush=True)
    for i, found in enumerate(timed):
        timed[i] = with_profiler(found)
        print(line(timed[i]), flush=True)
        torch.cuda.empty_cache()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"timers-{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl"
    records = [devices.environment().to_json(), *timed, *wrong]
    path.write_text("".join(json.dumps(r, sort_keys=True) + "\n" for r in records), encoding="utf-8")
    print(path)
    return int(any(disagreements(r) or r["verdict"] != "VALID" for r in timed))


if __name__ == "__main__":
    raise SystemExit(main())
