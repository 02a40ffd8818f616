"""The function that a plan runs: one straight path from the op's arguments to its results."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rafters.engine import codegen, cpu, module
from rafters.engine.call import Resolved, Result, number_tensor
from rafters.engine.form import NUMBER
from rafters.engine.launch import allocator, launcher
from rafters.engine.layout import Layout
from rafters.engine.piece import Piece
from rafters.engine.prepare import trace_call
from rafters.engine.results import result_names
from rafters.engine.spec import Spec
from rafters.engine.variant import Variant

_RUNNER = """\
def make(_device, _empty, _number, _stream_of, _current_device, _on_device, {constants}):
    def run({parameters}):
{lines}
        return {results}
    return run
"""


@functools.lru_cache(maxsize=4096)
def _factory(text: str) -> Callable[..., Any]:
    space: dict[str, Any] = {}
    exec(compile(text, "<rafters plan>", "exec"), space)
    return space["make"]  # type: ignore[no-any-return]


def kernel_runner(
    spec: Spec,
    resolved: Resolved,
    outputs: Sequence[Piece],
    results: Sequence[Result],
    laid: Layout,
    found: Variant,
    device: torch.device,
    given: bool,
) -> Callable[..., Any]:
    """A function of the op's arguments with one straight path: allocate, collect pointers and numbers, launch."""
    with torch.cuda.device(device):
        start = launcher(found.compiled)
    names_ = result_names(spec)
    pieces = {module.slot_name(p.name): p for p in (*resolved.inputs, *resolved.indices, *outputs)}
    passed = []
    values: dict[str, Any] = {}
    for slot in laid.form.memory:
        piece = pieces[slot.name]
        offset = piece.offset * piece.dtype.itemsize
        passed.append(f"{piece.argument}.data_ptr()" + (f" + {offset}" if offset else ""))
    for slot in laid.form.inputs:
        if slot.kind == NUMBER:
            own = _unslotted(spec, slot.name)
            kind = "float" if resolved.values[own].is_floating_point else "int"
            tensor = own in spec.views
            passed.append(f"_number({spec.views[own].source}, _value_{own})" if tensor else f"{kind}({own})")
            values[f"_value_{own}"] = resolved.values[own]
    static = [laid.arguments[n].value for n in codegen.arguments(laid.form) if n in laid.arguments]
    static += [value for name, value in found.recipe.constants if name in codegen.compile_time(laid.form)]
    constants = [f"_k{i}" for i in range(len(static))]
    allocate = []
    made: dict[str, Any] = {}
    for number, (name, result) in enumerate(zip(names_, results, strict=True)):
        if not given:
            made |= {f"_shape{number}": result.shape, f"_strides{number}": result.strides, f"_dtype{number}": result.dtype}
            allocate.append(f"{name} = _empty(_shape{number}, _strides{number}, _dtype{number})")
    lines = [*allocate, *start.lines("_grid", "_stream_of(_device)", ", ".join([*passed, *constants]))]
    if torch.cuda.device_count() > 1:  # allocation and launch act on the current device; with one device there is no other
        inner = [f"    {line}" for line in lines]
        lines = [
            "if _current_device() == _device:",
            *inner,
            "else:",
            "    with _on_device(_device):",
            *(f"    {line}" for line in inner),
        ]
    text = _RUNNER.format(
        constants=", ".join(["_grid", *constants, *values, *made, *start.names]),
        parameters=", ".join([p.name for p in spec.parameters] + (names_ if given else [])),
        lines="\n".join(f"        {line}" for line in lines),
        results=", ".join(names_) or "None",
    )
    run: Callable[..., Any] = _factory(text)(
        device.index, allocator(), _number, torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice,
        torch.cuda.device, laid.grid, *static, *values.values(), *made.values(), *start.values,
    )  # fmt: skip
    return run


def _unslotted(spec: Spec, slot: str) -> str:
    return next(p.name for p in spec.body.parameters if module.slot_name(p.name) == slot)


def _number(value: Any, dtype: torch.dtype) -> Any:
    """A Python number for the launch, wrapped into `dtype`; a 0-d tensor on the CPU is read here."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype).item()
    if dtype.is_floating_point:
        return float(value)
    return int(value) % 256 if dtype is torch.uint8 else int(value)


def _new(results: Sequence[Result], device: torch.device) -> list[torch.Tensor]:
    return [torch.empty_strided(r.shape, r.strides, dtype=r.dtype, device=device) for r in results]


def _returned(tensors: Sequence[torch.Tensor]) -> Any:
    return None if not tensors else tensors[0] if len(tensors) == 1 else tuple(tensors)


def empty_runner(spec: Spec, results: Sequence[Result], device: torch.device, given: bool) -> Callable[..., Any]:
    count = len(spec.parameters)
    return lambda *call: _returned(call[count:] if given else _new(results, device))


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
    run = cpu.executor(graph, resolved.shape, inputs, resolved.indices, outputs, resolved.values, spec.rowwise)
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
