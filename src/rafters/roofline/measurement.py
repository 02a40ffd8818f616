"""A measurement: one figure and all that has to stand beside it. Written and read as one line of JSON."""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rafters.cost import Cost
from rafters.errors import MeasureError
from rafters.roofline.statistics import Summary

VALID, THROTTLED, INVALID, WRONG = "VALID", "THROTTLED", "INVALID", "WRONG"


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one call costs on one device.

    `seconds` holds the quantiles of the time per call, None if the result was wrong: a wrong result has no speed. `host_us` is
    the host's own time per call. `state` is "cold" or "hot" (L2). `verdict` is VALID, THROTTLED (every sample was), INVALID (the
    figure cannot be true) or WRONG, with `reasons`; `notes` are remarks that do not invalidate. `ceiling` is the bandwidth
    (bytes/s) that the call's mix of reads and writes was judged against and `attainable_s` the time t0 + V / B. `ratio` is this
    time over that of the provider `ratio_to`, from interleaved rounds, with its 95 % interval. `sandwiched_s` is the time between
    matrix products, where that was asked for.
    """

    name: str
    provider: str
    shape: str
    dtype: str
    cost: Cost
    seconds: Summary | None
    host_us: float | None
    samples: int
    throttled: int
    stop_reason: str
    state: str
    timer: str
    verdict: str
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ceiling: float | None = None
    attainable_s: float | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    family: str = ""
    environment: str = ""
    date: str = ""
    seed: int | None = None
    sandwiched_s: float | None = None
    ratio_to: str = ""
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None

    @property
    def ok(self) -> bool:
        return self.verdict == VALID

    @property
    def bandwidth(self) -> float | None:
        """Bytes per second by the minimum byte count; None without a time."""
        return self.cost.total_bytes / self.seconds.median if self.seconds and self.seconds.median > 0 else None

    @property
    def flops_per_second(self) -> float | None:
        return self.cost.flops / self.seconds.median if self.seconds and self.seconds.median > 0 and self.cost.flops else None

    @property
    def share_of_ceiling(self) -> float | None:
        """Bandwidth as a share of the measured ceiling of the same mix: V / (B T). Above 1.02 it cannot be true."""
        return self.bandwidth / self.ceiling if self.bandwidth and self.ceiling else None

    @property
    def share_of_attainable(self) -> float | None:
        """(t0 + V / B) / T: 1 is all that a call of this size can reach, however small it is. None for a call that has no work."""
        works = self.cost.total_bytes or self.cost.flops
        if not works or not self.seconds or self.seconds.median <= 0 or not self.attainable_s:
            return None
        return self.attainable_s / self.seconds.median

    def to_json(self) -> dict[str, Any]:
        return {"type": "measurement", **asdict(self)}

    @staticmethod
    def from_json(record: dict[str, Any]) -> "Measurement":
        """The inverse of `to_json`; fields of a later version are ignored. Raises MeasureError for what is no measurement."""
        try:
            known = {f.name: record[f.name] for f in fields(Measurement) if f.name in record}
            known["cost"] = Cost(**record["cost"])
            known["seconds"] = Summary(**record["seconds"]) if record["seconds"] else None
            known["reasons"], known["notes"] = tuple(record.get("reasons", ())), tuple(record.get("notes", ()))
            found = Measurement(**known)
            _require_numbers(found)
            return found
        except (KeyError, TypeError, ValueError) as error:
            raise MeasureError(f"not a measurement: {error} in {str(record)[:120]}") from error


def _require_numbers(m: Measurement) -> None:
    """ValueError unless what is drawn and compared is what it says: texts, times above 0, amounts of 0 or more, nothing infinite."""
    for name in ("name", "provider", "shape", "dtype", "state", "verdict", "family"):
        if not isinstance(getattr(m, name), str):
            raise ValueError(f"{name} is no text")
    numbers = {f"cost.{k}": (v, True) for k, v in asdict(m.cost).items()}
    divides = ("median", "ci_low", "ci_high")
    numbers |= {f"seconds.{k}": (v, k not in divides or v != 0) for k, v in asdict(m.seconds).items()} if m.seconds else {}
    optional = ("ceiling", "attainable_s", "host_us", "ratio", "ratio_low", "ratio_high", "sm_mhz")
    numbers |= {name: (value, True) for name in optional if (value := getattr(m, name)) is not None}
    for name, (value, allowed) in numbers.items():
        if not (isinstance(value, (int, float)) and allowed and 0 <= value < math.inf):
            raise ValueError(f"{name} is {value!r}")


def write_lines(path: str | Path, records: Iterable[Any]) -> None:
    """Append records (anything with `to_json`) to a file of JSON lines. Raises MeasureError if it cannot be written."""
    lines = "".join(json.dumps(r.to_json(), sort_keys=True) + "\n" for r in records)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(lines)
    except OSError as error:
        raise MeasureError(f"results cannot be written to {path}: {error.strerror or error}") from error


def writable(path: str | Path) -> None:
    """Raises MeasureError if `path` cannot be written, so that this is known before the measuring. Leaves no file behind."""
    was_there = Path(path).exists()
    write_lines(path, [])
    if not was_there:
        Path(path).unlink(missing_ok=True)


def read_lines(path: str | Path) -> Iterator[dict[str, Any]]:
    """Records of a file of JSON lines. Raises MeasureError, naming the line, for what is not JSON."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MeasureError(f"results cannot be read from {path}: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise MeasureError(f"{path}, line {number}: not JSON ({error.msg})") from error
            if isinstance(record, dict):
                yield record
