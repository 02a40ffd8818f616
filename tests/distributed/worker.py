"""Runs the DTensor cases in several processes and writes down what passed.

    python tests/distributed/worker.py [--device cpu|cuda] [--world 2] [--record FILE] [--only TEXT]

On `cuda` each process takes a GPU of its own, and they talk through NCCL; on `cpu` through gloo. Without --rank it starts the others.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path

PASSED = "passed"
SECONDS = 60  # for one collective: a process that fails alone must not hold the others for long


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for all of it")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    return parser.parse_args()


def launch(given: argparse.Namespace) -> int:
    """Starts one process a rank; the first that fails, or the end of the time, ends them all."""
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *sys.argv[1:], "--store", f"{folder}/store"]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)], env=environment) for rank in range(given.world)]
        try:
            return max(abs(process.wait(given.timeout)) for process in ranks)
        except subprocess.TimeoutExpired:
            print(f"not done after {given.timeout:g} s", file=sys.stderr)
            return 1
        finally:
            for process in ranks:
                process.kill()
                process.wait()


def work(given: argparse.Namespace) -> int:
    import cases  # beside this file
    import torch
    import torch.distributed as dist

    if given.device == "cuda":
        torch.cuda.set_device(given.rank)
    torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if given.device == "cuda" else "gloo",
        init_method=f"file://{given.store}",
        rank=given.rank,
        world_size=given.world,
        timeout=timedelta(seconds=SECONDS),
    )
    record = facts(given)
    for name, case in cases.CASES.items():
        if given.only not in name or given.world < case.least:
            continue
        problem = None
        try:
            case.run(cases.Setting(given.device, given.world))
        except Exception:  # whatever it is, the other cases run
            problem = traceback.format_exc()
        problems: list[str | None] = [None] * given.world
        dist.all_gather_object(problems, problem)
        record["cases"][name] = next((f"rank {r}: {p}" for r, p in enumerate(problems) if p), PASSED)
        if given.rank == 0:
            if record["cases"][name] != PASSED:
                print(f"{name}: {record['cases'][name]}")
            if given.record:
                given.record.write_text(json.dumps(record, indent=1) + "\n")
    failed = [name for name, result in record["cases"].items() if result != PASSED]
    if given.rank == 0:
        print(f"{len(record['cases']) - len(failed)} passed, {len(failed)} failed, on {given.world} x {record['device']}")
    dist.destroy_process_group()
    return len(failed) > 0


def facts(given: argparse.Namespace) -> dict:
    import torch

    import rafters

    return {
        "rafters": rafters.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if given.device == "cuda" else "CPU",
        "backend": torch.distributed.get_backend(),
        "world": given.world,
        "cases": {},
    }


if __name__ == "__main__":
    options = arguments()
    sys.exit(launch(options) if options.rank is None else work(options))
