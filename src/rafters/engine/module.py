"""Turns the text of a kernel into a module that Triton can compile and a person can read."""

import functools
import hashlib
import linecache
import re
from typing import Any

from rafters.errors import CompileError


@functools.cache
def jit_function(text: str, kernel: str, body: Any, half: bool = False) -> Any:
    """The JITFunction `kernel` of a generated module. `body` is the user's function, which an elementwise kernel calls.

    `half`: what the text calls `lang` are the words for 16-bit values.

    The text needs no file: Triton reads it from linecache, so a read-only home is no obstacle.
    """
    from rafters import lang
    from rafters.lang import half as lang_half

    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    file = f"<rafters {kernel} {digest}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {
        "__name__": f"rafters.generated.{kernel}_{digest}",
        "__file__": file,
        "lang": lang_half if half else lang,
    }
    if body is not None:
        names["body"] = body
    exec(compile(text, file, "exec"), names)
    return names[kernel]


# What a kernel's parameters may not be called, because the generated text uses the name itself.
_TAKEN = re.compile(
    r"o|n|n\d+|r|c|m|m_row|m_col|m_next|rows|cols|i|row_blocks|col_blocks|i_\w+|tl|triton|body|lang|float|gdc_\w+|\w+_(total|ptr|s0|s1|sx|nx|o\d+)"
    r"|BLOCK|INDEX|WRAP|ROWS|COLS|STEPS|PDL|\w+_(AS|SUM|MISSING)"
)


def slot_name(name: str) -> str:
    """The name of a user's parameter inside a kernel: its own, unless the generated text uses that for something else."""
    return f"{name}_" if _TAKEN.fullmatch(name) else name


def no_triton() -> CompileError:
    return CompileError(
        "triton is not installed, so no kernel can be compiled; it comes with torch for GPUs, or `pip install rafters[triton]`"
    )
