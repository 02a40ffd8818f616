"""One op's dense kernel in chosen configurations: elements a program, warps, masked or split. Calls never ask for one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rafters.engine import prepare, variant
from rafters.engine.call import resolve
from rafters.engine.layouts.form import LINEAR
from rafters.engine.layouts.layout import Config, Layout
from rafters.engine.results import common_device, outputs_of
from rafters.engine.runner import kernel_runner
from rafters.engine.spec import Spec
from rafters.engine.stages import Stage
from rafters.engine.study.facts import Facts, facts
from rafters.engine.target import Target, device_target
from rafters.errors import ArgumentError

# How the end of the data is handled: every block masked and the size unknown to the compiler; every block masked and the size
# known to be a multiple of 16; full blocks without a mask and a masked last one.
MASKED, PROVABLE, SPLIT = "masked", "provable", "split"
MODES = {MASKED: (False, False), PROVABLE: (False, True), SPLIT: (True, False)}
BLOCKS = (256, 512, 1024, 2048, 4096, 8192)
WARPS = (2, 4, 8, 16)
_LEAST, _MOST = 2, 64  # elements a thread: fewer leave lanes narrow for every dtype, more spill


@dataclass(frozen=True)
class Choice:
    """One configuration of the study."""

    mode: str
    block: int
    warps: int
    aligned: bool = True

    @property
    def config(self) -> Config:
        split, provable = MODES[self.mode]
        return Config(self.block, self.warps, split, provable)

    @property
    def label(self) -> str:
        return f"{self.mode} {self.block}x{self.warps}{'' if self.aligned else ' unaligned'}"


def choices(warp_size: int = 32) -> Iterator[Choice]:
    """Every block on every number of warps that suits it, aligned; and on four warps with pointers off by one element."""
    for block in BLOCKS:
        for warps in WARPS:
            if _LEAST <= block // (warps * warp_size) <= _MOST:
                for mode in MODES:
                    yield Choice(mode, block, warps)
                    if warps == 4:
                        yield Choice(mode, block, warps, aligned=False)


def recipe(
    spec: Spec, arguments: dict[str, Any], choice: Choice, target: Target, addresses: dict[str, int] | None = None
) -> tuple[variant.Recipe, variant.Typing, Layout]:
    """What is compiled for `choice`. `addresses` stands in for the pointers of tensors without data."""
    resolved = resolve(spec, arguments)
    outputs = outputs_of(spec, resolved)
    (made, typing), laid = prepare.prepare(
        spec, resolved, outputs, arguments, (), target, False, config=choice.config, addresses=addresses
    )
    if laid.form.walk != LINEAR:
        raise ArgumentError(f"{spec.name}: no block-size study of a {laid.form.walk} kernel; only of dense elementwise calls")
    return made, typing, laid


def inspect(spec: Spec, dtype: torch.dtype, choice: Choice, target: Target) -> Facts:
    """What the kernel of `choice` does to memory, by its assembly; needs no device."""
    n = 1 << 20 if choice.mode == PROVABLE else (1 << 20) + 1
    arguments = arguments_for(spec, dtype, lambda own: torch.empty(n, dtype=own, device="meta"))
    # Results are allocated, and so aligned.
    addresses = {} if choice.aligned else {p.name: arguments[p.name].element_size() for p in spec.tensors}
    made, _, _ = recipe(spec, arguments, choice, target, addresses)
    return facts(variant.compile_recipe(made), _runtime(made))


def runner(spec: Spec, arguments: dict[str, Any], choice: Choice) -> tuple[Callable[..., Any], Facts]:
    """A function of the op's arguments that launches the kernel of `choice`, for CUDA tensors such as these; and its facts."""
    resolved = resolve(spec, arguments)
    device = common_device(spec, arguments)
    if device.type != "cuda":
        raise ArgumentError(f"{spec.name}: kernels run on a GPU, the tensors are on {device}")
    outputs = outputs_of(spec, resolved)
    results = [r for r in resolved.results if r.into is None]
    made, typing, laid = recipe(spec, arguments, choice, device_target(device.index))
    found = variant.Variant(made, laid, typing, variant.compile_recipe(made))
    run = kernel_runner(spec, resolved, outputs, results, [Stage(made, typing, laid)], [found], device, False).run()
    return run, facts(found.compiled, _runtime(made))


def closed_form(spec: Spec, dtype: torch.dtype, target: Target) -> tuple[int, int]:
    """(elements a program, warps) that a call gets."""
    arguments = arguments_for(spec, dtype, lambda own: torch.empty(1 << 20, dtype=own, device="meta"))
    resolved = resolve(spec, arguments)
    _, laid = prepare.prepare(spec, resolved, outputs_of(spec, resolved), arguments, (), target, False)
    return laid.constants["BLOCK"], laid.warps


def _runtime(made: variant.Recipe) -> list[str]:
    return [name for name, kind in made.signature if kind != "constexpr"]


def arguments_for(spec: Spec, dtype: torch.dtype, tensor: Callable[[torch.dtype], torch.Tensor]) -> dict[str, Any]:
    """Arguments by name: `tensor(dtype)` for every tensor, defaults for the rest."""
    made: dict[str, Any] = {}
    for p in spec.parameters:
        if p in spec.tensors:
            made[p.name] = tensor(torch.bool if spec.accepts.get(p.name) == "bool" else dtype)
        else:
            made[p.name] = p.default if p.default is not ... else (p.type or int)(2)
    return made
