"""A result file read back: measurements, the ceilings they were judged by, where they come from, and what failed."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from rafters.device import Environment
from rafters.errors import MeasureError
from rafters.roofline.ceiling import Ceilings
from rafters.roofline.measurement import Measurement, read_lines, write_lines


@dataclass
class Results:
    """Everything a file of JSON lines holds, in order. It is drawn and compared on any machine, the device's own not needed."""

    measurements: list[Measurement] = field(default_factory=list)
    ceilings: list[Ceilings] = field(default_factory=list)
    environments: dict[str, Environment] = field(default_factory=dict)
    source: str = ""
    # What a call (name, shape, dtype) that could not be measured raised.
    errors: dict[tuple[str, str, str], str] = field(default_factory=dict)

    @property
    def roof(self) -> Ceilings | None:
        """The last ceilings in the file: those of the newest run."""
        return self.ceilings[-1] if self.ceilings else None

    def label(self) -> str:
        """Device, software and date in a line: what every drawing of the results carries."""
        names = {e.device.name for e in self.environments.values()} | {c.device.name for c in self.ceilings}
        dates = [m.date for m in self.measurements] + [c.date for c in self.ceilings]
        software = sorted({f"torch {e.torch}" + (f", triton {e.triton}" if e.triton else "") for e in self.environments.values()})
        drivers = sorted({f"driver {e.device.driver}" for e in self.environments.values() if e.device.driver})
        limits = sorted({f"{e.device.power_limit_w:.0f} W" for e in self.environments.values() if e.device.power_limit_w})
        parts = [" + ".join(sorted(names)) or "unknown device", *drivers, *limits, *software]
        if any(dates):
            parts.append(max(dates)[:10])
        return "; ".join(parts)


def read(*paths: str | Path) -> Results:
    """Read result files into one. Raises MeasureError for a file that cannot be read, is damaged or holds no result."""
    found = Results(source=", ".join(Path(p).name for p in paths))
    for path in paths:
        for record in read_lines(path):
            match record.get("type"):
                case "measurement":
                    found.measurements.append(Measurement.from_json(record))
                case "ceilings":
                    found.ceilings.append(Ceilings.from_json(record))
                case "environment":
                    environment = _environment(record, path)
                    found.environments[environment.id] = environment
                case "error":
                    call = (str(record.get("name")), str(record.get("shape")), str(record.get("dtype")))
                    found.errors[call] = str(record.get("error"))
    if not found.measurements and not found.ceilings:
        raise MeasureError(f"{found.source}: no measurement and no ceilings in it")
    return found


def recorded(name: str) -> Path:
    """The file of a run that comes with Rafters, by the name of its device: "h200". Raises MeasureError, naming those there are."""
    folder = Path(str(resources.files("rafters.roofline"))) / "recorded"
    path = folder / f"roofline-{name}.jsonl"
    if not re.fullmatch(r"[\w-]+", name) or not path.is_file():
        known = ", ".join(sorted(p.stem.removeprefix("roofline-") for p in folder.glob("roofline-*.jsonl")))
        raise MeasureError(f"no run called {name!r} is recorded; there are: {known or 'none'}")
    return path


def write(
    path: str | Path,
    measurements: Iterable[Measurement],
    *,
    environment: Environment | None = None,
    ceilings: Ceilings | None = None,
) -> None:
    """Append a run to a result file: where it ran, what it was judged by, what was measured."""
    write_lines(path, [r for r in (environment, ceilings) if r is not None] + list(measurements))


def _environment(record: dict[str, object], path: str | Path) -> Environment:
    try:
        return Environment.from_json(record)
    except (KeyError, TypeError) as error:
        raise MeasureError(f"{path}: not an environment: {error}") from error
