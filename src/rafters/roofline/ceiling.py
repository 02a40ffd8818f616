"""The measured ceilings of a device: bandwidth by mix of reads and writes, and the fixed cost of a launch."""

from dataclasses import asdict, dataclass
from typing import Any

from rafters import device as devices
from rafters.cost import Cost
from rafters.errors import MeasureError


@dataclass(frozen=True, slots=True)
class Point:
    """The best time of a stream of `bytes` bytes of one mix. `state` is "cold" or "hot" (L2)."""

    mix: str
    read_fraction: float
    bytes: int
    seconds: float
    kernel: str
    state: str = "cold"

    @property
    def gbps(self) -> float:
        return self.bytes / self.seconds / 1e9


@dataclass(frozen=True, slots=True)
class ComputeCeiling:
    """FLOPs per second of one kind of arithmetic: "burst" from a cool start, "sustained" after the clocks have settled."""

    name: str
    dtype: str
    burst: float
    sustained: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What one device reaches. `launch_floor_s` is t0; with programmatic dependent launch `launch_floor_pdl_s`, None without."""

    device: devices.DeviceFacts
    points: tuple[Point, ...]
    launch_floor_s: float
    launch_floor_pdl_s: float | None = None
    compute: tuple[ComputeCeiling, ...] = ()
    quick: bool = False
    environment: str = ""
    date: str = ""

    @property
    def mixes(self) -> dict[float, float]:
        """Read fraction -> the largest bandwidth in bytes/s that a stream from memory reached, in order of the fraction."""
        best: dict[float, float] = {}
        for p in self.points:
            if p.state == "cold":
                best[p.read_fraction] = max(best.get(p.read_fraction, 0.0), p.bytes / p.seconds)
        return dict(sorted(best.items()))

    @property
    def cache_plateau(self) -> tuple[float, int] | None:
        """Bandwidth in bytes/s of a copy that stays in the last cache, and the bytes up to which it does; None if none shows.

        The edge is the largest footprint above the geometric mean of the plateau and the memory's bandwidth.
        """
        hot = [(p.bytes / p.seconds, p.bytes) for p in self.points if p.state == "hot"]
        memory = self.mixes.get(0.5)
        if not hot or not memory or max(hot)[0] < 1.2 * memory:
            return None
        top = max(hot)[0]
        return top, max(size for bandwidth, size in hot if bandwidth > (top * memory) ** 0.5)

    @property
    def t0(self) -> float:
        """The smaller of the two launch floors, in seconds: what a small call can reach on this device."""
        return min(self.launch_floor_s, self.launch_floor_pdl_s or self.launch_floor_s)

    def bandwidth(self, read_fraction: float, total_bytes: int | None = None) -> float:
        """B(mix) in bytes/s, linear between the measured mixes; with `total_bytes` V, what a call attains: V / (t0 + V / B)."""
        known = list(self.mixes.items())
        if not known:
            raise MeasureError("these ceilings hold no bandwidth")
        lower = max((m for m in known if m[0] <= read_fraction), default=known[0])
        upper = min((m for m in known if m[0] >= read_fraction), default=known[-1])
        span = upper[0] - lower[0]
        part = (read_fraction - lower[0]) / span if span else 0.0
        slope = lower[1] + part * (upper[1] - lower[1])
        return slope if total_bytes is None else total_bytes / (self.t0 + total_bytes / slope)

    def attainable_seconds(self, cost: Cost, dtype: str = "") -> float:
        """T = t0 + max(V / B(mix), F / C): the least time of a call that moves V bytes and does F operations.

        C is the best arithmetic ceiling of `dtype` ("bf16"); where none was measured the bytes alone count.
        """
        compute = max((c.burst for c in self.compute if c.dtype == dtype), default=0.0)
        arithmetic = cost.flops / compute if compute else 0.0
        memory = cost.total_bytes / self.bandwidth(cost.read_fraction) if cost.total_bytes else 0.0
        return self.t0 + max(memory, arithmetic)

    def to_json(self) -> dict[str, Any]:
        """The published form; `from_json` reads it back."""
        theoretical = self.device.theoretical_bandwidth
        return {
            "type": "ceilings",
            "device": asdict(self.device),
            "theoretical": {"gbps": theoretical / 1e9 if theoretical else None},
            "ceilings": [{**asdict(p), "gbps": p.gbps} for p in self.points],
            "launch_floor_us": self.launch_floor_s * 1e6,
            "launch_floor_pdl_us": self.launch_floor_pdl_s * 1e6 if self.launch_floor_pdl_s is not None else None,
            "compute": [asdict(c) for c in self.compute],
            "quick": self.quick,
            "environment": self.environment,
            "date": self.date,
        }

    @staticmethod
    def from_json(record: dict[str, Any]) -> "Ceilings":
        """Raises MeasureError for a record that is not one of ceilings."""
        try:
            pdl = record["launch_floor_pdl_us"]
            points = tuple(Point(**{k: v for k, v in p.items() if k != "gbps"}) for p in record["ceilings"])
            if not all(p.seconds > 0 and p.bytes > 0 for p in points):
                raise MeasureError("not ceilings: a point without bytes or seconds")
            return Ceilings(
                device=devices.DeviceFacts(**record["device"]),
                points=points,
                launch_floor_s=record["launch_floor_us"] * 1e-6,
                launch_floor_pdl_s=pdl * 1e-6 if pdl is not None else None,
                compute=tuple(ComputeCeiling(**c) for c in record["compute"]),
                quick=record["quick"],
                environment=record["environment"],
                date=record["date"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise MeasureError(f"not ceilings: {error!r}") from error
