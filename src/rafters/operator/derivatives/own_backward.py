"""A gradient of the author's own (`backward=`): what it is given, what it must return, and its place under torch.func."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from rafters.engine.spec import TENSOR, Spec
from rafters.errors import BodyError, RaftersError
from rafters.operator.derivatives.derive import cotangent_names
from rafters.operator.pytorch import sharding


class Shape:
    """What is kept of a tensor whose values no gradient depends on."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.zero = sharding.zero_of(tensor)

    def zeros(self) -> torch.Tensor:
        """One element, repeated; on the tensor's mesh where it is distributed."""
        zero = torch.zeros((), dtype=self.dtype, device=self.device) if self.zero is None else self.zero
        return zero.expand(self.shape)


def parameters(spec: Spec) -> list[str]:
    """Names of the parameters of `backward=`; each is a cotangent or an argument of the op."""
    function: Any = spec.backward
    names = (
        [p.name for p in function.spec.parameters] if hasattr(function, "spec") else list(inspect.signature(function).parameters)
    )
    known = {*cotangent_names(spec, range(len(spec.results))), *(p.name for p in spec.parameters)}
    for name in names:
        if name not in known:
            raise BodyError(f"{spec.name}: backward= has a parameter {name!r}; known are {', '.join(sorted(known))}")
    return names


def needs(spec: Spec) -> set[str]:
    """The arguments that `backward=` is given."""
    return set(parameters(spec)) & {p.name for p in spec.parameters}


def gradients(
    spec: Spec, arguments: dict[str, Any], cotangents: Sequence[torch.Tensor | None], results: Sequence[Shape]
) -> tuple[torch.Tensor | None, ...]:
    """A gradient for each argument of the op (None where there is none), checked: autograd itself would sum or cast a wrong one."""
    function: Any = spec.backward
    seeds = [r.zeros() if c is None else c for c, r in zip(cotangents, results, strict=True)]
    given = arguments | dict(zip(cotangent_names(spec, range(len(results))), seeds, strict=True))
    made = function(*(given[name] for name in parameters(spec)))
    values = list(made) if isinstance(made, tuple | list) else [made]
    owners = [p.name for p in spec.parameters if p.kind == TENSOR and _is_real(arguments[p.name])]
    if len(values) != len(owners):
        raise RaftersError(f"{spec.name}: backward= returned {len(values)} gradients, wanted {len(owners)} ({', '.join(owners)})")
    by_name = dict(zip(owners, values, strict=True))
    for name, value in by_name.items():
        wanted = arguments[name]
        if value is not None and (value.shape != wanted.shape or value.dtype is not wanted.dtype):
            raise RaftersError(
                f"{spec.name}: backward= returned for {name!r} a gradient of shape {tuple(value.shape)}, {value.dtype}; wanted "
                f"{tuple(wanted.shape)}, {wanted.dtype}"
            )
    return tuple(by_name.get(p.name) for p in spec.parameters)


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


class WithBackward(torch.autograd.Function):
    """The op's torch form with the author's gradient, for the transforms of torch.func."""

    generate_vmap_rule = True

    @staticmethod
    def forward(op: Any, *arguments: Any) -> Any:
        made: tuple[torch.Tensor, ...] = op.form.differentiable_form(_named(op, arguments))
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        op, *arguments = inputs
        ctx.op = op
        ctx.save_for_backward(*(a if isinstance(a, torch.Tensor) else None for a in arguments))
        ctx.constants = [None if isinstance(a, torch.Tensor) else a for a in arguments]
        ctx.results = [Shape(r) for r in output]

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        arguments = [c if t is None else t for t, c in zip(ctx.saved_tensors, ctx.constants, strict=True)]
        return (None, *gradients(ctx.op.spec, _named(ctx.op, arguments), cotangents, ctx.results))


def torch_form(op: Any, arguments: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    """The new tensors of a call in PyTorch operations, with the gradient that the op has."""
    if op.spec.backward is None:
        made: tuple[torch.Tensor, ...] = op.form.differentiable_form(arguments)
        return made
    apply: Any = WithBackward.apply
    return apply(op, *arguments.values())  # type: ignore[no-any-return]


def _named(op: Any, arguments: Sequence[Any]) -> dict[str, Any]:
    return dict(zip((p.name for p in op.spec.parameters), arguments, strict=True))
