"""What every test sees: the options and markers of the suite, and a fresh interpreter."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
BIG_MEMORY = 64 * 2**30

if "PYTEST_XDIST_WORKER" in os.environ:  # one thread a worker: torch's pools would fight over the same cores
    torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    has_gpu = torch.cuda.is_available()
    has_big = has_gpu and torch.cuda.get_device_properties(0).total_memory >= BIG_MEMORY
    unmet = {
        "gpu": None if has_gpu else "needs a CUDA device",
        "big": None if has_big else "needs a device with 64 GiB of memory",
        "slow": None if config.getoption("--slow") else "slow: run with --slow",
    }
    for item in items:
        for marker, reason in unmet.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def run_python(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Runs a program in a fresh interpreter, outside the repository, and returns what it printed; fails with its traceback."""
    outside = tmp_path_factory.mktemp("outside")

    def run(program: str, *args: str, path: Path = ROOT / "src", **environment: str) -> str:
        file = outside / f"program_{hashlib.sha256(program.encode()).hexdigest()[:12]}.py"  # a body in it has to have a source
        file.write_text(program, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(file), *args],
            env={**os.environ, "PYTHONPATH": str(path), **environment},
            cwd=outside,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run
