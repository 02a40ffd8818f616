"""Measuring the ceilings: candidates race at one footprint, the winner sweeps the footprints, a launch floor is fitted."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from rafters import device as devices
from rafters.cost import Cost
from rafters.errors import MeasureError
from rafters.roofline import choosing, compute, sampling, streams
from rafters.roofline import clocks as clocking
from rafters.roofline import rotation as rotating
from rafters.roofline.ceiling import Ceilings, Point
from rafters.roofline.statistics import Summary

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_QUICK_GPU = sampling.Rule(10, 0.05, 0.004, 0.4, 0.02)
_QUICK_CPU = sampling.Rule(8, 0.1, 0.01, 0.3, 0.02)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures: mixes, footprints in bytes, the footprint of the race, and the time a point may take."""

    mixes: tuple[streams.Mix, ...]
    footprints: tuple[int, ...]
    race_at: int
    rule: sampling.Rule
    hot_footprints: tuple[int, ...] = ()


def plan(facts: devices.DeviceFacts, quick: bool) -> Plan:
    """GPU: 64 KB to 4 GB; CPU: 64 KB to eight times the last-level cache (bounded by memory).

    The hot footprints go from 1/32 of the last cache to 4 times it, to find where it ends.
    """
    around = tuple(int(facts.l2_bytes * 2.0**i) for i in range(-5, 3, 2 if quick else 1))
    four, every = streams.MIXES[:4], streams.MIXES
    if facts.kind == "cuda":
        most = facts.memory_bytes // 8
        sizes = (64 * KIB, MIB, 16 * MIB, 256 * MIB, 2 * GIB) if quick else tuple(64 * KIB << (2 * i) for i in range(9))
        sizes = tuple(sorted({min(s, most) for s in sizes}))
        rule = _QUICK_GPU if quick else sampling.Rule(20, 0.2, 0.002, 0.6, 0.05)
        return Plan(four if quick else every, sizes, min(GIB, most), rule, around)
    largest = min((4 if quick else 8) * facts.l2_bytes, facts.memory_bytes // 16)
    sizes = (64 * KIB, MIB, 16 * MIB, largest) if quick else (*(64 * KIB << (2 * i) for i in range(6)), largest)
    rule = _QUICK_CPU if quick else sampling.Rule(15, 0.2, 0.005, 0.5, 0.05)
    return Plan(four if quick else every[:5], sizes, largest, rule, () if quick else around)


def run(device: torch.device, *, quick: bool, progress: Callable[[str], None]) -> Ceilings:
    """Measure everything `plan` asks for on `device`."""
    facts = devices.facts(device)
    todo = plan(facts, quick)
    pdl = device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
    points: list[Point] = []
    with_pdl: list[Point] = []
    for mix in todo.mixes:
        progress(f"{mix.name}: racing")
        runners = streams.candidates(mix, device, quick=quick)
        if not runners:
            continue
        for c in runners:
            streams.verify(c, mix, device)
        raced = {c.name: summary_of(c, mix, todo.race_at, facts, device, todo.rule) for c in runners}
        winner = min(runners, key=lambda c: raced[c.name].median)
        # A quick run takes the curve down to small sizes from the copy alone. The other mixes give their bandwidth, at the two
        # largest sizes: where a cache keeps a part of the smaller one, calls of that size are judged by it.
        for size in todo.footprints if mix is streams.COPY or not quick else todo.footprints[-2:]:
            progress(f"{mix.name}: {size / 1e6:,.2f} MB by {winner.name}")
            points.append(time_stream(winner, mix, size, facts, device, todo.rule))
        if mix is streams.COPY:
            with_pdl = _pdl_points(mix, todo, facts, device, quick) if pdl else []
            progress(f"{mix.name}: the cache by {winner.name}")
            points += [time_stream(winner, mix, s, facts, device, todo.rule, hot=True) for s in todo.hot_footprints]
    if not points:
        raise MeasureError(f"no stream runs on {device}")
    bandwidths = Ceilings(facts, tuple(points), 0.0).mixes
    return Ceilings(
        device=facts,
        points=tuple(points),
        launch_floor_s=launch_floor([p for p in points if p.state == "cold"], bandwidths),
        launch_floor_pdl_s=launch_floor(with_pdl, bandwidths) if with_pdl else None,
        compute=compute.compute_ceilings(device, quick=quick, progress=progress),
        quick=quick,
        environment=devices.environment(device).id,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def time_stream(
    candidate: streams.Candidate,
    mix: streams.Mix,
    footprint: int,
    facts: devices.DeviceFacts,
    device: torch.device,
    rule: sampling.Rule,
    *,
    hot: bool = False,
) -> Point:
    """The time of one stream over arrays of `footprint` bytes in all: the median, on a CPU the smallest.

    Nobody else computes on a GPU while we do; on a CPU other processes take their turns, and a ceiling is what is left without.
    """
    summary = summary_of(candidate, mix, footprint, facts, device, rule, hot=hot)
    seconds = summary.median if device.type == "cuda" else summary.min
    moved = mix.bytes(mix.elements(footprint))
    return Point(mix.name, mix.read_fraction, moved, seconds, candidate.name, "hot" if hot else "cold", summary.ci_width / 2)


def again(known: Ceilings, cost: Cost, device: torch.device) -> None:
    """Add to `known` what streams of the mix and the size of `cost` reach now.

    Ceilings are of the moment they were measured in. A call that stands above them is first held against this one: on a CPU
    that others use as well, they may have been taken while it was busy.
    """
    facts = devices.facts(device)
    if known.device != facts:
        return  # recorded elsewhere, or with other threads: not ours to mend
    footprint = min(cost.total_bytes, facts.memory_bytes // 16)
    rule = _QUICK_GPU if device.type == "cuda" else _QUICK_CPU
    for _, best in known.matching(cost.read_fraction, cost.total_bytes):
        mix = next((m for m in streams.MIXES if m.name == best.mix), None)
        runners = {c.name: c for c in streams.candidates(mix, device)} if mix else {}
        if mix and best.kernel in runners:
            known.points += (time_stream(runners[best.kernel], mix, footprint, facts, device, rule),)


def summary_of(
    candidate: streams.Candidate,
    mix: streams.Mix,
    footprint: int,
    facts: devices.DeviceFacts,
    device: torch.device,
    rule: sampling.Rule,
    *,
    hot: bool = False,
) -> Summary:
    """Seconds of one launch of a stream."""
    elements = mix.elements(footprint)
    moved = mix.bytes(elements)
    rotation = rotating.build(lambda: streams.arguments(mix, elements, device), moved, facts, device, hot=hot)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(candidate.threads or threads)
        with contextlib.closing(choosing.choose(candidate.run, rotation, device)) as timer:
            return sampling.sample(timer, clocking.reader(device), rule).summary()
    finally:
        torch.set_num_threads(threads)


def launch_floor(points: list[Point], bandwidths: dict[float, float]) -> float:
    """t0, in seconds: the smallest T - V / B of the streams that are too small for the bandwidth to matter (V / B < T / 2).

    The smallest, not a mean: t0 + V / B is a roof, and no stream that was measured may stand above it.
    """
    rest = {p: p.seconds - p.bytes / bandwidths[p.read_fraction] for p in points}
    small = [t0 for p, t0 in rest.items() if t0 > p.seconds / 2]
    smallest = min(points, key=lambda p: p.bytes)
    return min(small, default=max(rest[smallest], 0.0))


def _pdl_points(mix: streams.Mix, todo: Plan, facts: devices.DeviceFacts, device: torch.device, quick: bool) -> list[Point]:
    """The small copies again with programmatic dependent launch, where it is the launch that costs."""
    found = []
    for candidate in streams.candidates(mix, device, quick=True, pdl=True)[: 1 if quick else 3]:
        streams.verify(candidate, mix, device)
        sizes = [s for s in todo.footprints if s <= MIB]
        found += [time_stream(candidate, mix, s, facts, device, todo.rule) for s in sizes]
    return found
