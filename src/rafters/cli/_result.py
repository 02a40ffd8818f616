"""What a benchmark found: rows, their table for a terminal, a notebook and a file."""

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from rafters.device import Environment
from rafters.roofline import Ceilings, Measurement, Results
from rafters.roofline.measurement import INVALID, WRONG, write_lines

DASH = "–"
COLUMNS = ("op", "shape", "dtype", "µs", "MB", "GB/s", "theoretical", "ceiling", "attainable", "host µs")
EAGER = {"torch": "eager", "traced": "eager"}


@dataclass(frozen=True)
class Row:
    """One op on one shape: its own measurement and its peers'; or the error that prevented one."""

    op: str
    shape: str
    dtype: str
    ours: Measurement | None = None
    peers: dict[str, Measurement] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str = ""
    left_out: bool = False

    @property
    def failed(self) -> bool:
        return bool(self.error) or (self.ours is not None and self.ours.verdict == WRONG)

    @property
    def measurements(self) -> list[Measurement]:
        return [*([self.ours] if self.ours else []), *self.peers.values()]


@dataclass(frozen=True)
class Bench:
    """A run of `rafters bench`. In a notebook it shows its table."""

    environment: Environment
    rows: tuple[Row, ...]
    roof: Ceilings | None = None

    @property
    def ok(self) -> bool:
        """Something ran, and nothing was wrong."""
        ran = any(r.ours is not None and r.ours.ok for r in self.rows)
        return ran and not any(r.failed for r in self.rows)

    @property
    def shown(self) -> list[Row]:
        return [row for row in self.rows if not row.left_out]

    @property
    def title(self) -> str:
        device = self.environment.device
        where = device.name if device.kind == "cuda" else f"CPU ({device.name}, {device.sm_count} threads)"
        versions = f"torch {self.environment.torch}" + (f", triton {self.environment.triton}" if self.environment.triton else "")
        return f"{where} · {versions} · cold cache · medians"

    @property
    def columns(self) -> list[str]:
        return [*COLUMNS, *(f"{p} µs (×)" for p in self._peers)]

    @property
    def _peers(self) -> list[str]:
        return list(dict.fromkeys(EAGER.get(name, name) for row in self.rows for name in row.peers))

    def cells(self, row: Row) -> list[str]:
        m, peers = row.ours, {EAGER.get(name, name): p for name, p in row.peers.items()}
        beside = [DASH if _withheld(p) else beside_cell(p) for p in map(peers.get, self._peers)]
        if m is None or _withheld(m):
            verdict = "failed" if m is None else m.verdict
            return [row.op, row.shape, row.dtype, verdict, *[DASH] * (len(COLUMNS) - 4), *beside]
        theoretical = self.environment.device.theoretical_bandwidth
        return [
            row.op,
            row.shape,
            row.dtype,
            microseconds(m),
            f"{m.cost.total_bytes / 1e6:,.4g}",
            f"{m.bandwidth / 1e9:,.1f}" if m.bandwidth else DASH,
            percent(m.bandwidth / theoretical if m.bandwidth and theoretical else None),
            percent(m.share_of_ceiling),
            percent(m.share_of_attainable),
            f"{m.host_us:.1f}" if m.host_us else DASH,
            *beside,
        ]

    def table(self) -> Table:
        table = Table(
            title=self.title, title_justify="left", caption=self.caption, caption_justify="left", box=None, pad_edge=False
        )
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="left" if i in (0, 2) else "right", no_wrap=i < 4)
        for row in self.shown:
            table.add_row(*self.cells(row), style="red" if row.failed else None)
        return table

    @property
    def caption(self) -> str:
        return (
            "Shares of the bandwidth: theoretical (of the memory's pins), ceiling (measured here, same mix of reads and writes), "
            "attainable (of t0 + bytes / ceiling). eager: PyTorch's function, or the op's maths in PyTorch operations where it "
            "has none. (×): how many times as long as rafters."
        )

    @property
    def remarks(self) -> list[str]:
        """What went wrong or is worth knowing, one line each."""
        lines: list[str] = []
        for row in self.rows:
            where = f"{row.op} {row.shape} {row.dtype}"
            lines += [f"{where}: {row.error}"] if row.error else []
            for m in row.measurements:
                lines += [f"{where}: {m.provider} {m.verdict}: {'; '.join(m.reasons)}"] if not m.ok else []
            lines += [f"{where}: {note}" for note in row.notes]
        if left := [f"{row.op} {row.shape}" for row in self.rows if row.left_out]:
            lines.append(f"left out, so that the run ends within two minutes (--shapes measures any): {', '.join(left)}")
        return list(dict.fromkeys(lines))

    def to_json(self) -> dict[str, Any]:
        return {"environment": self.environment.to_json(), "ok": self.ok, "rows": self.records()}

    def records(self) -> list[dict[str, Any]]:
        """One record a measurement, and one of type "error" for what did not run."""
        found: list[dict[str, Any]] = []
        for row in self.rows:
            found += [m.to_json() for m in row.measurements]
            if row.error:
                found.append({"type": "error", "name": row.op, "shape": row.shape, "dtype": row.dtype, "error": row.error})
        return found

    @property
    def results(self) -> Results:
        """What `read` gives for the file that `write` makes."""
        return Results(
            [m for row in self.rows for m in row.measurements],
            [self.roof] if self.roof else [],
            {self.environment.id: self.environment},
            "this run",
            {(row.op, row.shape, row.dtype): row.error for row in self.rows if row.error},
        )

    def write(self, path: Path) -> None:
        """JSON lines: the environment, the ceilings, then the records. A file that is there is added to."""
        write_lines(path, [self.environment, *([self.roof] if self.roof else []), *map(Record, self.records())])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(c)}</th>" for c in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in self.cells(r)) + "</tr>" for r in self.shown)
        notes = "".join(f"<br>{html.escape(line)}" for line in self.remarks)
        return (
            f"<table><caption>{html.escape(self.title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            f"<small>{html.escape(self.caption)}{notes}</small>"
        )


@dataclass(frozen=True)
class Record:
    """A record of a file that is nothing else here."""

    record: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return self.record


def _withheld(m: Measurement | None) -> bool:
    """A wrong result has no speed, and a figure above its ceiling is none."""
    return m is None or m.seconds is None or m.verdict == INVALID


def microseconds(m: Measurement | None) -> str:
    if m is None or m.seconds is None:
        return DASH
    us = m.seconds.median * 1e6
    return f"{us:,.0f}" if us >= 1000 else f"{us:.4g}"


def beside_cell(m: Measurement | None) -> str:
    """A peer's time and how many times ours it is."""
    return microseconds(m) + (f" ({m.ratio:.2f}×)" if m and m.ratio is not None else "")


def percent(share: float | None) -> str:
    return f"{share:.1%}" if share is not None else DASH
