"""Timers and clock readers that say what a test wants them to say."""

from collections.abc import Iterator

from rafters.roofline.clocks import Clocks


class FakeTimer:
    """Gives the numbers of `seconds` in turn, three a block; the last one for ever."""

    name = "fake"

    def __init__(self, seconds: Iterator[float]):
        self.notes: list[str] = []
        self.closed = False
        self._seconds = seconds

    def enqueue(self) -> None:
        pass

    def collect(self) -> list[float]:
        return [next(self._seconds) for _ in range(3)]

    def close(self) -> None:
        self.closed = True


def timer(seconds: Iterator[float]):
    """A timer factory for `measure(..., timer=)`."""
    return lambda fn, rotation, device: FakeTimer(seconds)


def throttled() -> Clocks:
    return Clocks(sm_mhz=300, reasons=("thermal slowdown",), throttled=True)
