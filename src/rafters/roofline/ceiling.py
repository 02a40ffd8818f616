"""The measured ceilings of a device: bandwidth by mix of reads and writes, and the fixed cost of a launch."""

from dataclasses import asdict, dataclass
from typing import Any

from rafters import device as devices
from rafters.cost import Cost
from rafters.errors import MeasureError

# A call is judged by streams that moved this share of its bytes or more: caches may serve smaller ones better than memory can.
_COMPARABLE = 1 / 8


@dataclass(frozen=True, slots=True)
class Point:
    """The best time of a stream of `bytes` bytes of one mix. `state` is "cold" or "hot" (L2).

    `doubt` is half the 95 % interval of `seconds`, as a share of it.
    """

    mix: str
    read_fraction: float
    bytes: int
    seconds: float
    kernel: str
    state: str = "cold"
    doubt: float = 0.0

    @property
    def bandwidth(self) -> float:
        return self.bytes / self.seconds

    @property
    def gbps(self) -> float:
        return self.bandwidth / 1e9


@dataclass(frozen=True, slots=True)
class ComputeCeiling:
    """FLOPs per second of one kind of arithmetic: "burst" from a cool start, "sustained" after the clocks have settled."""

    name: str
    dtype: str
    burst: float
    sustained: float


@dataclass(slots=True)
class Ceilings:
    """What one device reaches. `launch_floor_s` is t0; with programmatic dependent launch `launch_floor_pdl_s`, None without.

    They grow: a stream that is measured later and is faster (`ceiling_run.again`) is added to `points`.
    """

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
        return {fraction: p.bandwidth for fraction, p in self._best(0).items()}

    def _best(self, moved: float) -> dict[float, Point]:
        """Read fraction -> the fastest stream from memory that moved a comparable number of bytes or more, else the largest."""
        found: dict[float, Point] = {}
        for fraction in sorted({p.read_fraction for p in self.points if p.state == "cold"}):
            mine = [p for p in self.points if p.state == "cold" and p.read_fraction == fraction]
            least = min(moved * _COMPARABLE, max(p.bytes for p in mine))
            found[fraction] = max((p for p in mine if p.bytes >= least), key=lambda p: p.bandwidth)
        return found

    @property
    def cache_plateau(self) -> tuple[float, int] | None:
        """Bandwidth in bytes/s of a copy that stays in the last cache, and the bytes up to which it does; None if none shows.

        The edge is the largest footprint above the geometric mean of the plateau and the memory's bandwidth.
        """
        hot = [(p.bandwidth, p.bytes) for p in self.points if p.state == "hot"]
        memory = self.mixes.get(0.5)
        if not hot or not memory or max(hot)[0] < 1.2 * memory:
            return None
        top = max(hot)[0]
        return top, max(size for bandwidth, size in hot if bandwidth > (top * memory) ** 0.5)

    @property
    def t0(self) -> float:
        """The smaller of the two launch floors, in seconds: what a small call can reach on this device."""
        return min(self.launch_floor_s, self.launch_floor_pdl_s or self.launch_floor_s)

    def matching(self, read_fraction: float, moved: float = 0) -> list[tuple[float, Point]]:
        """The one or two measured streams that stand for a mix, with weights that add up to 1: its neighbours on either side.

        `moved` is how many bytes the call moves: streams that are much smaller do not count. Raises MeasureError if none is known.
        """
        known = list(self._best(moved).items())
        if not known:
            raise MeasureError("these ceilings hold no bandwidth")
        lower = max((m for m in known if m[0] <= read_fraction), default=known[0])
        upper = min((m for m in known if m[0] >= read_fraction), default=known[-1])
        if lower[0] == upper[0]:
            return [(1.0, lower[1])]
        part = (read_fraction - lower[0]) / (upper[0] - lower[0])
        return [(1.0 - part, lower[1]), (part, upper[1])]

    def bandwidth(self, read_fraction: float, moved: float = 0) -> float:
        """B(mix) in bytes/s of calls that move `moved` bytes, linear between the measured mixes; 0 is the largest of any size."""
        return sum(weight * p.bandwidth for weight, p in self.matching(read_fraction, moved))

    def doubt(self, read_fraction: float, moved: float = 0) -> float:
        """Half the 95 % interval of `bandwidth`, as a share of it."""
        return max(p.doubt for _, p in self.matching(read_fraction, moved))

    def attainable_seconds(self, cost: Cost, dtype: str = "") -> float:
        """T = t0 + max(V / B(mix), F / C): the least time of a call that moves V bytes and does F operations.

        C is the best arithmetic ceiling of `dtype` ("bf16"); where none was measured the bytes alone count.
        """
        compute = max((c.burst for c in self.compute if c.dtype == dtype), default=0.0)
        arithmetic = cost.flops / compute if compute else 0.0
        moved = cost.total_bytes
        memory = moved / self.bandwidth(cost.read_fraction, moved) if moved else 0.0
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
