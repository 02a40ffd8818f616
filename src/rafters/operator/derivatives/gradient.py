"""The gradient of an op, as autograd sees it: saved are inputs alone, and of these only what the gradient depends on.

The backward is an op of its own (operator/derivatives/derive.py), so what it gives can be differentiated, compiled and sharded again.
Where an op has no derived backward, PyTorch takes the derivative of its torch form, recomputed from the saved inputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rafters.engine.spec import Spec
from rafters.errors import RaftersError
from rafters.operator.derivatives import own_backward as own
from rafters.operator.derivatives.derive import Derivative, connected, derivative


@dataclass(frozen=True, eq=False)
class Rule:
    """How one kind of call is differentiated: `wanted` arguments by the `live` results, saving the arguments in `kept`."""

    wanted: tuple[str, ...]
    live: tuple[int, ...]
    kept: tuple[int, ...]  # positions of the arguments that are saved
    others: tuple[int, ...]  # and of those of which the shape is kept, or the value of what is no tensor
    cut: tuple[int, ...]  # results that have no gradient
    derived: Derivative | None


def _rule(spec: Spec, arguments: dict[str, Any], results: Sequence[torch.Tensor], needs: Sequence[bool]) -> Rule:
    """Results that no wanted argument has a derivative by are no part of it: PyTorch then says so, and never gives zeros for it."""
    asked = {name for name, need in zip(arguments, needs, strict=True) if need}
    live = [i for i, r in enumerate(results) if r.dtype.is_floating_point and r.dtype.itemsize > 1]
    by = None if spec.backward else connected(spec, arguments)
    if by is not None:
        live = [i for i in live if by[i] & asked]
        asked &= {name for i in live for name in by[i]}
    wanted = tuple(name for name in arguments if name in asked)
    found = derivative(spec, arguments, wanted, tuple(live)) if wanted and live else None
    tensors = {name for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    needed = own.needs(spec) if spec.backward else found.needed if found else tensors
    kept = tuple(i for i, name in enumerate(arguments) if live and name in tensors & needed)
    others = tuple(i for i in range(len(arguments)) if i not in kept)
    return Rule(wanted, tuple(live), kept, others, tuple(i for i in range(len(results)) if i not in live), found)


def differentiable(op: Any) -> Callable[..., Any]:
    """`f(arguments, run)` that calls `run` and records the gradient. `op._record(entry, *arguments)` does so for a known call."""
    spec: Spec = op.spec
    names = [p.name for p in spec.parameters]
    known: dict[Any, dict[tuple[bool, ...], Rule]] = {}
    if spec.backward is not None:
        own.parameters(spec)  # names that it does not know are an error now, not in the first backward

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, run: Callable[..., Any], rules: dict[tuple[bool, ...], Rule], *arguments: Any) -> Any:
            result = run(*arguments)
            needs = ctx.needs_input_grad
            rule = rules.get(needs)
            if rule is None:
                results = result if isinstance(result, tuple) else (result,)
                rule = rules[needs] = _rule(spec, dict(zip(names, arguments, strict=True)), results, needs[2:])
            ctx.rule = rule
            ctx.save_for_backward(*[arguments[i] for i in rule.kept])
            if rule.others:
                ctx.others = [_shape_of(arguments[i]) for i in rule.others]
            if rule.cut:
                ctx.mark_non_differentiable(*[result[i] if isinstance(result, tuple) else result for i in rule.cut])
            if len(spec.results) > 1:
                ctx.set_materialize_grads(False)
            if spec.backward:
                ctx.results = [own.Shape(r) for r in (result if isinstance(result, tuple) else (result,))]
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            rule: Rule = ctx.rule
            arguments = _restored(rule, ctx.saved_tensors, ctx.others if rule.others else ())
            live = tuple(i for i in rule.live if gradients[i] is not None)
            if not live:
                return (None,) * (len(arguments) + 2)
            if spec.backward:
                return (None, None, *own.gradients(spec, dict(zip(names, arguments, strict=True)), gradients, ctx.results))
            derived, wanted = rule.derived, rule.wanted
            if live != rule.live:  # by the others a wanted argument may have no derivative
                given = dict(zip(names, arguments, strict=True))
                by = connected(spec, given)
                wanted = tuple(name for name in wanted if by is None or any(name in by[i] for i in live))
                derived = derivative(spec, given, wanted, live)
            if derived is None or any(_is_batched(t) for t in (*gradients, *arguments)):
                made = _of_torch_form(op, names, arguments, wanted, live, gradients)
            else:
                made = _derived(derived, names, arguments, gradients)
                if any(made[name].shape != arguments[names.index(name)].shape for name in derived.halved):
                    made = _of_torch_form(op, names, arguments, wanted, live, gradients)  # the halves of it are broadcast
            return (None, None, *(made.get(name) for name in names))

    def refuse() -> None:
        raise RaftersError(f"{spec.name}: it overwrites an argument and has no gradient; call it under torch.no_grad()")

    overwrites = any(p.mutated for p in spec.parameters)

    def call(arguments: tuple[Any, ...], run: Callable[..., Any]) -> Any:
        if overwrites:
            refuse()
        key = tuple((a.dtype, a.dim() == 0) if isinstance(a, torch.Tensor) else (type(a), repr(a)) for a in arguments)

        def below(*values: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return run(*values)

        return Function.apply(below, known.setdefault(key, {}), *arguments)  # type: ignore[no-untyped-call]

    # PyTorch's own `apply`, which Function.apply wraps in checks for transforms that are not active here.
    apply: Any = super(torch.autograd.Function, Function).apply

    def record(entry: Any, *arguments: Any) -> Any:
        if overwrites:
            refuse()
        return apply(entry.run, entry.rules, *arguments)

    op._record = record
    return call


def _restored(rule: Rule, saved: Sequence[torch.Tensor], others: Sequence[Any]) -> list[Any]:
    """The arguments of the call, in order; a stand-in for a tensor that was not saved."""
    arguments: list[Any] = [None] * (len(rule.kept) + len(rule.others))
    for i, tensor in zip(rule.kept, saved, strict=True):
        arguments[i] = tensor
    for i, other in zip(rule.others, others, strict=True):
        arguments[i] = _stand_in(other)
    return arguments


def _is_batched(value: Any) -> bool:
    """A tensor of `is_grads_batched=True`, which an older vmap than torch.func's makes: it has no memory that a kernel could read."""
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_legacy_batchedtensor(value)


def _shape_of(value: Any) -> Any:
    return own.Shape(value) if isinstance(value, torch.Tensor) else value


def _stand_in(value: Any) -> Any:
    """It has the shape and dtype that a gradient is to have, and is not read."""
    return value.zeros() if isinstance(value, own.Shape) else value


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
    op: Any, names: Sequence[str], arguments: Sequence[Any], wanted: Sequence[str], live: Sequence[int], gradients: Sequence[Any]
) -> dict[str, torch.Tensor]:
    """PyTorch's derivative of the op's torch form, for the results that have a gradient."""
    given = dict(zip(names, arguments, strict=True))

    def chosen(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = op.form.differentiable_form(given | dict(zip(wanted, inputs, strict=True)))
        return tuple(made[i] for i in live)

    pull: Any = torch.func.vjp(chosen, *(given[name] for name in wanted))[1]
    return dict(zip(wanted, pull(tuple(gradients[i] for i in live)), strict=True))
