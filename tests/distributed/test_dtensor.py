"""Case 84: ops on DTensors. The cases (cases.py) run in processes of their own, which talk through gloo, or NCCL on two GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run_cases(record: Path, *options: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(HERE / "worker.py"), "--record", str(record), *options],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert record.exists(), done.stdout + done.stderr
    made = json.loads(record.read_text())
    failed = {name: text for name, text in made["cases"].items() if text != "passed"}
    assert not failed, "\n\n".join(f"{name}: {text}" for name, text in failed.items())
    assert done.returncode == 0, done.stdout + done.stderr  # a process that died says why
    return made


@pytest.mark.parametrize("world", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_case_84_on_gloo(world, tmp_path):
    made = run_cases(tmp_path / "record.json", "--world", str(world))
    assert made["backend"] == "gloo"
    assert {"mixes-add-vector", "gradients-mul-vector", "compiled"} <= set(made["cases"])
    assert ("on_a_mesh_of_two_dimensions" in made["cases"]) == (world == 4)


@pytest.mark.gpu
def test_case_84_on_nccl(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    made = run_cases(tmp_path / "record.json", "--device", "cuda")
    assert made["backend"] == "nccl"


@pytest.mark.gpu
def test_case_84_on_a_mesh_of_one_gpu(tmp_path):
    run_cases(tmp_path / "record.json", "--device", "cuda", "--world", "1")


def test_a_case_that_fails_is_seen(tmp_path):
    """The runner itself: a case that fails in one process fails, and the others run on."""
    program = """
import sys
sys.path.insert(0, {here!r})
import cases, worker

def wrong(setting):
    assert setting.mesh.get_rank() == 0, "on purpose"

cases.CASES = {{"right": cases.Case(lambda setting: None), "wrong": cases.Case(wrong), "after": cases.Case(lambda setting: None)}}
worker.__file__ = __file__
options = worker.arguments()
sys.exit(worker.launch(options) if options.rank is None else worker.work(options))
"""
    file, record = tmp_path / "planted.py", tmp_path / "record.json"
    file.write_text(program.format(here=str(HERE)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(file), "--record", str(record)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    made = json.loads(record.read_text())["cases"]
    assert done.returncode == 1, done.stdout + done.stderr
    assert (made["right"], made["after"]) == ("passed", "passed")
    assert made["wrong"].startswith("rank 1:")
    assert "on purpose" in made["wrong"]


def test_the_example_runs_under_torchrun():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(ROOT / "examples" / "02_tensor_parallel.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes on cpu: output and gradients are those of the whole MLP" in done.stdout
    assert "collectives of the forward pass: 1" in done.stdout
    assert "Shard(dim=1)" in done.stdout or "S(1)" in done.stdout


# -- when the rule is handed over ------------------------------------------------------------------------------------------------

START = """
import os, sys, threading
import torch
import torch.distributed
def mesh():
    from torch.distributed.tensor import init_device_mesh
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return init_device_mesh("cpu", (1,))
def placed(x):
    from torch.distributed.tensor import Shard, distribute_tensor
    return distribute_tensor(x, mesh(), [Shard(0)])
x = torch.ones(4, 3)
"""
ORDERS = {
    "rafters first, called as a function": """
import rafters, rafters.ops
assert "torch.distributed.tensor" not in sys.modules
import torch.distributed.tensor
made = rafters.add(*[placed(x)] * 2)
""",
    "rafters first, called through torch.ops": """
import rafters, rafters.ops
import torch.distributed.tensor
made = torch.ops.rafters.add(*[placed(x)] * 2)
""",
    "DTensor first, inference mode": """
import torch.distributed.tensor
import rafters, rafters.ops
with torch.inference_mode():
    made = torch.ops.rafters.add(*[placed(x)] * 2)
""",
    "rafters first, inference mode": """
import rafters
import torch.distributed.tensor
with torch.inference_mode():
    made = rafters.add(*[placed(x)] * 2)
""",
    "rafters first, compiled at once": """
import rafters
import torch.distributed.tensor
made = torch.compile(rafters.add, fullgraph=True, backend="aot_eager")(*[placed(x)] * 2)
""",
    "rafters first, many threads at once": """
import rafters
import torch.distributed.tensor
a, results = placed(x), []
def call():
    results.append(rafters.add(a, a))
threads = [threading.Thread(target=call) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert len(results) == 8
made = results[-1]
""",
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_rule_is_there_when_it_is_needed(order, run_python):
    end = "print(type(made).__name__, made.placements[0].is_shard(0), made.to_local().sum().item())"
    assert run_python(START + ORDERS[order] + end).strip() == "DTensor True 24.0"


def test_a_pytorch_whose_inside_is_not_known(run_python):
    """Only the public register_sharding is left: what needs no more works, the rest is refused."""
    program = """
import torch.distributed.tensor.experimental
del torch.distributed.tensor._op_schema.RuntimeSchemaInfo
import linecache, rafters
from rafters import Output, View, tl
text = "def power(x, K: tl.constexpr = 1):\\n    return x * x if K == 2 else x\\n"
linecache.cache["<power>"] = (len(text), None, text.splitlines(keepends=True), "<power>")
space = {"tl": tl, "__name__": "powers"}
exec(compile(text, "<power>", "exec"), space)
power = rafters.elementwise(space["power"], name="t_unknown::power")
a = placed(x)
try:
    power(a, 2)
except RuntimeError as problem:
    assert "power: this PyTorch's DTensor is not known well enough" in str(problem), problem
else:
    raise AssertionError("not refused")
made = rafters.add(a, a)
print(type(made).__name__, made.placements[0].is_shard(0), made.to_local().sum().item())
"""
    assert run_python(START + program).strip() == "DTensor True 24.0"
