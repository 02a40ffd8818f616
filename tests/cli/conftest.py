"""What the tests of the verbs share: the command line, quick ceilings, a place of their own to write to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rafters import cli
from rafters import device as devices
from rafters.cli import bench as bench_verb
from rafters.cli import sweep as sweep_verb
from rafters.roofline import Ceilings
from rafters.roofline.ceiling import Point


@pytest.fixture
def roof() -> Ceilings:
    """A roof that nothing on a CPU reaches, so that no figure is impossible."""
    points = tuple(
        Point(name, f, 1 << 30, (1 << 30) / 1e13, "made up") for name, f in (("write", 0.0), ("copy", 0.5), ("read", 1.0))
    )
    return Ceilings(devices.facts("cpu"), points, 1e-9)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, roof: Ceilings) -> Callable[..., Any]:
    """`run("bench", "add", ...)` in an empty folder, with the least of timing."""
    monkeypatch.chdir(tmp_path)
    for verb in (bench_verb, sweep_verb):
        monkeypatch.setattr(verb, "ceilings", lambda *args, **options: roof)
    quick = {"min_samples": 2, "min_time_s": 0.0, "time_limit_s": 0.02, "warm_up_s": 0.0}
    monkeypatch.setattr(bench_verb, "_CPU_RULE", quick)
    return lambda *args: CliRunner().invoke(cli.app, args)
