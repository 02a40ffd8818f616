"""`rafters.from_torch(fn)`: a pointwise function written with torch operations becomes an op, its body written in Triton's dialect."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from rafters.errors import BodyError, CompileError
from rafters.operator.declare import elementwise
from rafters.operator.text import function_of
from rafters.trace import body as bodies
from rafters.trace.graph import Graph, alone, trace_function
from rafters.trace.nodes import POINT, REDUCTIONS, SHAPES, TILE, name_of
from rafters.trace.write import body_text

# PyTorch counts these as elementary; each has a formula.
_APART = (torch.ops.aten.gelu, torch.ops.aten.elu, torch.ops.aten.hardtanh, torch.ops.aten.leaky_relu, torch.ops.aten.hypot)


def from_torch(function: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """An op from a pointwise function of torch operations; a decorator, or called with the function.

        @rafters.from_torch
        def swiglu(gate, up, alpha: float = 1.0):
            return torch.nn.functional.silu(alpha * gate) * up

        print(swiglu.body_source())  # the same maths in Triton's dialect, to keep and edit

    Its parameters: a tensor has no annotation (or torch.Tensor), a number is float or int. It is traced once; a branch on a
    number's or a tensor's value cannot be. What it gives on half types differs from eager torch, which rounds after every
    operation: values are computed in float32 and rounded once.

    Raises BodyError for a function that is not pointwise (reductions, reshaping, indexing, random numbers), that branches on values, or
    that uses an operation with no Triton form; it names the operation.
    """
    if function is None:
        return lambda f: from_torch(f, name=name)
    described = bodies.signature(bodies.plain_function(function))
    for p in described.parameters:
        if p.kind == bodies.CONSTEXPR or p.optional:
            raise described.error(f"parameter {p.name!r}: a trace takes one way only; make it a constant of the function")
    graph = _traced(function, described)
    parameters = [
        p.name if p.kind == bodies.TENSOR else f"{p.name}: {p.type.__name__}" + _default(p) for p in described.parameters
    ]
    count = len(_results(graph))
    outputs = ["result"] if count == 1 else [f"result{i}" for i in range(count)]
    taken = {p.name for p in described.parameters}
    outputs = [o if o not in taken else f"{o}_" for o in outputs]
    doc = " ".join((function.__doc__ or "").split()).replace('"""', "'''") or f"{function.__name__}, from its torch form."
    try:
        text = body_text(function.__name__, graph, parameters, outputs, doc)
    except CompileError as problem:
        raise described.error(str(problem)) from None
    body = function_of(function.__name__, text, function.__module__ or "__main__", function.__qualname__)
    return elementwise(body, name=name, **_dtypes(graph, function, described))


def _default(p: bodies.Parameter) -> str:
    return "" if p.default is inspect.Parameter.empty else f" = {p.default!r}"


def _traced(function: Callable[..., Any], described: bodies.Body) -> Graph:
    kinds = {bodies.TENSOR: (torch.float32, TILE)}
    tensors = {
        p.name: kinds.get(p.kind, (torch.float32 if p.type is float else torch.int32, POINT)) for p in described.parameters
    }

    def run(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = function(*values)
        made = result if isinstance(result, tuple | list) else (result,)
        if not all(isinstance(m, torch.Tensor) for m in made):
            raise described.error("it returns something that is no tensor")
        for m in made:
            if tuple(m.shape) not in ((), SHAPES[TILE]):
                raise described.error("it returns a tensor of another shape; a body sees one element at a time")
        return tuple(m.expand(SHAPES[TILE]) for m in made)

    try:
        graph = trace_function(run, tensors, mutates=True, also=_APART)
    except BodyError:
        raise
    except Exception as problem:
        raise described.error(f"it cannot be traced: {type(problem).__name__}: {str(problem).splitlines()[0]}") from problem
    for node in graph.module.graph.nodes:
        if node.op != "call_function":
            continue
        shape = tuple(node.meta["val"].shape) if isinstance(node.meta.get("val"), torch.Tensor) else None
        if name_of(node) in REDUCTIONS or shape not in ((), SHAPES[TILE]):
            raise described.error(f"aten.{name_of(node)} in it is not pointwise; a body sees one element at a time")
        if name_of(node) == "copy_":
            raise described.error("it writes into an argument")
    return graph


def _results(graph: Graph) -> list[Any]:
    return list(next(node for node in graph.module.graph.nodes if node.op == "output").args[0])


def _dtypes(graph: Graph, function: Callable[..., Any], described: bodies.Body) -> dict[str, Any]:
    """What the function makes of its arguments' dtypes: a comparison gives bool, a real function of integers floating point."""
    kinds = [result.meta["val"].dtype for result in _results(graph)]
    try:
        with alone():
            made = function(
                *(torch.ones(2, dtype=torch.int32) if p.kind == bodies.TENSOR else p.type(1) for p in described.parameters)
            )
    except Exception:  # integers are not for this function
        return {"accepts": "float", "out_dtype": [_fixed(kind) for kind in kinds]}
    of_integers = made if isinstance(made, tuple | list) else (made,)
    lifted = [m.dtype.is_floating_point for m in of_integers]
    return {"out_dtype": [_fixed(kind) or ("float" if lift else None) for kind, lift in zip(kinds, lifted, strict=True)]}


def _fixed(dtype: torch.dtype) -> Any:
    return "bool" if dtype is torch.bool else None if dtype.is_floating_point else dtype
