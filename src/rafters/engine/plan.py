"""A plan: all that one kind of call needs, decided once. Key -> plan -> launch; nothing is decided per call."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rafters.engine import runner, target
from rafters.engine.call import Resolved, resolve
from rafters.engine.layouts.layout import Layout
from rafters.engine.piece import Piece
from rafters.engine.results import common_device, outputs_of, with_given
from rafters.engine.spec import Spec
from rafters.engine.stages import stages
from rafters.engine.straight import Straight
from rafters.engine.variant import Store, Variant
from rafters.errors import ArgumentError

# Up to here the time that a dependent launch saves between matrix products outweighs what it costs (docs/measuring.md).
PDL_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Plan:
    """`run(*arguments)` in the order of the op's parameters, with the given results last where the caller brought them."""

    run: Callable[..., Any]
    resolved: Resolved
    layout: Layout | None = None
    variant: Variant | None = None
    straight: Straight | None = None


@dataclass(frozen=True)
class Elsewhere:
    """Stands in for what tensors without memory (on the meta device) do not have. `compile`: may a kernel be compiled for them?"""

    device: torch.device
    addresses: dict[str, int]
    compile: bool = True


def build(
    spec: Spec,
    arguments: dict[str, Any],
    given: Sequence[torch.Tensor],
    store: Store,
    pdl: bool = True,
    elsewhere: Elsewhere | None = None,
) -> Plan:
    """The plan of a call on plain tensors. `given` are the caller's `out=` tensors (empty: the plan allocates)."""
    resolved = resolve(spec, arguments)
    device = common_device(spec, arguments)
    resolved = with_given(spec, resolved, given, device)
    if elsewhere:
        device = elsewhere.device
    results = [r for r in resolved.results if r.into is None]
    outputs = outputs_of(spec, resolved)
    if 0 in resolved.shape:
        rows = [r for r, group in zip(resolved.results, spec.results, strict=True) if group[0].per_row]
        if any(0 not in r.shape for r in rows):
            raise ArgumentError(f"{spec.name}: rows of length 0 have no value a row; got shape {resolved.shape}")
        return Plan(runner.empty_runner(spec, results, device, bool(given)), resolved)
    if device.type == "cpu":
        return Plan(runner.cpu_runner(spec, arguments, resolved, outputs, results, bool(given)), resolved)
    if device.type != "cuda":
        raise ArgumentError(
            f"{spec.name}: the tensors are on {device}; kernels run on CUDA and ROCm devices, the traced form on the CPU"
        )
    chosen = target.device_target(device.index)
    bytes_ = sum(_bytes(p) for p in (*resolved.inputs, *outputs))
    use_pdl = pdl and chosen.has_pdl and bytes_ <= PDL_BYTES
    kernels = stages(spec, resolved, outputs, arguments, given, chosen, use_pdl,
                     addresses=elsewhere.addresses if elsewhere else None)  # fmt: skip
    find = store.get if elsewhere is None or elsewhere.compile else store.known
    found = [find(stage.recipe, stage.layout, stage.typing, device.index) for stage in kernels]
    straight = runner.kernel_runner(spec, resolved, outputs, results, kernels, found, device, bool(given))
    return Plan(straight.run(), resolved, kernels[0].layout, found[0], straight)


def _bytes(piece: Piece) -> int:
    count = 1
    for n, s in zip(piece.shape, piece.strides, strict=True):
        count *= n if s else 1
    return count * piece.dtype.itemsize
