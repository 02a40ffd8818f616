"""The kernel that a call would launch, without a device: its text and arguments, and its compiled form for any target."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rafters.engine import results, variant
from rafters.engine.call import Resolved, resolve
from rafters.engine.layouts.layout import Config, Layout
from rafters.engine.piece import Piece
from rafters.engine.stages import Stage, stages
from rafters.engine.target import Target, parse_target
from rafters.operator.op import Op


@dataclass(frozen=True)
class Prepared:
    """What a launch of one call would use."""

    resolved: Resolved
    outputs: tuple[Piece, ...]
    recipe: "variant.Recipe"
    typing: "variant.Typing"
    layout: Layout
    stages: tuple[Stage, ...]  # all kernels of the call; recipe, typing and layout are the first one's

    def compile(self) -> Any:
        """The compiled kernel; needs triton, and no GPU."""
        return variant.compile_recipe(self.recipe)


def prepare(
    op: Op, arguments: Sequence[Any], target: str | Target = "sm_90", pdl: bool = False, config: Config | None = None
) -> Prepared:
    """The kernel of `op(*arguments)` for `target`; tensors on the meta device count as 16-byte aligned."""
    named = dict(zip((p.name for p in op.spec.parameters), arguments, strict=True))
    resolved = resolve(op.spec, named)
    outputs = tuple(results.outputs_of(op.spec, resolved))
    meta = all(t.device.type == "meta" for t in arguments if isinstance(t, torch.Tensor))
    chosen = target if isinstance(target, Target) else parse_target(target)
    made = stages(op.spec, resolved, outputs, named, (), chosen, pdl, config, addresses={} if meta else None)
    return Prepared(resolved, outputs, made[0].recipe, made[0].typing, made[0].layout, made)
