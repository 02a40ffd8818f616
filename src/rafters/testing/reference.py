"""The truth: the op's own maths in float64 on the CPU."""

from collections.abc import Sequence
from typing import Any

import torch

from rafters.operator.op import Op
from rafters.operator.traced import traced_form


def exact(op: Op, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Every result of the call, float64 where the op computes in float32, not rounded to the output's dtype."""
    named = dict(zip((p.name for p in op.spec.parameters), arguments, strict=True))
    named = {name: value.detach().cpu() if isinstance(value, torch.Tensor) else value for name, value in named.items()}
    with torch.no_grad():
        if op.spec.reference is None:
            return traced_form(op.spec, named, exact=True)
        wide = {n: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for n, v in named.items()}
        made = op.spec.reference(*wide.values())
    return made if isinstance(made, tuple) else (made,)
