"""The ceilings of a device, measured once and kept in the user's cache."""

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from rafters import device as devices
from rafters.errors import MeasureError
from rafters.roofline import ceiling_run
from rafters.roofline.ceiling import Ceilings

_FORMAT = 1


def ceilings(
    device: torch.device | str | None = None,
    *,
    quick: bool = False,
    refresh: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Ceilings:
    """The ceilings of `device`, from the user's cache or measured now (GPU: about 20 s quick, 2 min full; CPU: 10 s, 60 s).

    The cache is keyed by device UUID, driver, power limit and thread count; `refresh` measures again. `progress` is told what
    is being measured.
    """
    where = devices.resolve(device)
    if not refresh and (known := cached(where, quick=quick)):
        return known
    found = ceiling_run.run(where, quick=quick, progress=progress or _quiet)
    _store(found)
    return found


def _quiet(_text: str) -> None:
    pass


def cached(device: torch.device | str | None = None, *, quick: bool = True) -> Ceilings | None:
    """Ceilings measured earlier on this device, or None; a full run serves a quick request, not the other way round."""
    facts = devices.facts(device)
    for was_quick in (False, True) if quick else (False,):
        try:
            found = Ceilings.from_json(json.loads(_path(facts, was_quick).read_text(encoding="utf-8")))
        except (OSError, ValueError, MeasureError):  # not there, unreadable or damaged: as if it were not there
            continue
        if found.points:
            return found
    return None


def _path(facts: devices.DeviceFacts, quick: bool) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = json.dumps([_FORMAT, facts.name, facts.uuid, facts.driver, facts.power_limit_w, facts.sm_count])
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    return base / "rafters" / f"ceilings-{name}{'-quick' if quick else ''}.json"


def _store(found: Ceilings) -> None:
    path = _path(found.device, found.quick)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump(found.to_json(), file)
        os.replace(file.name, path)  # a reader sees the old file or the new one, never half of one
    except OSError as error:
        warnings.warn(f"ceilings could not be cached in {path.parent}: {error.strerror or error}", stacklevel=3)
