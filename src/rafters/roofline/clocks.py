"""Clocks, power and throttling of a GPU while it is being measured, through NVML."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from rafters import device as devices

# NVML's clock event reasons. Reaching the power limit is how a sustained run looks, so it is reported but drops no sample;
# the others mean that the hardware was slowed from outside.
_POWER_CAP = 0x4
_SLOWED = {0x8: "hardware slowdown", 0x20: "thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}


@dataclass(frozen=True, slots=True)
class Clocks:
    """One reading. MHz, watts, degrees Celsius; None where the device does not tell."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    reasons: tuple[str, ...] = ()
    throttled: bool = False


ClockReader = Callable[[], Clocks | None]


def reader(device: torch.device) -> ClockReader:
    """A function that reads the clocks of `device` now; it returns None for ever where nothing can be read."""
    handle = devices.nvml_handle(device)
    if handle is None:
        return lambda: None
    return lambda: _read(handle)


def _read(handle: object) -> Clocks:
    mask = (
        devices.ask_nvml("nvmlDeviceGetCurrentClocksEventReasons", handle)
        or devices.ask_nvml("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        or 0
    )
    milliwatts = devices.ask_nvml("nvmlDeviceGetPowerUsage", handle)
    slowed = tuple(text for bit, text in _SLOWED.items() if mask & bit)
    return Clocks(
        sm_mhz=devices.ask_nvml("nvmlDeviceGetClockInfo", handle, 1),
        memory_mhz=devices.ask_nvml("nvmlDeviceGetClockInfo", handle, 2),
        power_w=milliwatts / 1e3 if milliwatts else None,
        temperature_c=devices.ask_nvml("nvmlDeviceGetTemperature", handle, 0),
        reasons=slowed + (("power limit",) if mask & _POWER_CAP else ()),
        throttled=bool(slowed),
    )
