"""A function from a text that was written here rather than by a person: Triton and tracebacks read its source from linecache."""

import hashlib
import linecache
from collections.abc import Callable
from typing import Any

from rafters import lang
from rafters.lang import standin


def function_of(name: str, text: str, module: str, qualname: str) -> Callable[..., Any]:
    """The function `name` that `text` defines, as if it stood in `module`; it sees `lang` and `tl`."""
    file = f"<rafters {module}.{name} {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": module, "lang": lang, "tl": standin.tl}
    exec(compile(text, file, "exec"), space)
    function: Callable[..., Any] = space[name]
    function.__qualname__ = qualname
    return function
