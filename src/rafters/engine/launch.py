"""The one file that touches Triton's private launch contract.

A compiled kernel is launched through the launcher that Triton made for it, with plain integers for pointers. What is used of it is
probed when a kernel is first launched; where the probe fails, the public `kernel[grid](...)` serves.
"""

import inspect
from collections.abc import Callable
from typing import Any

Launcher = Callable[..., None]


def launcher(compiled: Any) -> Callable[[int, int, tuple[Any, ...]], None]:
    """`launch(grid, stream, arguments)` of a compiled kernel; the current device must be the kernel's.

    `arguments` are the kernel's in order, compile-time ones included.
    """
    compiled._init_handles()
    run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
    knobs = _knobs()
    direct = _direct(run)

    if direct is None:

        def launch(grid: int, stream: int, arguments: tuple[Any, ...]) -> None:
            run(grid, 1, 1, stream, function, packed, None, knobs.launch_enter_hook, knobs.launch_exit_hook, *arguments)

        return launch
    return direct(function, packed, knobs, compiled)


def _hooked(hook: Any) -> bool:
    """Is a profiler listening? The hook is None or an (often empty) chain, by version."""
    return bool(getattr(hook, "calls", hook is not None))


def _knobs() -> Any:
    from triton import knobs

    return knobs.runtime


def _direct(run: Any) -> Callable[..., Any] | None:
    """Triton's C launch behind its Python launcher, where the kernel needs no scratch memory and the signature is a known one."""
    inner = getattr(run, "launch", None)
    if inner is None or getattr(run, "global_scratch_size", 1) or getattr(run, "profile_scratch_size", 1):
        return None
    if inspect.isfunction(inner):  # wrapped, for tensor descriptors
        return None
    cooperative, pdl = getattr(run, "launch_cooperative_grid", None), getattr(run, "launch_pdl", None)
    if not isinstance(cooperative, bool) or not isinstance(pdl, bool):
        return None
    if hasattr(run, "kernel_signature"):  # Triton 3.7: one launcher for all kernels
        annotations, signature = run.arg_annotations, run.kernel_signature

        def make_shared(function: Any, packed: Any, knobs: Any, compiled: Any) -> Any:
            def launch(grid: int, stream: int, arguments: tuple[Any, ...]) -> None:
                enter, leave = knobs.launch_enter_hook, knobs.launch_exit_hook
                meta = None
                if _hooked(enter) or _hooked(leave):
                    meta = compiled.launch_metadata((grid, 1, 1), stream, *arguments)
                else:
                    enter = leave = None
                inner(grid, 1, 1, stream, function, cooperative, pdl, packed, meta, enter, leave, None, None, annotations, signature,
                      arguments)  # fmt: skip

            return launch

        return make_shared

    def make(function: Any, packed: Any, knobs: Any, compiled: Any) -> Any:  # Triton 3.6: a launcher a signature
        def launch(grid: int, stream: int, arguments: tuple[Any, ...]) -> None:
            enter, leave = knobs.launch_enter_hook, knobs.launch_exit_hook
            meta = None
            if _hooked(enter) or _hooked(leave):
                meta = compiled.launch_metadata((grid, 1, 1), stream, *arguments)
            else:
                enter = leave = None
            inner(grid, 1, 1, stream, function, cooperative, pdl, None, None, packed, meta, enter, leave, *arguments)

        return launch

    return make
