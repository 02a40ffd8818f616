"""What there is to draw, with no library that draws: roofs, ridges, points, arrows."""

from collections.abc import Sequence
from dataclasses import dataclass

from rafters.roofline.ceiling import Ceilings
from rafters.roofline.measurement import Measurement
from rafters.roofline.results import Results

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


@dataclass(frozen=True, slots=True)
class Roof:
    """A line of the roofline: a slope in bytes/s or a flat in FLOP/s; `solid` if measured, dashed if theoretical."""

    name: str
    value: float
    is_slope: bool
    solid: bool = True


@dataclass(frozen=True, slots=True)
class Ridge:
    """Where a flat meets the highest measured slope: to the right of it the arithmetic is the limit."""

    name: str
    intensity: float
    flops: float


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement on the chart. `flops` and `attainable_flops` are per second, None where no FLOPs were counted;
    `share` is None where nothing is moved or nothing valid was measured."""

    number: int
    measurement: Measurement
    family: str
    intensity: float
    bytes: int
    flops: float | None
    attainable_flops: float | None
    share: float | None

    @property
    def label(self) -> str:
        m = self.measurement
        who = f" ({m.provider})" if m.provider and m.provider != m.name else ""
        return f"{m.name}{who} {m.shape} {m.dtype}".strip()


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything a drawing shows, in the order it is drawn. `arrows` lead from the number of a baseline to that of its
    rival, and from before to after."""

    title: str
    roofs: tuple[Roof, ...]
    ridges: tuple[Ridge, ...]
    points: tuple[Point, ...]
    arrows: tuple[tuple[int, int], ...]
    ceilings: Ceilings | None

    @property
    def families(self) -> list[str]:
        return sorted({p.family for p in self.points})

    def attainable_share(self, total_bytes: float, read_fraction: float = 0.5) -> float | None:
        """The latency curve: the share of the ceiling that a call of this size can attain, (V / B) / (t0 + V / B)."""
        if not self.ceilings:
            return None
        ideal = total_bytes / self.ceilings.bandwidth(read_fraction)
        return ideal / (self.ceilings.t0 + ideal)


def chart(results: Results) -> Chart:
    """The chart of a result file. Measurements without a valid time are in its table, not on it."""
    roofs = _roofs(results.roof) if results.roof else ()
    points = tuple(_point(i, m) for i, m in enumerate(results.measurements, 1))
    return Chart(results.label(), roofs, _ridges(roofs), points, _arrows(points), results.roof)


def _roofs(c: Ceilings) -> tuple[Roof, ...]:
    names = {p.read_fraction: p.mix for p in c.points if p.state == "cold" and p.mix != "triad"}
    found = [Roof(names.get(mix, f"{mix:.0%} read"), bandwidth, True) for mix, bandwidth in c.mixes.items()]
    if c.device.theoretical_bandwidth:
        found.append(Roof("theoretical", c.device.theoretical_bandwidth, True, solid=False))
    found += [Roof(f"{x.name}, sustained", x.sustained, False) for x in c.compute]
    return tuple(found)


def _ridges(roofs: Sequence[Roof]) -> tuple[Ridge, ...]:
    slopes = [r.value for r in roofs if r.is_slope and r.solid]
    if not slopes:
        return ()
    return tuple(Ridge(r.name, r.value / max(slopes), r.value) for r in roofs if not r.is_slope)


def _point(number: int, m: Measurement) -> Point:
    attainable = m.cost.flops / m.attainable_s if m.attainable_s and m.cost.flops else None
    return Point(
        number,
        m,
        m.family or m.name,
        m.cost.intensity,
        m.cost.total_bytes,
        m.flops_per_second if m.ok else None,
        attainable,
        m.share_of_attainable if m.ok and m.cost.total_bytes else None,
    )


def _arrows(points: Sequence[Point]) -> tuple[tuple[int, int], ...]:
    """From the baseline of a race to each rival that was paired with it; from a call to the same call in a later run."""
    baselines = {_row(p.measurement, p.measurement.provider): p.number for p in points}
    earlier: dict[tuple[str, ...], int] = {}
    found = []
    for p in points:
        m = p.measurement
        start = baselines.get(_row(m, m.ratio_to))
        if m.ratio_to and start is not None and start != p.number:
            found.append((start, p.number))
        call = (m.name, m.shape, m.dtype, m.state, m.provider)
        if call in earlier:
            found.append((earlier[call], p.number))
        earlier[call] = p.number
    return tuple(found)


def _row(m: Measurement, provider: str) -> tuple[str, ...]:
    return (m.name, m.shape, m.dtype, m.state, m.environment, provider)


def columns(p: Point) -> dict[str, str]:
    """The row of a point in every table, formatted. GB = 10^9 bytes."""
    m = p.measurement
    seconds = m.seconds.median if m.seconds else None
    interval = f"±{(m.seconds.ci_high - m.seconds.ci_low) / 2 / m.seconds.median:.1%}" if m.seconds and seconds else ""
    return {
        "#": str(p.number),
        "call": p.label,
        "µs": f"{seconds * 1e6:,.2f}" if seconds else "-",
        "±": interval,
        "GB/s": f"{m.bandwidth / 1e9:,.{0 if m.bandwidth >= 1e11 else 1}f}" if m.bandwidth else "-",
        "of ceiling": f"{m.share_of_ceiling:.1%}" if m.share_of_ceiling else "-",
        "of attainable": f"{m.share_of_attainable:.1%}" if m.share_of_attainable else "-",
        "host µs": f"{m.host_us:.1f}" if m.host_us is not None else "-",
        "L2": m.state,
        "verdict": m.verdict,
    }


def quantity(value: float) -> str:
    """A number with an SI prefix and no more digits than it needs."""
    for factor, prefix in _PREFIXES:
        if value >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.2g}"
