"""What tests/sanitize.py makes of what compute-sanitizer says; the sanitizer itself needs a GPU (`make sanitize`)."""

import importlib.util
import stat
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "sanitize.py"


@pytest.fixture
def sanitize():
    spec = importlib.util.spec_from_file_location("sanitize", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("said", "status", "verdict"),
    [
        ("3 calls made\n========= ERROR SUMMARY: 0 errors", 0, "clean"),
        ("3 calls made\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0, "clean"),
        ("3 calls made\n========= ERROR SUMMARY: 2 errors", 9, "2 errors (status 9)"),
        ("3 calls made\n========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)", 9, "3 errors (status 9)"),
        ("3 calls made\n========= ERROR SUMMARY: 0 errors", 3, "0 errors (status 3)"),
        ("Device not supported\n========= ERROR SUMMARY: 0 errors", 0, "did not run (status 0)"),
        ("========= ERROR SUMMARY: 0 errors", 0, "did not run (status 0)"),  # no call was made: nothing was watched
        ("3 calls made", 0, "did not run (status 0)"),
    ],
)
def test_verdicts(sanitize, tmp_path, said, status, verdict):
    program = tmp_path / "compute-sanitizer"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit {status}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert sanitize.watched(str(program), "memcheck", [])[0] == verdict


def test_a_named_sanitizer_is_taken(sanitize, monkeypatch):
    monkeypatch.setenv("COMPUTE_SANITIZER", "/somewhere/compute-sanitizer")
    assert sanitize.sanitizer() == "/somewhere/compute-sanitizer"
