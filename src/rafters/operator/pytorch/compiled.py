"""An op under torch.compile: taken apart for Inductor to fuse, or kept whole.

Every op has two overloads. The plain one, `ns::name`, decomposes into PyTorch operations while AOTAutograd traces (under
FunctionalTensorMode), if the op may be fused; `ns::name.opaque` stays one call of the kernel. torch.export keeps both as they are.
A third overload, `ns::name.opaque_numbers`, takes 0-d tensors for float scalars: PyTorch carries a float that varies from call to
call as a tensor, and would compile anew for each value of a float that an opaque call takes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rafters.dtypes import FLOAT8
from rafters.engine.call import resolve
from rafters.engine.layouts.geometry import contiguous_strides
from rafters.engine.prepare import trace_call
from rafters.engine.spec import SCALAR, Spec
from rafters.errors import BodyError
from rafters.operator.from_body import FromBody
from rafters.operator.pytorch.fingerprint import Fingerprint
from rafters.operator.traced import float_tensor
from rafters.trace.nodes import name_of

FUSE, OPAQUE = "fuse", "opaque"


def checked(spec: Spec, wish: str | None) -> str | None:
    """`compile=wish` of a declaration, if it can be granted; BodyError if not."""
    if wish not in (None, FUSE, OPAQUE):
        raise BodyError(f"{spec.name}: compile={wish!r} is neither None, {FUSE!r} nor {OPAQUE!r}")
    if wish == FUSE and any(p.mutated for p in spec.parameters):
        raise BodyError(
            f"{spec.name}: compile={FUSE!r} for an op that overwrites an argument, which is always one call of its kernel"
        )
    return wish


def fuses(op: Any) -> bool:
    """Is the op taken apart under torch.compile? As its declaration says; else where nothing in it promises more than the body's maths.

    A row-wise op promises the order of its reductions, a quantizer its codes, a hand-written kernel or one with a `reference=` that the
    kernel is what runs, an op that overwrites an argument that it is overwritten.
    """
    spec: Spec = op.spec
    if op.compile is not None:
        return bool(op.compile == FUSE)
    plain = isinstance(op.form, FromBody) and not spec.rowwise and spec.reference is None
    return plain and not any(o.per_row or o.into is not None or _is_code(o.dtype) for o in spec.outputs)


def _is_code(dtype: Any) -> bool:
    """An 8-bit or integer result of fixed dtype: a quantizer's."""
    return isinstance(dtype, torch.dtype) and dtype is not torch.bool and (dtype in FLOAT8 or not dtype.is_floating_point)


def rounds_inside(spec: Spec, arguments: dict[str, Any]) -> bool:
    """Does the body round a value to fewer bits and compute on? Inductor would leave that rounding out."""
    graph = trace_call(spec, resolve(spec, arguments), arguments).module.graph
    for node in graph.nodes:
        if node.op == "call_function" and name_of(node) == "_to_copy":
            before, after = node.args[0].meta["val"].dtype, node.meta["val"].dtype
            narrows = before.is_floating_point and after.is_floating_point and after.itemsize < before.itemsize
            if narrows and any(user.op != "output" for user in node.users):
                return True
    return False


def register_rules(op: Any, library: torch.library.Library, name: str, defaults: Sequence[Any], body: Fingerprint) -> None:
    """What AOTAutograd's tracing makes of each overload. `name` is the op's own, without namespace."""
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    spec: Spec = op.spec
    packet = getattr(getattr(torch.ops, spec.namespace), name)
    names = [p.name for p in spec.parameters]

    def given(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name; the dispatcher drops trailing ones that equal the schema's defaults."""
        missing = len(names) - len(args)
        values = dict(zip(names, (*args, *defaults[len(defaults) - missing :]), strict=True))
        return values | {n: v for n, v in kwargs.items() if n != "_body"}

    def rule(mode: Any, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> Any:
        if _exporting():
            return mode.__torch_dispatch__(func, types, args, kwargs or {})
        if _foreign(types):
            return NotImplemented
        arguments = given(args, kwargs or {})
        apart = func is packet.default and fuses(op) and (op.compile == FUSE or not rounds_inside(spec, arguments))
        return decomposed(op, mode, arguments) if apart else whole(op, packet, mode, types, arguments, body)

    for overload in ("", ".opaque"):
        torch.library.register_torch_dispatch(f"{spec.namespace}::{name}{overload}", FunctionalTensorMode, rule, lib=library)


def _exporting() -> bool:
    """An exported program keeps the op; what is compiled from it is taken apart then."""
    from torch.export import _trace

    disabled: Callable[[], bool] = getattr(_trace, "custom_triton_ops_decomposition_disabled", torch.compiler.is_exporting)
    return disabled()


def _foreign(types: Sequence[type]) -> bool:
    """Is there a tensor subclass (DTensor) whose own rules come first?"""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return any(not issubclass(t, FakeTensor) and t not in (torch.Tensor, torch.nn.Parameter, FunctionalTensor) for t in types)


def decomposed(op: Any, mode: Any, arguments: dict[str, Any]) -> Any:
    """The op in PyTorch operations, its results in the memory order that an eager call gives them and no alias of an argument."""
    with mode:
        made = [
            _settled(value, shape, strides)
            for value, (shape, strides, _) in zip(
                op.form.differentiable_form(arguments), op.form.new_results(arguments), strict=True
            )
        ]
    return made[0] if len(made) == 1 else tuple(made)


def _settled(value: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    value = value.expand(shape)
    if strides == contiguous_strides(shape):
        return value.clone(memory_format=torch.contiguous_format)
    order = sorted(range(len(shape)), key=lambda d: (strides[d], shape[d]), reverse=True)  # slowest first
    inverse = [order.index(d) for d in range(len(shape))]
    return value.permute(order).clone(memory_format=torch.contiguous_format).permute(inverse)


def whole(op: Any, packet: Any, mode: Any, types: Sequence[type], arguments: dict[str, Any], body: Fingerprint) -> Any:
    """One call of the kernel.

    `_body` in the graph is for Inductor's cache, which keys a graph by its text: after an edit of what the op returns (its dtype, its
    shape), the same text would find code that was compiled for the old result.
    """
    overload, values = packet.opaque, arguments
    if any(isinstance(value, torch.SymFloat) for value in arguments.values()):
        overload = packet.opaque_numbers
        with mode:
            values = {p.name: float_tensor(arguments[p.name]) if is_float(p) else arguments[p.name] for p in op.spec.parameters}
    return mode.__torch_dispatch__(overload, types, tuple(values.values()), {"_body": body.digest})


def is_float(parameter: Any) -> bool:
    return parameter.kind == SCALAR and parameter.type is float
