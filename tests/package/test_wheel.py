"""What a user gets: the built wheel, not the source tree."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rafters

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the repository stays clean; offline, with the setuptools that torch brings."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(place), str(source)], check=True, timeout=120)
    return next(place.glob("*.whl"))


def test_it_carries_every_file(wheel: Path) -> None:
    """Data files included: a tuned table or a recorded ceiling that is left out changes what a user's call does."""
    files = [file for file in (ROOT / "src" / "rafters").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    with zipfile.ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if name.startswith("rafters/")}
    assert carried == {file.relative_to(ROOT / "src").as_posix() for file in files}
    assert "rafters/py.typed" in carried


def test_its_facts(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        facts = archive.read(f"rafters-{rafters.__version__}.dist-info/METADATA").decode().splitlines()
        licence = archive.read(f"rafters-{rafters.__version__}.dist-info/licenses/LICENSE").decode()
    assert f"Version: {rafters.__version__}" in facts
    assert "License-Expression: Apache-2.0" in facts
    assert "Apache License" in licence
    # triton comes with torch: a hard dependency would put NVIDIA's build over ROCm's
    assert not any(line.startswith("Requires-Dist: triton") and "extra ==" not in line for line in facts)


def test_it_works_where_it_is_installed(wheel: Path, run_python, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path), str(wheel)], check=True, timeout=120)
    program = """
import sys
import rafters
from rafters.cli import app
assert rafters.__file__.startswith(sys.argv[1]), rafters.__file__
sys.argv = ["rafters", "--version"]
app()
"""
    assert run_python(program, str(tmp_path), path=tmp_path).strip() == f"rafters {rafters.__version__}"


def test_the_version_is_written_once() -> None:
    literal = f'"{rafters.__version__}"'
    project = (ROOT / "pyproject.toml").read_text()
    places = [file.name for file in (ROOT / "src").rglob("*.py") if literal in file.read_text()]
    assert places == ["_version.py"]
    assert literal not in project
    assert f"## {rafters.__version__}" in (ROOT / "CHANGELOG.md").read_text()
