"""How an op made from a body answers: everything is derived from the one function."""

from collections.abc import Sequence, Set
from typing import Any

import torch

from rafters.cost import Cost
from rafters.engine import plan as plans
from rafters.engine.call import resolve
from rafters.engine.overlap import check_outputs
from rafters.engine.prepare import source, trace_call
from rafters.engine.shards import Cut, cuts
from rafters.engine.spec import Spec
from rafters.engine.study.inspect import inspect
from rafters.engine.target import Target
from rafters.engine.variant import Store
from rafters.errors import RaftersError
from rafters.operator import costing
from rafters.operator.traced import traced_form
from rafters.trace.linear import linear_in


class FromBody:
    """The derived forms of an op with a body."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def build(
        self,
        arguments: dict[str, Any],
        given: Sequence[torch.Tensor],
        store: Store,
        pdl: bool,
        elsewhere: plans.Elsewhere | None = None,
    ) -> plans.Plan:
        return plans.build(self.spec, arguments, given, store, pdl, elsewhere)

    def check(self, arguments: dict[str, Any], plan: plans.Plan, given: tuple[torch.Tensor, ...]) -> None:
        """What has to be checked anew on every call that writes into the caller's memory."""
        check_outputs(self.spec, arguments, plan.resolved, given)

    def new_results(self, arguments: dict[str, Any]) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
        """(shape, strides, dtype) of each new tensor: the fake function."""
        return [(r.shape, r.strides, r.dtype) for r in resolve(self.spec, arguments).results if r.into is None]

    def reference(self, arguments: dict[str, Any]) -> Any:
        if self.spec.reference is not None:
            return self.spec.reference(*arguments.values())
        made = traced_form(self.spec, arguments)
        return made[0] if len(made) == 1 else made

    def differentiable_form(self, arguments: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        """The new tensors in PyTorch operations, for autograd."""
        if any(p.mutated for p in self.spec.parameters):
            raise RaftersError(f"{self.spec.name}: it overwrites an argument and has no gradient; call it under torch.no_grad()")
        made = self.reference(arguments)
        return made if isinstance(made, tuple) else (made,)

    def cuts(self, arguments: dict[str, Any]) -> list[Cut]:
        """The dimensions along which the call may be computed shard by shard."""
        return list(cuts(self.spec, resolve(self.spec, arguments), arguments))

    def linear_in(self, arguments: dict[str, Any], chosen: Set[str]) -> tuple[str | None, ...]:
        """How each output depends on the arguments in `chosen`; see trace/linear.py. Of a body that is not traced nothing is known."""
        if self.spec.reference is not None:
            return (None,) * len(self.spec.outputs)
        graph = trace_call(self.spec, resolve(self.spec, arguments), arguments)
        return linear_in(graph, {name for name, view in self.spec.views.items() if view.source in chosen})

    def cost(self, arguments: dict[str, Any]) -> Cost:
        return costing.cost(self.spec, arguments)

    def inspect(self, target: Target, dtype: torch.dtype) -> list[dict[str, Any]]:
        return inspect(self.spec, target, dtype)

    def source(self, arguments: dict[str, Any]) -> str:
        return source(self.spec, arguments)
