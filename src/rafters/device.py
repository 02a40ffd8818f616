"""Facts of a device and the record of the environment: what has to stand beside a figure for it to mean anything.

Everything is read from the device itself, never from a table of names. NVML is found by UUID or PCI address, so that no form of
`CUDA_VISIBLE_DEVICES` (indices, UUIDs, MIG) can point it at another GPU than PyTorch's. Without NVML its fields are None.
"""

import ctypes
import functools
import hashlib
import importlib.metadata
import json
import platform
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from rafters._version import __version__
from rafters.errors import MeasureError

# CUdevice_attribute numbers of the CUDA driver API: memory clock in kHz, bus width in bits.
_MEMORY_CLOCK_RATE, _MEMORY_BUS_WIDTH = 36, 37


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a device says of itself. Hz, bits, bytes and watts; None is "unknown".

    On a CPU `sm_count` is the number of threads PyTorch computes with and `l2_bytes` the last-level cache.
    """

    kind: str
    name: str
    uuid: str | None
    sm_count: int
    l2_bytes: int
    memory_bytes: int
    memory_clock_hz: float | None = None
    bus_width_bits: int | None = None
    capability: str | None = None
    driver: str | None = None
    power_limit_w: float | None = None

    @property
    def theoretical_bandwidth(self) -> float | None:
        """Bytes per second that the memory pins allow, or None where the device does not tell."""
        return theoretical_bandwidth(self.memory_clock_hz, self.bus_width_bits)


@dataclass(frozen=True, slots=True)
class Environment:
    """One machine in one state of its software; `id` names it in result files (the date is not part of the name)."""

    device: DeviceFacts
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    python: str
    torch: str
    triton: str | None
    cuda: str | None
    platform: str
    rafters: str | None
    date: str

    @property
    def id(self) -> str:
        stable = {k: v for k, v in asdict(self).items() if k not in ("date", "sm_clock_mhz", "memory_clock_mhz")}
        return hashlib.sha256(json.dumps(stable, sort_keys=True).encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        return {"type": "environment", "id": self.id, **asdict(self)}

    @staticmethod
    def from_json(record: dict[str, Any]) -> "Environment":
        fields = {k: v for k, v in record.items() if k not in ("type", "id", "device")}
        return Environment(device=DeviceFacts(**record["device"]), **fields)


def theoretical_bandwidth(memory_clock_hz: float | None, bus_width_bits: int | None) -> float | None:
    """Bytes per second: 2 x memory clock x bus width / 8 (two transfers a clock, as NVIDIA's attributes count them).

    A clock or a width that is missing or 0 (newer runtimes drop the fields) gives None, "unknown", never 0.
    """
    if not memory_clock_hz or not bus_width_bits or memory_clock_hz <= 0 or bus_width_bits <= 0:
        return None
    return 2.0 * memory_clock_hz * bus_width_bits / 8.0


def resolve(device: torch.device | str | int | None = None) -> torch.device:
    """The device meant: the current GPU if there is one and nothing was said, else the CPU; a GPU always with its index.

    Raises MeasureError for a device that this machine or this torch does not have.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError as error:
        raise MeasureError(f"device {device!r}: {str(error).splitlines()[0]}") from error
    if found.type not in ("cuda", "cpu"):
        raise MeasureError(f"device {str(device)!r}: only CUDA and ROCm GPUs and the CPU can be measured")
    if found.type == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = found.index if found.index is not None else (torch.cuda.current_device() if count else 0)
    if index >= count:
        raise MeasureError(f"device {str(device)!r}: this machine has {count} GPUs that torch {torch.__version__} can use")
    return torch.device("cuda", index)


def facts(device: torch.device | str | int | None = None) -> DeviceFacts:
    """Facts of `device` (default: the current GPU, else the CPU)."""
    found = resolve(device)
    return _cuda_facts(found.index) if found.type == "cuda" else _cpu_facts(torch.get_num_threads())


def environment(device: torch.device | str | int | None = None) -> Environment:
    """Device, clocks as they stand, and the versions of all that takes part in a measurement."""
    found = resolve(device)
    handle = nvml_handle(found)
    return Environment(
        device=facts(found),
        sm_clock_mhz=ask_nvml("nvmlDeviceGetClockInfo", handle, 1),
        memory_clock_mhz=ask_nvml("nvmlDeviceGetClockInfo", handle, 2),
        python=platform.python_version(),
        torch=torch.__version__,
        triton=_version("triton"),
        cuda=torch.version.cuda or torch.version.hip,
        platform=platform.platform(aliased=True, terse=True),
        rafters=__version__,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def nvml_handle(device: torch.device) -> Any | None:
    """NVML's handle of a CUDA device, found by UUID or PCI address; None where there is no NVML or no such device."""
    return _nvml_handle(device.index) if device.type == "cuda" and torch.version.cuda else None


@functools.lru_cache(maxsize=64)
def _nvml_handle(index: int) -> Any | None:
    properties = torch.cuda.get_device_properties(index)
    uuid = str(getattr(properties, "uuid", "")).removeprefix("GPU-")
    for name in (f"GPU-{uuid}", f"MIG-{uuid}"):
        if (handle := ask_nvml("nvmlDeviceGetHandleByUUID", name)) is not None:
            # Clocks and power belong to the whole GPU, not to the slice of it.
            return handle if name.startswith("GPU") else ask_nvml("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        return None
    domain = getattr(properties, "pci_domain_id", 0)
    address = f"{domain:08x}:{bus:02x}:{getattr(properties, 'pci_device_id', 0):02x}.0"
    return ask_nvml("nvmlDeviceGetHandleByPciBusId", address)


@functools.lru_cache(maxsize=1)
def nvml() -> Any | None:
    """The NVML binding, initialized; None where it is not installed or finds no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    except Exception:  # the binding raises its own errors, an import error, or an OS error: all mean "no NVML"
        return None


def ask_nvml(function: str, *arguments: Any) -> Any | None:
    """What an NVML function answers; None where there is no NVML or the device does not support the question."""
    binding = nvml()
    if binding is None or any(a is None for a in arguments):
        return None
    try:
        return getattr(binding, function)(*arguments)
    except (binding.NVMLError, AttributeError, TypeError):
        return None


@functools.lru_cache(maxsize=64)
def _cuda_facts(index: int) -> DeviceFacts:
    p = torch.cuda.get_device_properties(index)
    handle = nvml_handle(torch.device("cuda", index))
    # AMD's factor between clock and transfers differs by memory type: unknown rather than wrong.
    is_nvidia = torch.version.hip is None
    clock = (_driver_attribute(index, _MEMORY_CLOCK_RATE) or getattr(p, "memory_clock_rate", 0)) if is_nvidia else 0
    width = (_driver_attribute(index, _MEMORY_BUS_WIDTH) or getattr(p, "memory_bus_width", 0)) if is_nvidia else 0
    driver = ask_nvml("nvmlSystemGetDriverVersion")
    limit_mw = ask_nvml("nvmlDeviceGetEnforcedPowerLimit", handle)
    return DeviceFacts(
        kind="cuda",
        name=p.name,
        uuid=str(getattr(p, "uuid", "")) or None,
        sm_count=p.multi_processor_count,
        l2_bytes=int(getattr(p, "L2_cache_size", 0)),
        memory_bytes=p.total_memory,
        memory_clock_hz=clock * 1e3 or None,
        bus_width_bits=width or None,
        capability=f"{p.major}.{p.minor}",
        driver=driver.decode() if isinstance(driver, bytes) else driver,
        power_limit_w=limit_mw / 1e3 if limit_mw else None,
    )


def _driver_attribute(index: int, attribute: int) -> int:
    """An attribute from the CUDA driver, which keeps the memory clock that newer runtimes dropped; 0 if it has none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    handle, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), index):
        return 0
    return 0 if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle) else max(value.value, 0)


@functools.lru_cache(maxsize=8)
def _cpu_facts(threads: int) -> DeviceFacts:
    return DeviceFacts(
        kind="cpu",
        name=_cpu_name(),
        uuid=None,
        sm_count=threads,
        l2_bytes=_last_level_cache() or 32 << 20,
        memory_bytes=_cpu_memory(),
    )


def _cpu_name() -> str:
    info = _read("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    return model.group(1).strip() if model else platform.processor() or platform.machine() or "CPU"


def _last_level_cache() -> int:
    sizes = [_read(str(p)) for p in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    found = [re.fullmatch(r"(\d+)([KMG]?)\s*", s) for s in sizes]
    return max((int(m.group(1)) * units[m.group(2)] for m in found if m), default=0)


def _cpu_memory() -> int:
    total = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return int(total.group(1)) << 10 if total else 4 << 30


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
