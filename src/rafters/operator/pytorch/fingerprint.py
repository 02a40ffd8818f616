"""What an op means, as text, for the keys of PyTorch's compile caches.

AOTAutograd caches compiled graphs on disk under a key that holds an op's *name*; what the op decomposes into is not part of it, so an
edited body would meet the code compiled from the old one. PyTorch has a table of the Triton kernels behind each op whose source
enters the key: what we put there is a description of the op, made when it is asked for. Where PyTorch has no such table, or no triton
(it then reads none), the description goes into `torch.compiler.config.cache_key_tag`.
"""

import functools
import hashlib
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from rafters._version import __version__
from rafters.engine.spec import Spec
from rafters.lang import has_triton
from rafters.trace.names import used_names

_FOREIGN = ("torch", "triton", "rafters", "builtins", "numpy", "math")
_PLAIN = (bool, int, float, str, bytes, tuple, types.NoneType, torch.dtype)


class Fingerprint:
    """Has the attributes that PyTorch reads of a JITFunction: `src` enters the cache key; `fn` mentions nothing further."""

    __name__ = "rafters_op"

    def __init__(self, spec: Spec, fuses: bool) -> None:
        self.spec, self.fuses = spec, fuses

    @functools.cached_property
    def src(self) -> str:
        return "\n".join([f"rafters {__version__} {_library()} fuses={self.fuses}", *_spec(self.spec, set())])

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.src.encode()).hexdigest()[:16]

    @staticmethod
    def fn() -> None:
        """No names, so that nothing else is looked up."""


def _spec(spec: Spec, seen: set[int]) -> Iterator[str]:
    if id(spec) in seen:
        return
    seen.add(id(spec))
    yield f"{spec.namespace}::{spec.name} rowwise={spec.rowwise}"
    yield from map(repr, (spec.parameters, spec.views, spec.outputs, spec.accepts))
    for function in (spec.body.function, spec.reference, spec.backward):
        yield from _meaning("", function, seen)


@functools.cache
def _library() -> str:
    """A digest of our own files: the words of the language and the rules of the trace decide what a body means."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return digest.hexdigest()


def _meaning(name: str, value: Any, seen: set[int]) -> Iterator[str]:
    """A value that something mentions under this name: functions, ops and what they mention in turn."""
    inner = getattr(value, "fn", value)
    if isinstance(getattr(value, "spec", None), Spec):  # an op, called by another's backward
        yield f"{name}: an op, compile={value.compile}"
        yield from _spec(value.spec, seen)
    elif isinstance(inner, types.FunctionType) and not _foreign(inner.__module__):
        if id(inner) not in seen:
            seen.add(id(inner))
            yield from _function(inner, seen)
    else:
        yield f"{name} = {_value(value)}"


def _foreign(module: str | None) -> bool:
    return (module or "").split(".")[0] in _FOREIGN


def _function(function: types.FunctionType, seen: set[int]) -> Iterator[str]:
    """A function as it runs, by its bytecode: its file may have been edited since."""
    yield f"def {function.__name__} {function.__defaults__!r} {function.__kwdefaults__!r}"
    yield from _code(function.__code__)
    for name, value in dict(used_names(function)).items():
        if isinstance(value, types.ModuleType) and not _foreign(value.__name__):
            for part in function.__code__.co_names:
                if hasattr(value, part):
                    yield from _meaning(f"{name}.{part}", getattr(value, part), seen)
        else:
            yield from _meaning(name, value, seen)


def _code(code: types.CodeType) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars}"
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        else:
            yield repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant)


def _value(value: Any) -> str:
    value = getattr(value, "value", value)  # a constexpr
    if isinstance(value, _PLAIN):
        return repr(value)
    return str(getattr(value, "__name__", None) or getattr(value, "name", None) or type(value).__name__)


@functools.cache
def _table() -> dict[str, list[object]] | None:
    """PyTorch's table op -> kernels, where it exists and is read."""
    from torch._library import triton as kernels

    table = getattr(kernels, "triton_ops_to_kernels", None)
    known = isinstance(table, dict) and hasattr(kernels, "get_triton_kernels_for_op") and has_triton()
    return table if known else None


def enter(names: Iterable[str], fingerprint: Fingerprint) -> Callable[[], None]:
    """Makes the fingerprint part of the key of every graph that calls one of these ops (`ns::name`, `ns::name.overload`).

    Returns what the op's fake function has to call: PyTorch runs it before it asks its caches.
    """
    table = _table()
    if table is None:
        return lambda: _tag(fingerprint.digest)
    for name in names:
        table[name] = [fingerprint]
    return lambda: None


def _tag(digest: str) -> None:
    """Extends the user's tag, once for each op that is traced."""
    config: Any = torch.compiler.config
    if digest not in config.cache_key_tag.split():
        config.cache_key_tag = f"{config.cache_key_tag} {digest}".strip()
