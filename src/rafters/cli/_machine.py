"""What this machine is: why a GPU that is there cannot be used, and what Rafters can do without one."""

import glob
import os
import shutil
from dataclasses import dataclass

import torch

from rafters import device as devices
from rafters.engine.target import FP8_CAPABILITY, PDL_CAPABILITY
from rafters.lang import has_triton

# The oldest GPU that Triton compiles for.
OLDEST_CAPABILITY = (7, 5)


@dataclass(frozen=True)
class Ability:
    """One thing Rafters does, whether it can here, and the reason or the detail."""

    name: str
    able: bool
    detail: str


def gpu_problem() -> str:
    """Why the GPU of this machine cannot be used, in one sentence; '' where one can, or where there is none."""
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        if torch.version.hip is None and (major, minor) < OLDEST_CAPABILITY:
            name = torch.cuda.get_device_name()
            return (
                f"{name} (compute capability {major}.{minor}) is older than what Triton compiles for ({OLDEST_CAPABILITY[0]}.5)"
            )
        return ""
    return _nvidia_problem() or _amd_problem()


def _nvidia_problem() -> str:
    count = devices.ask_nvml("nvmlDeviceGetCount") or 0
    nodes = [n for n in glob.glob("/dev/nvidia*") if n.removeprefix("/dev/nvidia").isdigit()]
    if not count and not nodes and not os.path.exists("/proc/driver/nvidia/version"):
        return ""
    name = _nvidia_name() or "an NVIDIA GPU"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return f"{name} is hidden: CUDA_VISIBLE_DEVICES={hidden!r}"
    if torch.version.cuda is None:
        return f"{name} is there, but this torch ({torch.__version__}) was built without CUDA: install a CUDA build of torch"
    if locked := [n for n in nodes if not os.access(n, os.R_OK | os.W_OK)]:
        return (
            f"{name} is there, but this user may not open {locked[0]}: ask for permission (often a group, or a container option)"
        )
    if not count and not nodes:
        return "the NVIDIA driver is loaded, but no GPU is visible here (a container started without its GPUs?)"
    driver = devices.ask_nvml("nvmlSystemGetCudaDriverVersion_v2") or devices.ask_nvml("nvmlSystemGetCudaDriverVersion")
    wanted = int(torch.version.cuda.split(".")[0])
    if driver and driver // 1000 < wanted:
        return (
            f"{name} is there, but its driver is too old: it supports CUDA {driver // 1000}.{driver % 1000 // 10}, "
            f"this torch was built for CUDA {torch.version.cuda}"
        )
    return f"{name} is there, but torch cannot use it: {_start_error()}"


def _nvidia_name() -> str:
    handle = devices.ask_nvml("nvmlDeviceGetHandleByIndex", 0)
    name = devices.ask_nvml("nvmlDeviceGetName", handle)
    return name.decode() if isinstance(name, bytes) else str(name or "")


def _amd_problem() -> str:
    if not os.path.exists("/dev/kfd"):
        return ""
    if torch.version.hip is None:
        return f"an AMD GPU is there, but this torch ({torch.__version__}) was built without ROCm: install a ROCm build of torch"
    if not os.access("/dev/kfd", os.R_OK | os.W_OK):
        return "an AMD GPU is there, but this user may not open /dev/kfd: join the groups `render` and `video`"
    return f"an AMD GPU is there, but torch cannot use it: {_start_error()}"


def _start_error() -> str:
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return (str(error).splitlines() or ["no reason given"])[0]
    return "torch.cuda.is_available() is False and gives no reason"


def abilities() -> list[Ability]:
    """What Rafters can do here."""
    gpu, triton = torch.cuda.is_available() and not gpu_problem(), has_triton()
    found = [
        Ability(
            "call ops", True, "GPU kernels and the CPU path" if gpu and triton else "the CPU path (block by block, in PyTorch)"
        ),
        Ability("compile kernels (inspect, sweep)", triton, "for any target, no GPU needed" if triton else _no_triton(gpu)),
        Ability("run kernels", gpu and triton, "" if gpu and triton else _no_triton(gpu) if gpu else "no GPU that torch can use"),
    ]
    if gpu and torch.version.hip is None:
        major, minor = torch.cuda.get_device_capability()
        capability = major * 10 + minor
        pdl, fp8 = capability >= PDL_CAPABILITY, capability >= FP8_CAPABILITY
        found.append(Ability("dependent launches (PDL)", pdl, "" if pdl else "needs compute capability 9.0"))
        found.append(Ability("float8", fp8, "" if fp8 else "needs compute capability 8.9"))
    if not gpu:
        compiler = next((c for c in (os.environ.get("CXX"), "g++", "clang++") if c and shutil.which(c)), None)
        detail = compiler or "needs a C++ compiler (g++)"
        found.append(Ability("torch.compile on the CPU (bench --peers)", compiler is not None, detail))
    return found


def _no_triton(gpu: bool) -> str:
    return "triton is not installed: " + ("it comes with a GPU build of torch" if gpu else "pip install rafters[triton]")
