"""`rafters new`: what it writes runs, tests and benches itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"


def test_the_file_runs_and_tests_itself(run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("new", "leaky_gate.py").exit_code == 0
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    script = subprocess.run([sys.executable, "leaky_gate.py"], capture_output=True, text=True, check=False)
    assert script.returncode == 0, script.stderr
    assert "moves 50.3 MB" in script.stdout
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "leaky_gate.py"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in tests.stdout, tests.stdout


def test_the_file_benches_itself(run) -> None:
    run("new", "gate_for_bench.py")
    result = run("bench", "gate_for_bench.py", "--shapes", "7x129", "--dtype", "fp32", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert rows[0]["name"] == "gate_for_bench::gate_for_bench"
    assert rows[0]["cost"]["read_bytes"] == 2 * 7 * 129 * 4


def test_a_file_that_is_there_is_left_alone(run) -> None:
    Path("mine.py").write_text("precious")
    result = run("new", "mine.py")
    assert result.exit_code == 1
    assert "mine.py exists already" in result.stderr
    assert Path("mine.py").read_text() == "precious"


@pytest.mark.parametrize("name", ["my-op.py", "op.txt", "lambda.py", "9.py", "nowhere/op.py"])
def test_refusals(run, name: str) -> None:
    result = run("new", name)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"rafters new: {name}")
