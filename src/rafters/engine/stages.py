"""The kernels of one call: one, or, where results are sums over broadcast dimensions, some that finish what the first leaves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rafters._version import __version__
from rafters.engine import codegen, variant
from rafters.engine.call import Resolved
from rafters.engine.layouts import geometry, layout
from rafters.engine.layouts.layout import Config, Layout, Operand
from rafters.engine.layouts.operand import Partial
from rafters.engine.piece import Piece
from rafters.engine.prepare import prepare
from rafters.engine.spec import Spec
from rafters.engine.target import Target


@dataclass(frozen=True)
class Buffer:
    """Memory between two kernels of a call."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Stage:
    """One kernel of a call. `buffers`: the slots that are no argument or result of the call, and where they lie."""

    recipe: variant.Recipe
    typing: variant.Typing
    layout: Layout
    buffers: dict[str, Buffer] = field(default_factory=dict)


def stages(
    spec: Spec,
    resolved: Resolved,
    outputs: Sequence[Piece],
    arguments: dict[str, Any],
    given: Sequence[torch.Tensor],
    chosen: Target,
    pdl: bool,
    config: Config | None = None,
    addresses: dict[str, int] | None = None,
) -> tuple[Stage, ...]:
    """All kernels of a call, in the order in which they run."""
    result: list[Stage] = []
    left: tuple[str, ...] | None = None
    while left is None or left:
        (recipe, typing), laid = prepare(spec, resolved, outputs, arguments, given, chosen, pdl, config, addresses, left)
        buffers = {name: _buffer(name, 0, partial, typing) for name, partial in laid.partials.items()}
        result.append(Stage(recipe, typing, laid, buffers))
        for name, partial in laid.partials.items():
            result += _sums(spec, name, partial, buffers[name], chosen, pdl)
        left = laid.left
    return tuple(result)


def _buffer(name: str, number: int, partial: Partial, typing: variant.Typing) -> Buffer:
    return Buffer(f"_{name}_{number}", partial.shape, typing.totals[name])


def _sums(spec: Spec, name: str, partial: Partial, source: Buffer, chosen: Target, pdl: bool) -> list[Stage]:
    """The kernels that sum what a kernel has left of one output: the same walk over the buffer, until nothing is left."""
    part = f"{name}_part"
    stages_: list[Stage] = []
    waiting: Partial | None = partial
    while waiting is not None:
        shape = waiting.shape
        operand = Operand(part, source.dtype, shape, geometry.contiguous_strides(shape))
        laid = layout.lay_out(spec.name, [operand], [], [waiting.result], shape, warp_size=chosen.warp_size)
        further = laid.partials.get(name)
        memory = {part: source.dtype, name: source.dtype if further else waiting.result.dtype}
        typing = variant.Typing(memory, {part: source.dtype}, False, {name: source.dtype})
        title = f"{spec.namespace}::{spec.name}: the sums of blocks of `{name}`, summed, layout `{laid.form.layout}`."
        text = codegen.module_text(spec.name, laid.form, lambda _mask: [f"{name} = {part}"], title, __version__)
        recipe = variant.recipe(spec.name, text, None, laid, typing, {}, chosen, pdl)
        buffers = {part: source}
        if further:
            source = buffers[name] = _buffer(name, len(stages_) + 1, further, typing)
        stages_.append(Stage(recipe, typing, laid, buffers))
        waiting = further
    return stages_
