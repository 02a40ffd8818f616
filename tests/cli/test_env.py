"""`rafters env`: a GPU that torch cannot use comes first, with the reason."""

import json
import os

import pytest
import torch

from rafters import device as devices
from rafters.cli import _machine, env


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """A machine of which torch sees no GPU; `machine(count=1, nodes=[...])` says what the driver sees."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def describe(
        count: int = 0, nodes: tuple[str, ...] = (), driver: int = 13000, cuda: str | None = None, kfd: bool = False,
        locked: bool = False,
    ) -> None:  # fmt: skip
        answers = {"nvmlDeviceGetCount": count, "nvmlDeviceGetHandleByIndex": "handle", "nvmlDeviceGetName": b"NVIDIA H200"}
        answers |= {"nvmlSystemGetCudaDriverVersion_v2": driver}
        monkeypatch.setattr(devices, "ask_nvml", lambda name, *_: answers.get(name) if count else None)
        monkeypatch.setattr(_machine.glob, "glob", lambda _: list(nodes))
        exists = {"/dev/kfd": kfd, "/proc/driver/nvidia/version": bool(count)}
        monkeypatch.setattr(_machine.os.path, "exists", lambda p: exists.get(p, False))
        monkeypatch.setattr(_machine.os, "access", lambda *_: not locked)
        monkeypatch.setattr(torch.version, "cuda", cuda)

    return describe


def test_no_gpu_is_no_problem(machine) -> None:
    machine()
    assert _machine.gpu_problem() == ""


def test_a_cpu_build_of_torch(machine) -> None:
    machine(count=1)
    assert "NVIDIA H200 is there, but this torch" in _machine.gpu_problem()
    assert "built without CUDA" in _machine.gpu_problem()


def test_no_permission(machine) -> None:
    machine(count=1, nodes=("/dev/nvidia0", "/dev/nvidiactl"), cuda="13.0", locked=True)
    assert "may not open /dev/nvidia0" in _machine.gpu_problem()


def test_an_old_driver(machine) -> None:
    machine(count=1, cuda="13.0", driver=12040)
    assert "supports CUDA 12.4, this torch was built for CUDA 13.0" in _machine.gpu_problem()


def test_hidden(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(count=1, cuda="13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "is hidden: CUDA_VISIBLE_DEVICES=''" in _machine.gpu_problem()


def test_an_amd_gpu_without_rocm(machine) -> None:
    machine(kfd=True)
    assert "built without ROCm" in _machine.gpu_problem()


def test_a_gpu_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 1))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GTX 1080")
    monkeypatch.setattr(torch.version, "hip", None)
    assert "GTX 1080 (compute capability 6.1) is older" in _machine.gpu_problem()


def test_the_problem_is_the_first_line(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env, "gpu_problem", lambda: "it is asleep")
    result = run("env")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "A GPU cannot be used: it is asleep"


def test_what_to_install_is_printed_as_it_is(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine, "has_triton", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "pip install rafters[triton]" in run("env").stdout


def test_json(run) -> None:
    found = json.loads(run("env", "--json").stdout)
    assert found["environments"][-1]["device"]["kind"] == "cpu"
    assert found["environments"][-1]["device"]["sm_count"] == torch.get_num_threads()
    able = {a["name"]: a["able"] for a in found["abilities"]}
    assert able["call ops"]
    assert able["run kernels"] is (torch.cuda.is_available() and able["compile kernels (inspect, sweep)"])
    assert os.cpu_count()
