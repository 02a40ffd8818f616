"""Runs a body on torch tensors through the shim: the traced form that every other form is derived from."""

import ast
import builtins
import traceback
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from rafters import lang
from rafters.errors import BodyError, RaftersError
from rafters.trace import names, shim
from rafters.trace.body import Body
from rafters.trace.values import DType, Value, lift, torch_dtype


class _Untensor(ast.NodeTransformer):
    """`and`, `or`, `not` and chained comparisons decide per element in Triton; Python would ask for one bool."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        thunks: list[ast.expr] = [ast.Lambda(ast.arguments([], [], None, [], [], None, []), value) for value in node.values]
        name = "__rafters_and" if isinstance(node.op, ast.And) else "__rafters_or"
        return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), thunks, []), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(ast.Call(ast.Name("__rafters_not", ast.Load()), [node.operand], []), node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) == 1:
            self.generic_visit(node)
            return node
        terms = [node.left, *node.comparators]
        pairs: list[ast.expr] = [
            ast.copy_location(ast.Compare(terms[i], [op], [terms[i + 1]]), node) for i, op in enumerate(node.ops)
        ]
        return self.visit(ast.copy_location(ast.BoolOp(ast.And(), pairs), node))  # type: ignore[no-any-return]

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr != "value" or not isinstance(node.ctx, ast.Load):
            return node
        return ast.copy_location(ast.Call(ast.Name("__rafters_value", ast.Load()), [node.value], []), node)


def _value(owner: Any) -> Any:
    """`BLOCK.value` of a compile-time value, which is a plain number here."""
    return owner if isinstance(owner, bool | int | float | str | None) else owner.value


def _convert(name: str, value: Any) -> Any:
    found = lang.word_of(value)
    if found is not None:
        return shim.word(found)
    if value is lang:
        return shim.LANG_SHIM
    if isinstance(value, types.ModuleType) and value.__name__.startswith("triton") and value.__name__.endswith("libdevice"):
        return shim.Language(shim.LIBDEVICE, "libdevice")
    if names.is_language(value):
        return shim.LANGUAGE_SHIM
    if isinstance(value, types.ModuleType) and value.__name__ == "rafters":
        return _Package()
    spelled = names.language_name(value)
    if spelled is not None:
        return getattr(shim.LANGUAGE_SHIM, spelled)
    if type(value).__name__ == "constexpr":
        return value.value
    if names.is_helper(value):
        return traceable(getattr(value, "fn", value))
    return value


class _Package:
    """`rafters` itself, for bodies that write rafters.lang.exp or rafters.tl.where."""

    lang = shim.LANG_SHIM
    tl = shim.LANGUAGE_SHIM


def traceable(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of `function` that computes on `Value`s."""
    import inspect
    import textwrap

    lines, first = inspect.getsourcelines(function)
    module = ast.parse(textwrap.dedent("".join(lines)))
    tree = next(node for node in module.body if isinstance(node, ast.FunctionDef))
    tree.decorator_list, tree.returns = [], None
    for argument in [*tree.args.args, *tree.args.kwonlyargs, *tree.args.posonlyargs]:
        argument.annotation = None
    tree = _Untensor().visit(tree)
    ast.increment_lineno(tree, first - 1)
    module = ast.fix_missing_locations(ast.Module([tree], []))
    space: dict[str, Any] = {
        "__name__": function.__module__ or "__main__",
        "__builtins__": builtins,
        "__rafters_and": shim.logical_and,
        "__rafters_or": shim.logical_or,
        "__rafters_not": shim.logical_not,
        "__rafters_value": _value,
        **shim.BUILTINS,
    }
    for name, value in names.used_names(function):
        if value is not names.ABSENT and not (hasattr(builtins, name) and value is getattr(builtins, name)):
            space[name] = _convert(name, value)
    defaults, keyword_defaults = function.__defaults__, function.__kwdefaults__
    tree.args.defaults = [ast.copy_location(ast.Constant(None), tree) for _ in tree.args.defaults]
    tree.args.kw_defaults = [d and ast.copy_location(ast.Constant(None), tree) for d in tree.args.kw_defaults]
    exec(compile(module, function.__code__.co_filename, "exec"), space)
    result = space[function.__name__]
    result.__defaults__, result.__kwdefaults__ = defaults, keyword_defaults
    return result  # type: ignore[no-any-return]


_runnables: "weakref.WeakKeyDictionary[Body, Callable[..., Any]]" = weakref.WeakKeyDictionary()


def _runnable(body: Body) -> Callable[..., Any]:
    if body not in _runnables:
        _runnables[body] = traceable(body.function)
    return _runnables[body]


def run(body: Body, arguments: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """The outputs of the body on torch tensors (in their compute dtypes) and plain compile-time values."""
    values = {name: Value(value) if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    try:
        result = _runnable(body)(**values)
    except RaftersError:
        raise
    except (TypeError, NotImplementedError, AttributeError, NameError, ValueError, ZeroDivisionError, RuntimeError) as problem:
        if (
            isinstance(problem, RuntimeError)
            and type(problem) is not RuntimeError
            and not isinstance(problem, NotImplementedError)
        ):
            raise
        raise _located(body, problem) from problem
    results = result if isinstance(result, tuple) else (result,)
    return tuple(lift(value) for value in results)


def _located(body: Body, problem: BaseException) -> BodyError:
    """The error, with the line of the user's file that led to it."""
    file = body.function.__code__.co_filename
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    line = frames[-1].lineno if frames else body.function.__code__.co_firstlineno
    foreign = " (a body calls tl and rafters.lang, not torch or math)" if "not Value" in str(problem) else ""
    return BodyError(f"{body.name} ({file}:{line}): {problem}{foreign}")


__all__ = ["DType", "run", "torch_dtype", "traceable"]
