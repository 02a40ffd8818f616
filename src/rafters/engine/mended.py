"""Triton's compiler, with a fault of one of its versions kept out of our kernels.

LLVM, as Triton 3.6 brings it, makes one packed shift of two unlike operations (`x & 31` beside `y << 2` become `<x, y> << <31, 2>`) and
drops the lane that was no shift. The packed shift keeps the promise of the other lane, not to overflow. The PTX back end puts the two
lanes into one 64-bit register and, by that promise, widens the dropped one with a product; its upper bits then lie in its neighbour: a
wrong address, without an error. Seen on an H200: the gradient of `lerp` by a vector of 32-bit numbers that is not aligned.

The promise is only ever a licence to optimize, so that a kernel with such a shift is compiled again without it.
"""

import functools
import re
import threading
from typing import Any

LOCK = threading.Lock()
PROMISED = re.compile(r"\b(shl|mul)(?: nuw| nsw)+ (<\d+ x i\d+>)")


def compile_kernel(source: Any, target: Any, options: dict[str, Any]) -> Any:
    """`triton.compile`, and again without the promises where they could be misread."""
    import triton

    compiled = triton.compile(source, target=target, options=options)
    if target.backend != "cuda" or not misreads(triton.__version__) or not PROMISED.search(_text(compiled)):
        return compiled
    runtime = triton.knobs.runtime
    with LOCK:
        theirs = runtime.add_stages_inspection_hook
        ours = runtime.add_stages_inspection_hook = functools.partial(_without_promises, theirs)
        # Triton 3.6 leaves hooks out of the key of its cache; these, which are in it, tell the two kernels apart.
        named = {**triton.compiler.compiler.get_cache_invalidating_env_vars(), "RAFTERS_MENDED": "1"}
        try:
            return triton.compile(source, target=target, options=options, _env_vars=named)
        finally:
            if runtime.add_stages_inspection_hook is ours:
                runtime.add_stages_inspection_hook = theirs


def misreads(version: str) -> bool:
    """Is it a version of Triton with this fault? 3.7 and 3.9 assemble the same kernel rightly."""
    return tuple(int(part) for part in version.split(".")[:2]) < (3, 7)


def _text(compiled: Any) -> str:
    """The optimized LLVM IR; where Triton was told to keep the binary alone, a text that counts as misread."""
    return str(compiled.asm.get("llir", "shl nuw <2 x i32>"))


def _without_promises(theirs: Any, *given: Any) -> tuple[str, str] | None:
    """A hook for Triton's stages, beside the one that is set; without arguments Triton asks what to add to the key of its cache."""
    known = theirs(*given) if theirs else ("", "")
    if not given:
        return known[0] + __name__, known[1] + __name__
    stages = given[1]
    if (assemble := stages.get("ptx")) is not None:  # another thread may compile for another kind of device meanwhile
        stages["ptx"] = lambda text, metadata: assemble(PROMISED.sub(r"\1 \2", text), metadata)
    return None
