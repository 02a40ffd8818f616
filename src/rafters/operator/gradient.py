"""The gradient of an op, as autograd sees it: saved are inputs alone, and of these only what the gradient depends on.

The backward is an op of its own (operator/derive.py), so what it gives can be differentiated, compiled and sharded again. Where an op
has no derived backward, PyTorch takes the derivative of its torch form, recomputed from the saved inputs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rafters.engine.spec import Spec
from rafters.errors import RaftersError
from rafters.operator import sharding
from rafters.operator.derive import Derivative, derivative


def differentiable(op: Any) -> Callable[..., Any]:
    """`f(arguments, run)` that calls `run` and records the gradient."""
    spec: Spec = op.spec
    names = [p.name for p in spec.parameters]

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, run: Callable[..., Any], *arguments: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                result = run(*arguments)
            results = result if isinstance(result, tuple) else (result,)
            live = tuple(i for i, r in enumerate(results) if r.dtype.is_floating_point and r.dtype.itemsize > 1)
            wanted = tuple(n for n, need in zip(names, ctx.needs_input_grad[1:], strict=True) if need)
            rule = derivative(spec, dict(zip(names, arguments, strict=True)), wanted, live)
            ctx.rule = rule
            kept = [
                isinstance(a, torch.Tensor) and (rule is None or n in rule.needed) for n, a in zip(names, arguments, strict=True)
            ]
            ctx.save_for_backward(*(a if keep else None for a, keep in zip(arguments, kept, strict=True)))
            ctx.others = [None if keep else _shape_of(a) for a, keep in zip(arguments, kept, strict=True)]
            ctx.mark_non_differentiable(*(r for i, r in enumerate(results) if i not in live))
            ctx.set_materialize_grads(False)
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            arguments = [t if t is not None else _stand_in(o) for t, o in zip(ctx.saved_tensors, ctx.others, strict=True)]
            wanted = [i for i, need in enumerate(ctx.needs_input_grad[1:]) if need]
            live = tuple(i for i, g in enumerate(gradients) if g is not None)
            result: list[Any] = [None] * (len(arguments) + 1)
            if not live or not wanted:
                return tuple(result)
            rule: Derivative | None = ctx.rule
            if rule is not None and rule.live != live:
                rule = derivative(spec, dict(zip(names, arguments, strict=True)), tuple(names[i] for i in wanted), live)
            if rule is None or any(_is_batched(t) for t in (*gradients, *arguments)):
                made = _of_torch_form(op, names, arguments, wanted, live, gradients)
            else:
                made = _derived(rule, names, arguments, gradients)
            for i in wanted:
                result[i + 1] = made[names[i]]
            return tuple(result)

    def call(arguments: tuple[Any, ...], run: Callable[..., Any]) -> Any:
        if any(p.mutated for p in spec.parameters):
            raise RaftersError(f"{spec.name}: it overwrites an argument and has no gradient; call it under torch.no_grad()")
        return Function.apply(run, *arguments)  # type: ignore[no-untyped-call]

    return call


def _is_batched(value: Any) -> bool:
    """A tensor of `is_grads_batched=True`, which an older vmap than torch.func's makes: it has no memory that a kernel could read."""
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_legacy_batchedtensor(value)


class _Shape:
    """What is kept of a tensor whose values the gradient does not depend on."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device
        self.zero = sharding.zero_of(tensor)


def _shape_of(value: Any) -> Any:
    return _Shape(value) if isinstance(value, torch.Tensor) else value


def _stand_in(value: Any) -> Any:
    """One element, repeated: it has the shape and dtype that a gradient is to have, and is not read."""
    if not isinstance(value, _Shape):
        return value
    zero = torch.zeros((), dtype=value.dtype, device=value.device) if value.zero is None else value.zero
    return zero.expand(value.shape)


def _derived(
    rule: Derivative, names: Sequence[str], arguments: Sequence[Any], gradients: Sequence[Any]
) -> dict[str, torch.Tensor]:
    """The gradients by name, in one call of the backward op; what is a cotangent as it stands is handed on."""
    given = dict(zip(names, arguments, strict=True))
    made: dict[str, torch.Tensor] = {}
    for name, source in rule.passed.items():
        if gradients[source].shape == given[name].shape and gradients[source].dtype is given[name].dtype:
            made[name] = gradients[source]
    rest = [name for name in rule.wanted if name not in made]
    if not rest:
        return made
    op = rule.op(rest)
    given |= dict(zip(rule.cotangents, (gradients[i] for i in rule.live), strict=True))
    results = op(*(given[p.name] for p in op.spec.parameters))
    return made | dict(zip(rest, results if isinstance(results, tuple) else (results,), strict=True))


def _of_torch_form(
    op: Any, names: Sequence[str], arguments: Sequence[Any], wanted: Sequence[int], live: Sequence[int], gradients: Sequence[Any]
) -> dict[str, torch.Tensor]:
    """PyTorch's derivative of the op's torch form, for the results that have a gradient."""

    def chosen(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(arguments)
        for i, value in zip(wanted, inputs, strict=True):
            values[i] = value
        made = op.form.differentiable_form(dict(zip(names, values, strict=True)))
        return tuple(made[i] for i in live)

    pull: Any = torch.func.vjp(chosen, *(arguments[i] for i in wanted))[1]
    return dict(zip((names[i] for i in wanted), pull(tuple(gradients[i] for i in live)), strict=True))
