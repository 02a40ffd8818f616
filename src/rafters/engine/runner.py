"""The function that a plan runs: one straight path from the op's arguments to its results."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rafters.engine import codegen, cpu, module
from rafters.engine.call import Resolved, Result, number_tensor
from rafters.engine.layouts.form import NUMBER
from rafters.engine.layouts.geometry import contiguous_strides
from rafters.engine.piece import Piece
from rafters.engine.prepare import trace_call
from rafters.engine.results import result_names
from rafters.engine.spec import Spec
from rafters.engine.stages import Stage
from rafters.engine.straight import Straight, Text
from rafters.engine.variant import Variant


def kernel_runner(
    spec: Spec,
    resolved: Resolved,
    outputs: Sequence[Piece],
    results: Sequence[Result],
    kernels: Sequence[Stage],
    found: Sequence[Variant],
    device: torch.device,
    given: bool,
) -> Straight:
    """A function of the op's arguments with one straight path: allocate, collect pointers and numbers, launch (each kernel in turn)."""
    text = Text()
    names_ = result_names(spec)
    pieces = {module.slot_name(p.name): p for p in (*resolved.inputs, *resolved.indices, *outputs)}
    if not given:
        for name, result in zip(names_, results, strict=True):
            text.allocate(name, result.shape, result.strides, result.dtype)
    for number, (stage, variant) in enumerate(zip(kernels, found, strict=True)):
        for slot, buffer in stage.buffers.items():
            if not slot.endswith("_part"):
                text.allocate(buffer.name, buffer.shape, contiguous_strides(buffer.shape), buffer.dtype)
        with torch.cuda.device(device):
            start = variant.start
        passed = _passed(spec, resolved, pieces, stage, text)
        laid = stage.layout
        static = [laid.arguments[n].value for n in codegen.arguments(laid.form) if n in laid.arguments]
        static += [value for name, value in stage.recipe.constants if name in codegen.compile_time(laid.form)]
        constants = [text.constant(f"_k{number}_{i}", value) for i, value in enumerate(static)]
        text.launch(number, start, laid.grid, [*passed, *constants])
    return text.straight([p.name for p in spec.parameters] + (names_ if given else []), names_, device)


def _passed(spec: Spec, resolved: Resolved, pieces: dict[str, Piece], stage: Stage, text: Text) -> list[str]:
    """What a kernel is given first: pointers, then numbers."""
    passed = []
    for slot in stage.layout.form.memory:
        if slot.name in stage.buffers:
            passed.append(f"{stage.buffers[slot.name].name}.data_ptr()")
            continue
        piece = pieces[slot.name]
        offset = piece.offset * piece.dtype.itemsize
        passed.append(f"{piece.argument}.data_ptr()" + (f" + {offset}" if offset else ""))
    for slot in stage.layout.form.inputs:
        if slot.kind == NUMBER:
            own = _unslotted(spec, slot.name)
            kind = "float" if resolved.values[own].is_floating_point else "int"
            if own in spec.views:
                text.constant("_number", _number)
                text.constant(f"_value_{own}", resolved.values[own])
                passed.append(f"_number({spec.views[own].source}, _value_{own})")
            else:
                eight = resolved.values[own] in (torch.int8, torch.uint8)
                passed.append(f"{kind}({own})" + (" % 256" if eight else ""))
    return passed


def _unslotted(spec: Spec, slot: str) -> str:
    return next(p.name for p in spec.body.parameters if module.slot_name(p.name) == slot)


def _number(value: Any, dtype: torch.dtype) -> Any:
    """A Python number for the launch, wrapped into `dtype`; a 0-d tensor on the CPU is read here.

    Eight bits go as they lie: Triton's launcher takes a signed byte for an unsigned one.
    """
    if isinstance(value, torch.Tensor):
        value = value.to(dtype).item()
    if dtype.is_floating_point:
        return float(value)
    return int(value) % 256 if dtype in (torch.int8, torch.uint8) else int(value)


def _new(results: Sequence[Result], device: torch.device) -> list[torch.Tensor]:
    return [torch.empty_strided(r.shape, r.strides, dtype=r.dtype, device=device) for r in results]


def _returned(tensors: Sequence[torch.Tensor]) -> Any:
    return None if not tensors else tensors[0] if len(tensors) == 1 else tuple(tensors)


def empty_runner(spec: Spec, results: Sequence[Result], device: torch.device, given: bool) -> Callable[..., Any]:
    """Nothing to launch; a sum of no elements is 0."""
    count = len(spec.parameters)

    def run(*call: Any) -> Any:
        made = call[count:] if given else _new(results, device)
        return _returned([t.zero_() if t.numel() else t for t in made])

    return run


def cpu_runner(
    spec: Spec, arguments: dict[str, Any], resolved: Resolved, outputs: Sequence[Piece], results: Sequence[Result], given: bool
) -> Callable[..., Any]:
    if spec.reference is not None:
        return reference_runner(spec, spec.reference, results, given)
    graph = trace_call(spec, resolved, arguments)
    pieces = {p.name: p for p in resolved.inputs}
    inputs: list[Piece | str] = [
        pieces.get(name, spec.views[name].source if name in spec.views else name) for name in graph.inputs
    ]
    run = cpu.executor(
        graph,
        resolved.shape,
        inputs,
        resolved.indices,
        outputs,
        resolved.values,
        spec.rowwise,
        [o.sum_to is not None for o in spec.outputs],
    )
    names_ = result_names(spec)
    parameters = [p.name for p in spec.parameters]
    numbers = resolved.numbers
    cpu_device = torch.device("cpu")

    def call(*values: Any) -> Any:
        made = list(values[len(parameters) :]) if given else _new(results, cpu_device)
        tensors: dict[str, Any] = dict(zip(parameters, values, strict=False))
        for name, dtype in numbers.items():
            tensors[name] = number_tensor(tensors[name], dtype)
        tensors.update(zip(names_, made, strict=True))
        with torch.no_grad():
            run(tensors)
        return _returned(made)

    return call


def reference_runner(spec: Spec, reference: Callable[..., Any], results: Sequence[Result], given: bool) -> Callable[..., Any]:
    """The author's own torch form, for a body that cannot be traced."""
    count = len(spec.parameters)
    mutated = [(i, p.name) for i, p in enumerate(spec.parameters) if p.mutated]

    def call(*values: Any) -> Any:
        returned = reference(*values[:count])
        values_ = returned if isinstance(returned, tuple) else (returned,)
        made = list(values[count:]) if given else _new(results, torch.device("cpu"))
        for target_, value in zip([*made, *(values[i] for i, _ in mutated)], values_, strict=True):
            target_.copy_(value)
        return _returned(made)

    return call
