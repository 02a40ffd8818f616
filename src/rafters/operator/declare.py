"""`@rafters.elementwise` and `@rafters.rowwise`: from a body to an op."""

import dataclasses
import functools
import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from rafters.engine.module import slot_name
from rafters.engine.promotion import ACCEPTS
from rafters.engine.spec import CONSTEXPR, INDEX, SCALAR, TENSOR, Output, Parameter, Spec, View
from rafters.errors import BodyError
from rafters.operator.op import make_op
from rafters.trace import body as bodies

OutDtype = torch.dtype | str | None


def elementwise(
    body: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    out_dtype: OutDtype | Sequence[OutDtype] = None,
    accepts: str | Mapping[str, str] | None = None,
    views: Mapping[str, View] | None = None,
    outputs: Sequence[Output] | None = None,
    reference: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    compile: str | None = None,  # noqa: A002 (the option's own name)
) -> Any:
    """An op whose result at an element depends on that element of its arguments.

    The body is a function in Triton's dialect (https://triton-lang.org). Its parameters: a tensor has no annotation (or
    torch.Tensor; with the default None it may be absent), a scalar is float, int or bool, a compile-time value tl.constexpr. It
    returns the value of each output. Values arrive in float32 for half and float8 arguments (float64 stays, integers and bools stay).

        @rafters.elementwise
        def scaled_swish(x, gate, alpha: float = 1.0):
            return x * gate * lang.sigmoid(alpha * gate)

    name: "swish" or "mylib::swish"; by default the function's name under the top package of its module.
    out_dtype: None follows PyTorch's promotion; "float" lifts integers first (as torch.exp does); "bool"; a torch.dtype; the name
        of an argument whose dtype is taken; a sequence of these, one an output.
    accepts: "float", "int", "number" or "bool" for all tensors, or by argument: other dtypes raise ArgumentError.
    views, outputs: how parameters are read from arguments (halves, gathered rows) and where outputs go (in place, per row).
    reference: the same op in torch operations, for a body that cannot be traced (inline assembly, unknown library calls).
    backward: the gradient, where the derived one will not do: an op or a function of torch operations. Its parameters are named
        `grad_out` (`grad_out0`, ... of several results; zeros for a result that has no gradient) and as the op's arguments, as far
        as it needs them. It returns a gradient for each floating-point tensor argument in order, None where there is none.
        `op.backward_source()` prints the derived one to start from.
    compile: under torch.compile "fuse" takes the op apart, so that Inductor fuses it with its neighbours, and "opaque" keeps it one
        call of its kernel. None fuses unless the declaration promises what Inductor does not keep: codes of 8 bits or integers, one
        value a row, an argument overwritten, a `reference=`; and unless the body rounds a value and computes on. "fuse" loses that:
        Inductor leaves out roundings to 16 bits and may round a last bit otherwise. `op.opaque(...)` keeps the kernel in one place.

    Raises BodyError, with the line, for what cannot become an op.
    """
    return _decorator(body, False, compile, name, out_dtype, accepts, views, outputs, reference, backward)


def rowwise(
    body: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    out_dtype: OutDtype | Sequence[OutDtype] = None,
    accepts: str | Mapping[str, str] | None = None,
    views: Mapping[str, View] | None = None,
    outputs: Sequence[Output] | None = None,
    reference: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    compile: str | None = None,  # noqa: A002 (the option's own name)
) -> Any:
    """An op on rows (the last dimension): beside elementwise maths its body may call `lang.row_sum`, `row_mean`, `row_max` ...

    The kernel is written from the body's trace, since a reduction has to know the mask of its row. Arguments as for `elementwise`,
    but that torch.compile keeps the op one call of its kernel unless compile="fuse": Inductor then sums a row in an order of its own.
    """
    return _decorator(body, True, compile, name, out_dtype, accepts, views, outputs, reference, backward)


def _decorator(body: Any, rowwise_: bool, compile_: str | None, *options: Any) -> Any:
    def made(function: Any) -> Any:
        spec = _spec(function, rowwise_, *options)
        if compile_ is not None:  # its derivatives are kept whole, or fused, as well: what they promise is what it promises
            spec = dataclasses.replace(spec, make=functools.partial(rowwise if rowwise_ else elementwise, compile=compile_))
        return make_op(spec, compile_=compile_)

    return made if body is None else made(body)


def _spec(
    function: Any,
    rowwise_: bool,
    name: str | None,
    out_dtype: Any,
    accepts: Any,
    views: Mapping[str, View] | None,
    outputs: Sequence[Output] | None,
    reference: Callable[..., Any] | None,
    backward: Callable[..., Any] | None,
) -> Spec:
    body = bodies.read(function)
    if not rowwise_:
        bodies.refuse_rows(body)
    namespace, short = qualified_name(body.function, name)
    views = dict(views or {})
    tensors = [p.name for p in body.parameters if p.kind == bodies.TENSOR]
    for unknown in set(views) - set(tensors):
        raise body.error(f"views name {unknown!r}, which is no tensor parameter of the body ({', '.join(tensors)})")
    views = {t: views.get(t, View(t)) for t in tensors}
    declared = _outputs(body, out_dtype, outputs)
    halved = {v.source for v in views.values() if v.part}
    for output in declared:
        if output.sum_to in halved:
            raise body.error(f"sum_to={output.sum_to!r} names an argument that is read in halves; write its halves with part=")
    parameters = _parameters(body, views, declared)
    _check_names(body, views, parameters, declared)
    restrict = dict.fromkeys({v.source for v in views.values()}, accepts) if isinstance(accepts, str) else dict(accepts or {})
    for argument, rule in restrict.items():
        if rule not in ACCEPTS:
            raise body.error(f"accepts={rule!r} for {argument!r} is no rule; known: {', '.join(map(repr, ACCEPTS))}")
        if argument not in {p.name for p in parameters}:
            raise body.error(f"accepts= names {argument!r}, which is no argument ({', '.join(p.name for p in parameters)})")
    return Spec(
        short,
        namespace,
        body,
        rowwise_,
        parameters,
        views,
        declared,
        restrict,
        reference,
        backward,
        rowwise if rowwise_ else elementwise,
    )


def qualified_name(function: Callable[..., Any], name: str | None) -> tuple[str, str]:
    """("mylib", "swish"); a user's op goes under the top package of its module."""
    namespace = (function.__module__ or "__main__").split(".")[0]
    if name and "::" in name:
        namespace, _, name = name.partition("::")
    short = name or function.__name__
    for part in (namespace, short):
        if keyword.iskeyword(part):
            raise BodyError(f"op name {namespace}::{short}: {part!r} is a Python keyword; give another with name='...'")
        if not re.fullmatch(r"[A-Za-z_]\w*", part, re.ASCII):
            raise BodyError(f"op name {namespace}::{short}: {part!r} is no identifier (of ASCII letters, digits and _)")
    return namespace, short


def _outputs(body: bodies.Body, out_dtype: Any, outputs: Sequence[Output] | None) -> tuple[Output, ...]:
    if outputs is not None:
        if out_dtype is not None:
            raise body.error("give either out_dtype= or outputs= (an Output has a dtype of its own)")
        if len(outputs) != body.outputs:
            raise body.error(f"outputs= declares {len(outputs)} outputs, the body returns {body.outputs}")
        _check_parts(body, outputs)
        return tuple(outputs)
    several = isinstance(out_dtype, Sequence) and not isinstance(out_dtype, str)
    kinds = tuple(out_dtype) if several else (out_dtype,) * body.outputs
    if len(kinds) != body.outputs:
        raise body.error(f"out_dtype= has {len(kinds)} entries, the body returns {body.outputs} values")
    return tuple(Output(kind) for kind in kinds)


def _check_parts(body: bodies.Body, outputs: Sequence[Output]) -> None:
    """New memory is written whole: both halves of a tensor, in order, and no selected rows of one that nobody brought."""
    parts = [o.part for o in outputs if o.into is None and o.part is not None]
    pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
    if any(pair not in (["lo", "hi"], ["even", "odd"]) for pair in pairs):
        raise body.error(f"outputs= writes the parts {parts} of a new tensor; wanted lo then hi, or even then odd")
    if any(o.rows and o.into is None for o in outputs):
        raise body.error("an Output with rows= writes into an argument: name it with into=")


def _check_names(body: bodies.Body, views: dict[str, View], parameters: Sequence[Parameter], outputs: Sequence[Output]) -> None:
    """Names that generated code can hold side by side, and dtypes that name an argument."""
    tensors = {p.name for p in parameters if p.kind == TENSOR}
    for output in outputs:
        if isinstance(output.dtype, str) and output.dtype not in ("float", "bool", *tensors):
            raise body.error(
                f"out_dtype={output.dtype!r} is neither 'float', 'bool', a torch.dtype nor a tensor argument of the op"
            )
    seen: dict[str, str] = {}
    for name in dict.fromkeys([*(p.name for p in parameters), *views, *(p.name for p in body.parameters)]):
        if name == "out" or name.startswith("_"):
            raise body.error(f"argument {name!r}: `out` and names that begin with _ are the library's own")
        other = seen.setdefault(slot_name(name).upper(), name)
        if other != name:
            raise body.error(f"names {other!r} and {name!r} are too alike for generated code; rename one")


def _parameters(body: bodies.Body, views: dict[str, View], outputs: Sequence[Output]) -> tuple[Parameter, ...]:
    """The op's own parameters: tensors (through views), index tensors behind them, then scalars and compile-time values in place."""
    result: dict[str, Parameter] = {}
    into = {o.into for o in outputs if o.into}
    shapes = {o.sum_to for o in outputs if o.sum_to}
    indices = [v.rows for v in views.values() if v.rows] + [o.rows for o in outputs if o.rows]
    last_tensor = [p.name for p in body.parameters if p.kind == bodies.TENSOR][-1]
    for p in body.parameters:
        if p.kind == bodies.TENSOR:
            source = views[p.name].source
            if source not in result:
                result[source] = Parameter(source, TENSOR, None, None if p.optional else ..., p.optional, source in into)
            if p.name == last_tensor:
                read = {views[t.name].source for t in body.parameters if t.kind == bodies.TENSOR}
                for extra in sorted((into | shapes) - read):
                    result[extra] = Parameter(extra, TENSOR, None, mutated=extra in into)
                for index in dict.fromkeys(indices):
                    result[index] = Parameter(index, INDEX)
        else:
            default = ... if p.default is inspect.Parameter.empty else p.default
            kind = SCALAR if p.kind == bodies.SCALAR else CONSTEXPR
            result[p.name] = Parameter(p.name, kind, p.type, default)
    return tuple(result.values())
