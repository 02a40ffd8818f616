"""What a call costs at least: the bytes it must move and the arithmetic it must do."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes and FLOPs of one call.

    `read_bytes` and `written_bytes` are the minimum: each unique storage range once, a broadcast dimension once, a view for
    nothing, an in-place operand once read and once written. `flops` counts one for every arithmetic operation of an element
    (a transcendental counts as one as well); 0 means "none counted", as for a copy.
    """

    read_bytes: int
    written_bytes: int
    flops: int = 0

    @property
    def total_bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    @property
    def read_fraction(self) -> float:
        """Share of the traffic that is read: the mix that a bandwidth ceiling has to match. 0.5 is a copy, 2/3 an add."""
        return self.read_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def intensity(self) -> float:
        """FLOPs per byte: the x axis of the roofline."""
        return self.flops / self.total_bytes if self.total_bytes else 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.read_bytes + other.read_bytes, self.written_bytes + other.written_bytes, self.flops + other.flops)
