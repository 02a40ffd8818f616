"""Reads the body of an op at decoration: its source, its parameters and what it returns."""

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from rafters.errors import BodyError
from rafters.lang import rows, standin
from rafters.lang._define import Word
from rafters.trace.names import freeze

ROW_WORDS = {name for name, word in vars(rows).items() if isinstance(word, Word) and name.startswith("row_")}
TENSOR, SCALAR, CONSTEXPR = "tensor", "scalar", "constexpr"
_SCALARS = (float, int, bool)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a body. `kind` is tensor, scalar or constexpr; `type` is float, int or bool for a scalar."""

    name: str
    kind: str
    type: Any = None
    default: Any = inspect.Parameter.empty

    @property
    def optional(self) -> bool:
        """A tensor that may be absent (default None)."""
        return self.kind == TENSOR and self.default is None


@dataclass(frozen=True, eq=False)
class Body:
    """A body as it was written, with what its text says about it."""

    function: Callable[..., Any]
    name: str
    parameters: tuple[Parameter, ...]
    outputs: int
    tree: ast.FunctionDef = field(repr=False)
    source: str = field(repr=False)
    where: str

    def error(self, message: str, node: ast.AST | None = None) -> BodyError:
        file, _, first = self.where.rpartition(":")
        line = int(first) + getattr(node, "lineno", 1) - 1
        return BodyError(f"{self.name} ({file}:{line}): {message}")


def plain_function(function: Any) -> Callable[..., Any]:
    """The Python function behind a body: a JITFunction is one as well."""
    function = getattr(function, "fn", function)
    if not isinstance(function, types.FunctionType):
        raise BodyError(f"a body must be a Python function written with def, got {type(function).__name__}")
    return function


def read(function: Any) -> Body:
    """Reads a body, or says which line of it cannot become an op."""
    function = plain_function(function)
    name = function.__name__
    if name == "<lambda>":
        raise BodyError("a lambda has no body that Triton can read; write the op with def")
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise BodyError(
            f"{name}: its source cannot be read, and Triton compiles source; write it in a file or a notebook cell, "
            "or register the text that was exec'd in linecache"
        ) from None
    text = textwrap.dedent("".join(lines))
    tree = next((node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)), None)
    if tree is None:
        raise BodyError(f"{name}: a body must be written with def (no lambda, no async def)")
    where = f"{function.__code__.co_filename}:{first}"
    body = Body(function, name, (), 0, tree, ast.unparse(_undecorated(tree)), where)
    parameters = _parameters(body)
    if not any(p.kind == TENSOR for p in parameters):
        raise body.error("an op needs at least one tensor parameter (without an annotation, or torch.Tensor)", tree)
    return dataclasses.replace(body, function=freeze(function), parameters=parameters, outputs=_outputs(body))


def signature(function: Callable[..., Any]) -> Body:
    """The parameters of a function that is no body itself (it describes a launch): read the same way, its text left alone."""
    arguments = ast.arguments([], [], None, [], [], None, [])
    tree = ast.FunctionDef(function.__name__, arguments, [], [], lineno=1)
    where = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    body = Body(function, function.__name__, (), 0, tree, "", where)
    return dataclasses.replace(body, parameters=_parameters(body))


def _undecorated(tree: ast.FunctionDef) -> ast.AST:
    copied: Any = ast.parse(ast.unparse(tree)).body[0]
    copied.decorator_list = []
    return copied  # type: ignore[no-any-return]


def _annotation(body: Body, parameter: inspect.Parameter) -> Any:
    """The annotation, with `from __future__ import annotations` and quoted ones resolved."""
    annotation = parameter.annotation
    if not isinstance(annotation, str):
        return annotation
    function = body.function
    closure = inspect.getclosurevars(function).nonlocals
    try:
        return eval(annotation, function.__globals__, dict(closure))  # noqa: S307  (the author's own source)
    except Exception as problem:
        raise body.error(f"annotation {annotation!r} of {parameter.name!r} cannot be resolved: {problem}", body.tree) from None


def _is_constexpr(annotation: Any) -> bool:
    name = getattr(annotation, "__name__", "")
    return annotation is standin.constexpr or (name == "constexpr" and "triton" in getattr(annotation, "__module__", ""))


def _parameters(body: Body) -> tuple[Parameter, ...]:
    result = []
    for parameter in inspect.signature(body.function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise body.error(f"parameter {parameter} has no fixed place; name every parameter", body.tree)
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise body.error(
                f"parameter {parameter.name!r} is keyword-only, which Triton cannot compile; drop the `*`", body.tree
            )
        if parameter.name == "out" or parameter.name.startswith("_"):
            raise body.error(f"parameter {parameter.name!r}: `out` and names that begin with _ are the library's own", body.tree)
        annotation = _annotation(body, parameter)
        default = parameter.default
        members = [a for a in typing.get_args(annotation) if a is not types.NoneType]
        if members and typing.get_origin(annotation) in (types.UnionType, typing.Union):
            annotation = members[0] if len(members) == 1 else annotation
        if annotation is parameter.empty or annotation is torch.Tensor:
            if default not in (parameter.empty, None):
                raise body.error(
                    f"parameter {parameter.name!r} has the default {default!r} but no annotation: a tensor's default can only be "
                    f"None; annotate a scalar (`{parameter.name}: {type(default).__name__} = {default!r}`)",
                    body.tree,
                )
            result.append(Parameter(parameter.name, TENSOR, None, default))
        elif annotation in _SCALARS:
            if default is not parameter.empty and not isinstance(
                default, (annotation, int) if annotation is float else annotation
            ):
                raise body.error(f"default {default!r} of {parameter.name!r} is no {annotation.__name__}", body.tree)
            # a bool decides branches, so it is a compile-time value: two variants at most
            result.append(Parameter(parameter.name, CONSTEXPR if annotation is bool else SCALAR, annotation, default))
        elif _is_constexpr(annotation):
            result.append(Parameter(parameter.name, CONSTEXPR, None, default))
        else:
            raise body.error(
                f"annotation {annotation!r} of {parameter.name!r} is not understood; a tensor has none (or torch.Tensor), a scalar "
                "is float, int or bool, a compile-time value tl.constexpr",
                body.tree,
            )
    return tuple(result)


def refuse_rows(body: Body) -> None:
    """An elementwise body has no row: a reduction in it would run over whatever block a program holds."""
    for node in ast.walk(body.tree):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in ROW_WORDS:
            raise body.error(
                f"{name} reduces a row, which an elementwise op has not; decorate the body with @rafters.rowwise", node
            )


def _outputs(body: Body) -> int:
    """How many values the body returns; every return must agree, and the last statement must be one."""
    counts = set()
    for node in (node for statement in body.tree.body for node in ast.walk(statement)):
        if isinstance(node, ast.Yield | ast.YieldFrom | ast.Await | ast.Try | ast.With | ast.Global | ast.Nonlocal):
            raise body.error(f"`{ast.unparse(node).splitlines()[0]}` cannot be compiled by Triton", node)
        if isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            raise body.error("a function or class inside a body cannot be compiled; define it outside", node)
        if isinstance(node, ast.Return):
            if node.value is None:
                raise body.error("a body returns the values of its outputs; this return has none", node)
            counts.add(len(node.value.elts) if isinstance(node.value, ast.Tuple) else 1)
    if not counts:
        raise body.error("a body must return the values of its outputs", body.tree)
    if len(counts) > 1:
        raise body.error(f"its returns disagree on the number of outputs: {sorted(counts)}", body.tree)
    statements = body.tree.body
    for statement in statements[:-1]:
        early = next((n for n in ast.walk(statement) if isinstance(n, ast.Return)), None)
        if early is not None:
            raise body.error("a return before the end: Triton compiles what follows as well; use if/else with one return", early)
    return counts.pop()
