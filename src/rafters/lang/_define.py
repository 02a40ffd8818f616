"""How a word of the language is defined: its Triton code and its PyTorch meaning in one place.

A word is written as a plain Python function in Triton's dialect. Nothing here imports triton: the compiled form is built when a
word is first used, so that bodies can be written, traced and run where triton is not installed.
"""

import dis
import functools
import importlib
import types
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

Meaning = Callable[..., Any]


@functools.cache
def has_triton() -> bool:
    return find_spec("triton") is not None


class Word:
    """One function of `rafters.lang`: `code` in Triton's dialect, `meaning` on torch tensors in the compute dtype.

    The derivative of a word is that of its meaning, which PyTorch knows; a word whose derivative must be taken another way says
    so in its meaning (with a `torch.autograd.Function`, by detaching what is constant, or as `row_mean` does).
    """

    def __init__(self, code: Callable[..., Any], meaning: Meaning, real: bool = False) -> None:
        self.code = code
        self.is_real = real
        self.meaning = meaning
        self.name = code.__name__
        functools.update_wrapper(self, code)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        where = "@rafters.elementwise or @rafters.rowwise"
        raise TypeError(f"rafters.lang.{self.name} is a word of an op's body; call it inside {where}")

    @functools.cached_property
    def jit(self) -> Any:
        """The JITFunction of `code`; needs triton."""
        return jit_function(self.code, half=False)

    @functools.cached_property
    def half_jit(self) -> Any:
        """The same for kernels on 16-bit values: `HALF` is true in it and in the words it calls."""
        return jit_function(self.code, half=True)


def define(meaning: Meaning, *, real: bool = False) -> Callable[[Callable[..., Any]], Word]:
    """Decorator of a word: `@define(torch.exp, real=True) def exp(x): ...`.

    `real`: the word computes in float32 (or float64) whatever it is given; its code says so with `_real`.
    """
    return lambda code: Word(code, meaning, real)


def helper(code: Callable[..., Any]) -> Word:
    """Decorator of a piece that several words' code shares. The trace never meets it: it runs the meanings of the words."""

    def no_meaning(*_args: Any, **_kwargs: Any) -> Any:
        raise TypeError(f"{code.__name__} is a part of a word's Triton code and has no PyTorch meaning")

    return Word(code, no_meaning)


class _LazyModule:
    """A module of Triton's as the words see it: loaded when it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def load(self) -> types.ModuleType:
        return importlib.import_module(self._name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.load(), name)


tl: Any = _LazyModule("triton.language")
INTERPRETED = object()  # in a word's code: a constant, whether Triton's interpreter runs it
HALF = object()  # in a word's code: a constant, whether the kernel works on 16-bit values (relative error 2^-16 is enough)
libdevice: Any = _LazyModule("triton.language.extra.libdevice")  # float64 only: Triton's interpreter has none of it


def with_names(function: Callable[..., Any], names: dict[str, Any]) -> types.FunctionType:
    """A copy of `function` that sees `names` as its globals and closure; source file and line stay."""
    code = function.__code__
    cells = tuple(types.CellType(names[name]) for name in code.co_freevars)
    copy = types.FunctionType(code, names, function.__name__, function.__defaults__, cells)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = dict(function.__annotations__)
    copy.__module__ = function.__module__
    copy.__qualname__ = function.__name__
    copy.__doc__ = function.__doc__
    return copy


def jit_function(code: Callable[..., Any], half: bool) -> Any:
    """`triton.jit` of a word's code, with the other words it calls compiled as well."""
    import triton
    import triton.language

    # Loads of globals only: co_names would also hold the `exp` of `tl.exp`, and tie a word to its namesake.
    used = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    names: dict[str, Any] = {"__name__": code.__module__, "__builtins__": __builtins__}
    for name, value in code.__globals__.items():
        if value is tl or (name in used and isinstance(value, _LazyModule)):
            names[name] = value.load()  # tl always: the interpreter looks for it
        elif name not in used:
            continue
        elif isinstance(value, Word):
            names[name] = value.half_jit if half else value.jit
        elif value is INTERPRETED or value is HALF:
            names[name] = triton.language.constexpr(half if value is HALF else bool(triton.knobs.runtime.interpret))
        elif isinstance(value, int | float):
            names[name] = triton.language.constexpr(value)
    return triton.jit(with_names(code, names))
