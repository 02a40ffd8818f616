"""Rebuilds a body with other meanings for the names it uses.

Twice: for Triton (plain helpers become JITFunctions, plain constants become constexpr) and for the trace (`tl` and `lang` become
the shim). Names are recognised by the object they hold, never by their spelling, so `import triton.language as t` and
`from triton.language import exp` work alike. The copy owns its names: what the module changes later cannot be half seen.
"""

import ast
import builtins
import dis
import types
from collections.abc import Callable, Iterator
from typing import Any

from rafters import lang
from rafters.errors import BodyError
from rafters.lang import standin
from rafters.lang._define import with_names

ABSENT = object()


def used_names(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """(name, value) of every global and closure variable that `function` mentions; ABSENT where nothing is bound yet."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            yield name, ABSENT
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            name = instruction.argval
            if name in function.__globals__:
                yield name, function.__globals__[name]
            elif hasattr(builtins, name):
                yield name, getattr(builtins, name)
            else:
                yield name, ABSENT


def is_language(value: Any) -> bool:
    """Is this `triton.language` (or a part of it), or the stand-in for it?"""
    if value is standin.tl or value is lang._define.tl:
        return True
    return isinstance(value, types.ModuleType) and value.__name__.split(".")[:2] == ["triton", "language"]


def language_name(value: Any) -> str | None:
    """'exp' for triton.language.exp, however it was imported; None for anything else."""
    if isinstance(value, standin.Name):
        return value.name
    module = getattr(value, "__module__", None) or ""
    if module.startswith("triton.language") and hasattr(value, "__name__"):
        return str(value.__name__)
    if type(value).__module__.startswith("triton.language") and type(value).__name__ == "dtype":
        return str(value.name)
    return None


def is_helper(value: Any) -> bool:
    """A user's own function or JITFunction that a body calls."""
    if lang.word_of(value) is not None or language_name(value) is not None:
        return False
    return isinstance(value, types.FunctionType) or (hasattr(value, "fn") and type(value).__name__ == "JITFunction")


def files(function: Callable[..., Any]) -> set[str]:
    """The files in which a body and the helpers it calls are written."""
    found = {function.__code__.co_filename}
    for _, value in used_names(function):
        if is_helper(value) and getattr(value, "fn", value) is not function:
            found |= files(getattr(value, "fn", value))
    return found


def freeze(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a body that owns what it mentions, helpers included, as it was at decoration: every form sees the same values."""
    names: dict[str, Any] = {"__name__": function.__module__ or "__main__", "__builtins__": builtins}
    names |= {
        name: freeze(getattr(value, "fn", value)) if is_helper(value) and getattr(value, "fn", value) is not function else value
        for name, value in used_names(function)
        if value is not ABSENT and not (hasattr(builtins, name) and value is getattr(builtins, name))
    }
    frozen = with_names(function, names)
    frozen.__qualname__ = function.__qualname__
    return frozen


def for_triton(function: Callable[..., Any], half: bool = False) -> Any:
    """The body as a JITFunction, with everything it mentions made acceptable to Triton. Needs triton.

    With `half` the words of `rafters.lang` that it mentions are those for 16-bit values.
    """
    import triton.language

    from rafters.lang import half as language

    def convert(name: str, value: Any) -> Any:
        word = lang.word_of(value)
        if word is not None:
            return word.half_jit if half else word.jit
        if half and value is lang:
            return language
        if half and isinstance(value, types.ModuleType) and value.__name__ == "rafters":
            package: Any = types.ModuleType("rafters")
            package.lang, package.tl = language, triton.language
            return package
        if value is standin.tl or value is lang._define.tl:
            return triton.language
        if isinstance(value, standin.constexpr):
            return triton.language.constexpr(value.value)
        if isinstance(value, bool | int | float):
            return triton.language.constexpr(value)
        if is_helper(value):
            return for_triton(getattr(value, "fn", value), half)
        return value

    # Triton's interpreter looks for its language among a function's names, whether it is mentioned or not.
    jitted = triton.jit(with_names(function, {**_names(function, convert), "__language__": triton.language}))
    if hasattr(jitted, "_unsafe_update_src"):  # the interpreter runs the function itself, whose annotations are harmless
        jitted._unsafe_update_src(_without_annotations(jitted.src))
    return jitted


def _without_annotations(source: str) -> str:
    """The source with its annotations blanked out, character by character: Triton evaluates them, and knows no torch.Tensor.

    What is compile-time stays so: the kernel passes it as a constant.
    """
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    tree = ast.parse(source).body[0]
    arguments = [] if not isinstance(tree, ast.FunctionDef) else [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
    for argument in arguments:
        note = argument.annotation
        if note is None:
            continue
        first, last = argument.lineno - 1, (note.end_lineno or argument.lineno) - 1
        for i in range(first, last + 1):
            start = argument.col_offset + len(argument.arg.encode()) if i == first else 0
            end = note.end_col_offset or 0 if i == last else len(lines[i].rstrip(b"\n"))
            lines[i] = lines[i][:start] + b" " * (end - start) + lines[i][end:]
    return b"".join(lines).decode()


def _names(function: Callable[..., Any], convert: Callable[[str, Any], Any]) -> dict[str, Any]:
    names: dict[str, Any] = {
        "__name__": function.__module__ or "__main__",
        "__file__": function.__code__.co_filename,
        "__builtins__": builtins,
    }
    for name, value in used_names(function):
        if value is ABSENT:
            raise BodyError(
                f"{function.__name__} ({function.__code__.co_filename}:{function.__code__.co_firstlineno}): the name {name!r} is not "
                "defined; a body is read when it is decorated, so what it calls has to be defined above it"
            )
        if not hasattr(builtins, name) or value is not getattr(builtins, name):
            names[name] = convert(name, value)
    return names
