"""The ceilings of a device, measured once and kept in the user's cache."""

import contextlib
import hashlib
import json
import os
import stat
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
    for name in [_name(facts, was_quick) for was_quick in ((False, True) if quick else (False,))]:
        for folder in _folders():
            try:
                found = Ceilings.from_json(json.loads((folder / name).read_text(encoding="utf-8")))
            except (OSError, ValueError, MeasureError):  # not there, unreadable or damaged: as if it were not there
                continue
            if found.points:
                return found
    return None


def _name(facts: devices.DeviceFacts, quick: bool) -> str:
    key = json.dumps([_FORMAT, facts.name, facts.uuid, facts.driver, facts.power_limit_w, facts.sm_count])
    return f"ceilings-{hashlib.sha256(key.encode()).hexdigest()[:16]}{'-quick' if quick else ''}.json"


def _folders() -> list[Path]:
    """Where the cache lies: the user's cache folder, and where nothing can be written there one of their own for temporary files."""
    folders = []
    with contextlib.suppress(RuntimeError):  # no HOME, and the user is in no list of users
        folders.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rafters")
    if not any(_is_writable(folder) for folder in folders):
        own = Path(tempfile.gettempdir()) / f"rafters-{os.getuid() if hasattr(os, 'getuid') else 'cache'}"
        if not own.exists() or _is_private(own):
            folders.append(own)
    return folders


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _is_private(folder: Path) -> bool:
    """Is it ours alone? Among everybody's temporary files another user may have been first to take the name."""
    facts = folder.lstat()
    ours = not hasattr(os, "getuid") or (facts.st_uid == os.getuid() and not facts.st_mode & 0o077)
    return stat.S_ISDIR(facts.st_mode) and ours


def _store(found: Ceilings) -> None:
    """Keeps `found` in the first folder that can be written; says so where none can."""
    name, problems = _name(found.device, found.quick), []
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)  # nobody else's business, nor theirs to replace
            _replace(folder / name, json.dumps(found.to_json()))
        except OSError as error:
            problems.append(f"{folder}: {error.strerror or error}")
        else:
            return
    warnings.warn(f"ceilings could not be cached in {'; '.join(problems)}; XDG_CACHE_HOME names another folder", stacklevel=3)


def _replace(path: Path, text: str) -> None:
    """Writes to a file of another name and renames it: a reader sees the old file or the new one, never half of one."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        try:
            file.write(text)
            file.close()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
