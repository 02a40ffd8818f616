"""The gradient of an op: the derivative of its traced form, recomputed in the backward from the saved inputs.

Forward runs the kernel; backward runs PyTorch's own derivative of the same maths, on whole tensors (a fused backward kernel is to
come). Right for broadcast inputs, double backward and subsets of the inputs. (Forward mode and torch.func run the traced form.)
"""

from collections.abc import Callable
from typing import Any

import torch

from rafters.engine.spec import Spec
from rafters.errors import RaftersError


def differentiable(op: Any) -> Callable[..., Any]:
    """`f(arguments, run)` that calls `run` and records the gradient."""
    spec: Spec = op.spec
    names = [p.name for p in spec.parameters]

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, run: Callable[..., Any], *arguments: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                result = run(*arguments)
            tensors = [a if isinstance(a, torch.Tensor) else None for a in arguments]
            ctx.save_for_backward(*tensors)
            ctx.constants = [None if isinstance(a, torch.Tensor) else a for a in arguments]
            results = result if isinstance(result, tuple) else (result,)
            ctx.mark_non_differentiable(*(r for r in results if not r.dtype.is_floating_point or r.dtype.itemsize == 1))
            ctx.set_materialize_grads(False)
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            saved = ctx.saved_tensors
            arguments = [t if t is not None else c for t, c in zip(saved, ctx.constants, strict=True)]
            wanted = [i for i, need in enumerate(ctx.needs_input_grad[1:]) if need]
            live = [i for i, g in enumerate(gradients) if g is not None]
            result: list[Any] = [None] * (len(arguments) + 1)
            if not live or not wanted:
                return tuple(result)

            def chosen(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
                values = list(arguments)
                for i, value in zip(wanted, inputs, strict=True):
                    values[i] = value
                made = op.form.differentiable_form(dict(zip(names, values, strict=True)))
                return tuple(made[i] for i in live)

            pull: Any = torch.func.vjp(chosen, *(arguments[i] for i in wanted))[1]
            for i, gradient in zip(wanted, pull(tuple(gradients[i] for i in live)), strict=True):
                result[i + 1] = gradient
            return tuple(result)

    def call(arguments: tuple[Any, ...], run: Callable[..., Any]) -> Any:
        if any(p.mutated for p in spec.parameters):
            raise RaftersError(f"{spec.name}: it overwrites an argument and has no gradient; call it under torch.no_grad()")
        return Function.apply(run, *arguments)  # type: ignore[no-untyped-call]

    return call
