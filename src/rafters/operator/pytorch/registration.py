"""What PyTorch has to know of an op: its schema, its kernels, its fake function and its gradient.

Registered with torch.library's `define` and `impl` (half the cost of `custom_op`). The gradient gate sits at the Autograd key, so that
Dynamo sees one op. What torch.compile makes of its overloads: see compiled.py.
"""

import itertools
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rafters.dtypes import category
from rafters.engine.spec import INDEX, SCALAR, TENSOR, Parameter, Spec
from rafters.errors import BodyError
from rafters.operator.calls import gate
from rafters.operator.derivatives.forward import forward_mode
from rafters.operator.derivatives.gradient import differentiable
from rafters.operator.derivatives.own_backward import torch_form
from rafters.operator.pytorch import compiled, fingerprint, sharding

_KINDS = {float: "Scalar", int: "SymInt", bool: "bool", str: "str"}
_taken: dict[str, tuple[str, torch.library.Library, weakref.ref[Any]]] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()


class Registration:
    """The registered form of one op."""

    def __init__(self, op: Any, library: torch.library.Library, name: str) -> None:
        self.op = op
        self.library = library  # kept: an op whose library object dies is gone
        packet = getattr(getattr(torch.ops, op.spec.namespace), name)
        self.overload, self.opaque = packet.default, packet.opaque
        for overload in (self.overload, self.opaque):
            sharding.declare(op, overload)

    def tensorized(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments as the schema wants them: a number in a tensor's place becomes a 0-d tensor, which promotes like one."""
        spec = self.op.spec
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        wide = any(t.dtype is torch.float64 for t in tensors)
        flat = all(t.dim() == 0 for t in tensors)
        result = []
        for p, value in zip(spec.parameters, arguments, strict=True):
            if p.kind == TENSOR and isinstance(value, bool | int | float):
                dtype = (
                    torch.bool
                    if isinstance(value, bool)
                    else torch.int64
                    if isinstance(value, int)
                    else torch.get_default_dtype()
                )
                if flat and tensors:  # among 0-d tensors a number decides the category only
                    first = tensors[0].dtype
                    dtype = first if category(dtype) <= category(first) else dtype
                elif wide and isinstance(value, float):
                    dtype = torch.float64
                value = self._number(value, dtype, tensors[0].device if tensors else None)
            result.append(value)
        return result

    @staticmethod
    def _number(value: Any, dtype: torch.dtype, device: torch.device | None) -> torch.Tensor:
        if isinstance(value, float) and gate.is_compiling():  # one that varies stays a variable only in a product
            return (torch.ones((), dtype=torch.float64, device=device) * value).to(dtype)
        return torch.scalar_tensor(value, dtype=dtype, device=device)


def schema(spec: Spec, name: str, numbers: bool = False) -> str:
    """`add(Tensor x, Tensor y) -> Tensor`. Numbers are Scalar and SymInt: a `float` would recompile on every value.

    `numbers`: float scalars are 0-d tensors. Overloads have an argument `_body` more, which compiled code fills with what it was
    compiled for (see compiled.py). Without it they would have one signature with the plain op, and PyTorch could not remove them.
    """
    parts: list[str] = []
    for p in spec.parameters:
        if not p.name.isascii():
            raise BodyError(f"{spec.name}: argument {p.name!r}: PyTorch's schemas take ASCII letters, digits and _ only")
        if p.kind in (TENSOR, INDEX):
            text = f"Tensor(a{len(parts)}!)" if p.mutated else "Tensor?" if p.optional else "Tensor"
        elif p.kind == SCALAR:
            text = "Tensor" if numbers and compiled.is_float(p) else _KINDS[p.type]
        else:
            text = _KINDS.get(p.type or type(p.default), "Scalar")
        parts.append(f"{text} {p.name}" + ("" if p.default is ... or numbers else f"={_literal(p)}"))
    fresh = sum(1 for group in spec.results if group[0].into is None)
    returns = "()" if fresh == 0 else "Tensor" if fresh == 1 else "(" + ", ".join(["Tensor"] * fresh) + ")"
    if "." in name:
        parts += ["*", 'str _body=""']
    return f"{name}({', '.join(parts)}) -> {returns}"


def _literal(p: Parameter) -> str:
    if isinstance(p.default, float) and not math.isfinite(p.default):
        raise BodyError(f"the default {p.default!r} of {p.name!r} cannot be written in an op's schema; make it a finite number")
    return f'"{p.default}"' if isinstance(p.default, str) else str(p.default)


def register(op: Any) -> Registration:
    """Defines the op.

    The same function decorated again (an edited notebook cell, a reload, a factory called twice) takes the name over; an op that is
    still alive then goes on under a name of its own. Another function of that name is an error.
    """
    spec: Spec = op.spec
    name = f"{spec.namespace}::{spec.name}"
    origin = f"{spec.body.function.__module__}.{spec.body.function.__qualname__}"
    with _lock:
        if name in _taken:
            known, library, replaced = _taken[name]
            if known != origin:
                raise BodyError(f"op {name} exists already (from {known}); give this one another name with name='...'")
            library._destroy()
            earlier = replaced()
            if earlier is not None:
                earlier._registration = _define(earlier, f"{spec.name}_replaced_{next(_numbers)}")
        registration = _define(op, spec.name)
        _taken[name] = (origin, registration.library, weakref.ref(op))
        return registration


def _define(op: Any, name: str) -> Registration:
    """Three overloads. The plain one comes first: it is what `torch.ops.ns.name(...)` finds."""
    spec: Spec = op.spec
    library = torch.library.Library(spec.namespace, "FRAGMENT")
    # The dispatcher drops trailing arguments that equal the schema's defaults before it calls a Python function.
    defaults = tuple(p.default for p in spec.parameters if p.default is not ...)
    overloads = ("", ".opaque")
    body = fingerprint.Fingerprint(spec, compiled.fuses(op))
    fake = _fake(op, defaults, fingerprint.enter([f"{spec.namespace}::{name}{o}" for o in overloads], body))
    for overload in overloads:
        library.define(schema(spec, f"{name}{overload}"), tags=(torch.Tag.pt2_compliant_tag,))
        _implement(op, library, name + overload, defaults, fake)
    if any(map(compiled.is_float, spec.parameters)):
        library.define(schema(spec, f"{name}.opaque_numbers", numbers=True), tags=(torch.Tag.pt2_compliant_tag,))
        _implement_numbers(op, library, f"{name}.opaque_numbers", fake)
    compiled.register_rules(op, library, name, defaults, body)
    return Registration(op, library, name)


def _fake(op: Any, defaults: tuple[Any, ...], note: Callable[[], None]) -> Callable[..., Any]:
    """Shapes, strides and dtypes of what a call returns, from the code that plans it."""
    spec: Spec = op.spec

    def fake(*arguments: Any, _body: str = "") -> Any:
        note()
        missing = len(spec.parameters) - len(arguments)
        arguments = (*arguments, *defaults[len(defaults) - missing :])
        named = dict(zip((p.name for p in spec.parameters), arguments, strict=True))
        specs = op.form.new_results(named)
        example = next(a for a in arguments if isinstance(a, torch.Tensor) and (a.dim() or all(
            b.dim() == 0 for b in arguments if isinstance(b, torch.Tensor))))  # fmt: skip
        made = [torch.empty_strided(shape, strides, dtype=dtype, device=example.device) for shape, strides, dtype in specs]
        return None if not made else made[0] if len(made) == 1 else tuple(made)

    return fake


def _implement(op: Any, library: torch.library.Library, name: str, defaults: tuple[Any, ...], fake: Callable[..., Any]) -> None:
    """The kernels of one overload (`name` or `name.opaque`), its fake function and its gradient gate."""
    spec: Spec = op.spec

    def plain(*arguments: Any) -> Any:
        return op._run(tuple(arguments))

    # The plan's own checks stand above these; below the Autograd key no gradient is wanted any more.
    for key in ("CPU", "CUDA"):
        library.impl(name, op._below(op._plans, plain, defaults), key)
    torch.library.register_fake(f"{spec.namespace}::{name}", fake, lib=library)
    differentiate = differentiable(op)
    packet, _, overload = name.partition(".")

    def autograd(*arguments: Any, _body: str = "") -> Any:
        op._check_arguments(arguments)
        arguments = gate.without_negative_bit(arguments)
        if any(isinstance(a, torch.Tensor) and a.device.type == "meta" for a in arguments):
            return fake(*arguments)
        if gate.forward_only(arguments) and (dual := forward_mode(op, arguments)) is not None:
            return dual
        if gate.needs_composite(arguments):
            made = torch_form(op, dict(zip((p.name for p in spec.parameters), arguments, strict=True)))
            return made[0] if len(made) == 1 else made
        wanted = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments)
        if gate.transforms_or_modes() or any(isinstance(a, torch.Tensor) and type(a) not in gate.PLAIN for a in arguments):
            sharding.hand_over()
            with torch._C._AutoDispatchBelowAutograd():
                below = getattr(getattr(getattr(torch.ops, spec.namespace), packet), overload or "default")
                return differentiate(arguments, below) if wanted else below(*arguments)
        return differentiate(arguments, plain) if wanted else plain(*arguments)

    library.impl(name, op._registered(op._plans, autograd, defaults), "Autograd")


def _implement_numbers(op: Any, library: torch.library.Library, name: str, fake: Callable[..., Any]) -> None:
    """The overload that only compiled code calls, below autograd: its 0-d tensors are on the CPU, so reading them waits for nothing."""
    floats = [compiled.is_float(p) for p in op.spec.parameters]

    def read(*arguments: Any, _body: str = "") -> Any:
        return op._run(tuple(a.item() if f else a for f, a in zip(floats, arguments, strict=True)))

    def shapes(*arguments: Any, _body: str = "") -> Any:
        return fake(*(1.0 if f else a for f, a in zip(floats, arguments, strict=True)))

    for key in ("CPU", "CUDA"):
        library.impl(name, read, key)
    torch.library.register_fake(f"{op.spec.namespace}::{name}", shapes, lib=library)
