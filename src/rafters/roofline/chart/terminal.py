"""The chart in characters: 80 x 24 is enough, and it survives ssh."""

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence

from rafters.roofline.chart.model import Chart, Point, Roof, columns, quantity

_CALL_WIDTH = 30
# Lines of a view beside its grid: the axis, and up to two each of the title, the roofs and the ridges.
_AROUND = 8
_TEXT = ("call", "verdict", "mix", "by", "why")
_SYMBOLS = "123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def symbol(number: int) -> str:
    """The character of a point: its number, then letters, then a dot."""
    return _SYMBOLS[number - 1] if number <= len(_SYMBOLS) else "•"


class Grid:
    """Characters addressed by numbers on two axes, each logarithmic or linear."""

    def __init__(self, width: int, height: int, x: tuple[float, float], y: tuple[float, float], *, log_y: bool = True):
        self.width, self.height, self.x, self.y, self.log_y = width, height, x, y, log_y
        self.cells = [[" "] * width for _ in range(height)]

    def column(self, x: float) -> int:
        return round((self.width - 1) * _fraction(x, self.x, log=True))

    def row(self, y: float) -> int:
        return self.height - 1 - round((self.height - 1) * _fraction(y, self.y, log=self.log_y))

    def put(self, x: float, y: float, character: str) -> None:
        if x <= 0 or (self.log_y and y <= 0):
            return
        c, r = self.column(x), self.row(y)
        if 0 <= c < self.width and 0 <= r < self.height:
            self.cells[r][c] = character

    def curve(self, function: Callable[[float], float], character: str) -> None:
        """One character a column."""
        for c in range(self.width):
            x = 10 ** (math.log10(self.x[0]) + c / (self.width - 1) * math.log10(self.x[1] / self.x[0]))
            self.put(x, function(x), character)

    def text(self, x: float, y: float, words: str) -> None:
        """Words that begin at a place, moved left so that they fit and are cut if they cannot."""
        r = self.row(y)
        start = max(0, min(self.column(x), self.width - len(words)))
        if 0 <= r < self.height:
            for i, character in enumerate(words[: self.width]):
                self.cells[r][start + i] = character

    def render(self, ticks: Sequence[float], y_label: Callable[[float], str], x_label: str) -> list[str]:
        labels = {self.row(t): y_label(t) for t in ticks}
        lines = [f"{labels.get(r, ''):>8} │{''.join(cells)}".rstrip() for r, cells in enumerate(self.cells)]
        ends = quantity(self.x[0]), quantity(self.x[1])
        middle = x_label[: max(0, self.width - len(ends[0]) - len(ends[1]) - 2)].center(self.width - len(ends[0]) - len(ends[1]))
        return [*lines, " " * 9 + "└" + "─" * self.width, " " * 10 + ends[0] + middle + ends[1]]


def draw(chart: Chart, width: int = 80, height: int = 24) -> str:
    """Both views and the table as text of at most `width` columns; each view is at most `height` lines."""
    parts = _wrapped(chart.title, width)
    if any(r.is_slope for r in chart.roofs):
        parts += roofline(chart, width, height)
    sized = [p for p in chart.points if p.share is not None]
    if sized:
        parts += ["", *shares(chart, sized, width, height)]
    if chart.points:
        parts += ["", *table((columns(p) for p in chart.points), width)]
    return "\n".join(parts)


def roofline(chart: Chart, width: int, height: int) -> list[str]:
    """FLOP/s against FLOP/byte: `/` measured roofs (between the mixes a band), `.` theory, `=` arithmetic, digits the calls."""
    slopes = [r for r in chart.roofs if r.is_slope]
    flats = [r for r in chart.roofs if not r.is_slope]
    solid = [r.value for r in slopes if r.solid]
    placed = [p for p in chart.points if p.flops]
    x = _around([p.intensity for p in placed] + [r.intensity for r in chart.ridges] + [0.1, 10.0])
    top = max([f.value for f in flats], default=math.inf)
    y = _around([p.flops for p in placed if p.flops] + [x[0] * min(solid), min(top, x[1] * max(solid))])
    grid = Grid(width - 10, height - _AROUND, x, y)
    for roof in flats:
        grid.curve(lambda _, v=roof.value: v, "=")  # type: ignore[misc]
    for roof in (r for r in slopes if not r.solid):
        grid.curve(lambda i, v=roof.value: min(v * i, top), ".")  # type: ignore[misc]
    for value in {min(solid), max(solid)}:
        grid.curve(lambda i, v=value: min(v * i, top), "/")  # type: ignore[misc]
    for roof in flats:
        grid.text(x[0], roof.value, f" {roof.name} {quantity(roof.value)}FLOP/s ")
    for p in placed:
        grid.put(p.intensity, p.flops or 0.0, symbol(p.number))
    ridges = ", ".join(f"{r.name.removesuffix(', sustained')} {r.intensity:.3g}" for r in chart.ridges)
    lines = grid.render(_decades(y), quantity, "FLOP per byte")
    return [*lines, *_wrapped(f"/ {_band(slopes)}", width), *(_wrapped(f"ridges (FLOP/byte): {ridges}", width) if ridges else [])]


def shares(chart: Chart, points: Sequence[Point], width: int, height: int) -> list[str]:
    """Share of attainable against bytes moved; `~` is the share of the ceiling that a copy of that size can attain."""
    x = _around([float(p.bytes) for p in points])
    top = max(1.0, *(p.share or 0.0 for p in points)) * 1.05
    grid = Grid(width - 10, height - _AROUND, x, (0.0, top), log_y=False)
    grid.curve(lambda _: 1.0, "─")
    if chart.ceilings:
        grid.curve(lambda v: chart.attainable_share(v) or 0.0, "~")
    for p in points:
        grid.put(p.bytes, p.share or 0.0, symbol(p.number))
    rendered = grid.render([i / 4 for i in range(int(top * 4) + 1)], lambda v: f"{v:.0%}", "bytes moved")
    return ["share of attainable; ~ what a copy attains of the ceiling", *rendered]


def table(rows: Iterable[dict[str, str]], width: int) -> list[str]:
    """Columns aligned in `width`: the dispensable ones fall away first, then the text of the call is cut."""
    found = list(rows)
    names = [n for n in found[0] if any(r[n] for r in found)]
    sizes = {n: max(len(n), *(len(r[n]) for r in found)) for n in names}

    def excess() -> int:
        return sum(sizes[n] for n in names) + 2 * (len(names) - 1) - width

    for optional in ("L2", "±", "of ceiling", "host µs"):
        if optional in names and excess() > max(0, sizes.get("call", 0) - _CALL_WIDTH):
            names.remove(optional)
    if excess() > 0 and "call" in sizes:
        sizes["call"] = max(12, sizes["call"] - excess())

    def line(row: dict[str, str]) -> str:
        cells = [row[n][: sizes[n]].ljust(sizes[n]) if n in _TEXT else row[n].rjust(sizes[n]) for n in names]
        return "  ".join(cells).rstrip()

    return [line({n: n for n in names}), *(line(r) for r in found)]


def _wrapped(text: str, width: int) -> list[str]:
    """At most two lines, and dots for what does not fit."""
    return textwrap.wrap(text, width, max_lines=2, placeholder=" ...")


def _band(slopes: Sequence[Roof]) -> str:
    solid = sorted((r for r in slopes if r.solid), key=lambda r: r.value)
    named = ", ".join(f"{r.name} {quantity(r.value)}B/s" for r in solid)
    theory = [f"; . theoretical {quantity(r.value)}B/s" for r in slopes if not r.solid]
    return named + "".join(theory)


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Whole decades around the values."""
    known = [v for v in values if v > 0]
    low, high = 10.0 ** math.floor(math.log10(min(known))), 10.0 ** math.ceil(math.log10(max(known)))
    return low, high if high > low else low * 10.0


def _decades(limits: tuple[float, float]) -> list[float]:
    """The powers of ten between two of them, at most seven."""
    low, high = (round(math.log10(v)) for v in limits)
    return [10.0**e for e in range(low, high + 1, 1 + (high - low) // 7)]


def _fraction(value: float, limits: tuple[float, float], *, log: bool) -> float:
    low, high = limits
    if log:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)
