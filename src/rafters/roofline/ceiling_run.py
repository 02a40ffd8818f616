"""Measuring the ceilings: candidates race at one footprint, the winner sweeps the footprints, a launch floor is fitted."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from rafters import device as devices
from rafters.errors import MeasureError
from rafters.roofline import clocks as clocking
from rafters.roofline import rotation as rotating
from rafters.roofline import sampling, streams, timers
from rafters.roofline.ceiling import Ceilings, Point

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run measures: mixes, footprints in bytes, the footprint of the race, and the time a point may take."""

    mixes: tuple[streams.Mix, ...]
    footprints: tuple[int, ...]
    race_at: int
    rule: sampling.Rule


def plan(facts: devices.DeviceFacts, quick: bool) -> Plan:
    """GPU: 64 KB to 4 GB; CPU: 64 KB to eight times the last-level cache (bounded by memory)."""
    four = (streams.READ, streams.WRITE, streams.COPY, streams.ADD)
    every = (*four, streams.TRIAD, streams.THREE_TO_ONE, streams.ONE_TO_TWO)
    if facts.kind == "cuda":
        most = facts.memory_bytes // 8
        sizes = (64 * KIB, MIB, 16 * MIB, 256 * MIB, 2 * GIB) if quick else tuple(64 * KIB << (2 * i) for i in range(9))
        rule = sampling.Rule(10, 0.05, 0.004, 0.4, 0.02) if quick else sampling.Rule(20, 0.3, 0.002, 1.0, 0.1)
        return Plan(four if quick else every, tuple(min(s, most) for s in sizes), min(GIB, most), rule)
    largest = min(max(8 * facts.l2_bytes, 256 * MIB), facts.memory_bytes // 16)
    sizes = (64 * KIB, MIB, 16 * MIB, largest) if quick else (*(64 * KIB << (2 * i) for i in range(6)), largest)
    rule = sampling.Rule(8, 0.1, 0.01, 0.3, 0.02) if quick else sampling.Rule(20, 0.4, 0.005, 1.5, 0.1)
    return Plan(four if quick else every[:5], sizes, largest, rule)


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
        raced = {c.name: time_stream(c, mix, todo.race_at, facts, device, todo.rule) for c in runners}
        winner = min(runners, key=lambda c: raced[c.name].seconds)
        points.append(raced[winner.name])
        # A quick run takes the curve down to small sizes from the copy alone; the other mixes give their bandwidth.
        for size in todo.footprints if mix is streams.COPY or not quick else todo.footprints[-1:]:
            progress(f"{mix.name}: {size / 1e6:,.2f} MB by {winner.name}")
            points.append(time_stream(winner, mix, size, facts, device, todo.rule))
        if pdl and mix is streams.COPY:
            with_pdl = _pdl_points(mix, todo, facts, device, quick)
    if not points:
        raise MeasureError(f"no stream runs on {device}")
    bandwidths = Ceilings(facts, tuple(points), 0.0).mixes
    return Ceilings(
        device=facts,
        points=tuple(points),
        launch_floor_s=launch_floor(points, bandwidths),
        launch_floor_pdl_s=launch_floor(with_pdl, bandwidths) if with_pdl else None,
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
    elements = mix.elements(footprint)
    moved = mix.bytes(elements)
    rotation = rotating.build(lambda: streams.arguments(mix, elements, device), moved, facts, device, hot=hot)
    timer = timers.choose(candidate.run, rotation, device)
    try:
        summary = sampling.sample(timer, clocking.reader(device), rule).summary()
    finally:
        timer.close()
    seconds = summary.median if device.type == "cuda" else summary.min
    return Point(mix.name, mix.read_fraction, moved, seconds, candidate.name, "hot" if hot else "cold")


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
