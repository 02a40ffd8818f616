"""The one file that touches the private launch contracts of Triton and PyTorch.

A compiled kernel is launched through the launcher that Triton made for it, with plain integers for pointers. What is used of it is
probed when a kernel is first launched; where the probe fails, the compiled kernel's own `run` serves, which every version has.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Start:
    """How a kernel is launched, as text to be written into a plan's function, and the objects that the text names.

    Written in place because a call through another Python function costs what a whole gate costs.
    """

    text: str
    names: tuple[str, ...]
    values: tuple[Any, ...]

    def lines(self, grid: str, stream: str, arguments: str) -> list[str]:
        return self.text.format(grid=grid, stream=stream, arguments=arguments).splitlines()

    def function(self) -> Callable[[int, int, tuple[Any, ...]], None]:
        """The same as a function `launch(grid, stream, arguments)`."""
        lines = ["def launch(grid, stream, arguments):", *(f"    {line}" for line in self.lines("grid", "stream", "*arguments"))]
        space: dict[str, Any] = dict(zip(self.names, self.values, strict=True))
        exec("\n".join(lines), space)
        return space["launch"]  # type: ignore[no-any-return]


# 3.6 has a C launcher a signature, 3.7 one for all; both take hooks, which are None while no profiler listens.
_SHARED = (
    "_start({grid}, 1, 1, {stream}, _function, _cooperative, _pdl, _packed, None, None, None, None, None, _annotations, _signature, "
    "({arguments},))"
)
_OWN = "_start({grid}, 1, 1, {stream}, _function, _cooperative, _pdl, None, None, _packed, None, None, None, {arguments})"
_HOOKED = "if _enter.calls or _leave.calls:\n    _hooked({grid}, {stream}, ({arguments},))\nelse:\n    "
_PUBLIC = "_hooked({grid}, {stream}, ({arguments},))"


def launcher(compiled: Any) -> Start:
    """How to launch a compiled kernel; the current device must be the kernel's.

    `arguments` are the kernel's in order, compile-time ones included.
    """
    compiled._init_handles()
    run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
    knobs = _knobs()

    def hooked(grid: int, stream: int, arguments: tuple[Any, ...]) -> None:
        metadata = compiled.launch_metadata((grid, 1, 1), stream, *arguments)
        run(grid, 1, 1, stream, function, packed, metadata, knobs.launch_enter_hook, knobs.launch_exit_hook, *arguments)

    inner = _c_launcher(run)
    enter, leave = knobs.launch_enter_hook, knobs.launch_exit_hook
    if inner is None or not hasattr(enter, "calls") or not hasattr(leave, "calls"):
        return Start(_PUBLIC, ("_hooked",), (hooked,))
    names = ["_hooked", "_enter", "_leave", "_start", "_function", "_cooperative", "_pdl", "_packed"]
    values = [hooked, enter, leave, inner, function, run.launch_cooperative_grid, run.launch_pdl, packed]
    if hasattr(run, "kernel_signature"):
        return Start(
            _HOOKED + _SHARED, (*names, "_annotations", "_signature"), (*values, run.arg_annotations, run.kernel_signature)
        )
    return Start(_HOOKED + _OWN, tuple(names), tuple(values))


def load(compiled: Any, device: int) -> None:
    """Loads a compiled kernel on a device, once for ever: not allowed while a CUDA graph is captured."""
    with torch.cuda.device(device):
        compiled._init_handles()


def _knobs() -> Any:
    from triton import knobs

    return knobs.runtime


def _c_launcher(run: Any) -> Any:
    """Triton's C launch behind its Python launcher, where the kernel needs no scratch memory and the contract is a known one."""
    inner = getattr(run, "launch", None)
    scratch = [getattr(run, "global_scratch_size", None), getattr(run, "profile_scratch_size", None)]
    if inner is None or scratch != [0, 0]:
        return None
    if inspect.isfunction(inner):  # wrapped, for tensor descriptors
        return None
    known = isinstance(getattr(run, "launch_cooperative_grid", None), bool) and isinstance(getattr(run, "launch_pdl", None), bool)
    return inner if known else None


def allocator() -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]:
    """`empty(shape, strides, dtype)` on the current CUDA device: Inductor's own, which skips the dispatcher, or the public one."""
    quick = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cuda", None)
    if quick is not None and torch.version.hip is None:
        return quick  # type: ignore[no-any-return]
    return lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device="cuda")
