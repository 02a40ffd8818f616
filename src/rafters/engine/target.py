"""What a kernel is compiled for, and the options every kernel is compiled with."""

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rafters.errors import CompileError

if TYPE_CHECKING:
    import torch

# Capabilities that a body or a plan may depend on, by the first target that has them.
PDL_CAPABILITY = 90
FP8_CAPABILITY = 89
_CAPABILITIES = {75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121}


@dataclass(frozen=True)
class Target:
    """sm_90 is Target("cuda", 90, 32); gfx942 is Target("hip", "gfx942", 64)."""

    backend: str
    arch: int | str
    warp_size: int

    @property
    def name(self) -> str:
        return f"sm_{self.arch}" if self.backend == "cuda" else str(self.arch)

    @property
    def has_pdl(self) -> bool:
        return self.backend == "cuda" and int(self.arch) >= PDL_CAPABILITY

    @property
    def has_fp8(self) -> bool:
        return self.backend != "cuda" or int(self.arch) >= FP8_CAPABILITY

    def triton(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(self.backend, self.arch, self.warp_size)


def parse_target(text: str) -> Target:
    """A target from 'sm_90' or 'gfx942'."""
    match = re.fullmatch(r"sm_?(\d+)", text)
    if match and int(match[1]) in _CAPABILITIES:
        return Target("cuda", int(match[1]), 32)
    if re.fullmatch(r"gfx9\w+", text):
        return Target("hip", text, 64)
    raise CompileError(f"target {text!r} is not known; wanted sm_80, sm_90, sm_100, sm_120 or gfx942")


def current_device() -> "torch.device | None":
    """The GPU on which kernels would run now; None on a machine without one."""
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None


@functools.cache
def device_target(index: int) -> Target:
    """The target of a device of this machine."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    if torch.version.hip is not None:
        return Target("hip", properties.gcnArchName.split(":")[0], properties.warp_size)
    return Target("cuda", properties.major * 10 + properties.minor, 32)


def options(target: Target, warps: int, pdl: bool) -> dict[str, Any]:
    """Contraction off, so that a fused op equals its parts bit for bit; flush-to-zero off, so that subnormals are kept."""
    chosen: dict[str, Any] = {"num_warps": warps, "enable_fp_fusion": False}
    if target.backend == "cuda":
        chosen |= {"enable_reflect_ftz": False, "launch_pdl": pdl}
    return chosen
