"""House rules that a linter does not know."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
WRITTEN = [file for room in ("src", "tests", "benchmarks", "examples") for file in sorted((ROOT / room).rglob("*.py"))]
LONGEST = 300


def test_no_file_is_longer_than_a_sitting() -> None:
    lengths = {file.relative_to(ROOT).as_posix(): len(file.read_text().splitlines()) for file in SOURCES}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_what_is_left_to_do_names_its_issue() -> None:
    bare = re.compile(r"# *(TODO|FIXME|XXX)\b(?!\(#\d+\))")
    lines = [
        (file.name, number)
        for file in WRITTEN
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if bare.search(line)
    ]
    assert lines == []


def test_hooks_use_the_pins_of_ci() -> None:
    pins = set((ROOT / "constraints.txt").read_text().split("\n"))
    hooked = re.findall(r'"([a-z-]+==[^"]+)"', (ROOT / ".pre-commit-config.yaml").read_text())
    assert hooked
    assert set(hooked) <= pins


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for extra in project["optional-dependencies"].values() for one in extra]
    wanted = {re.split(r"[\[>=; ]", one)[0] for one in (*project["dependencies"], *extras)} - {"rafters"}
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert wanted - pinned == set()
