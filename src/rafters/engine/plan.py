"""A plan: all that one kind of call needs, decided once. Key -> plan -> launch; nothing is decided per call."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rafters import dtypes
from rafters._version import __version__
from rafters.engine import codegen, cpu, layout, module, target, variant
from rafters.engine.call import Piece, Resolved, output_pieces, resolve
from rafters.engine.form import ABSENT, COLUMN, CONSTEXPR, NUMBER, POINT, ROW, TILE, Slot
from rafters.engine.layout import Config, Layout, Operand
from rafters.engine.spec import Spec
from rafters.engine.target import Target
from rafters.errors import ArgumentError, argument_error
from rafters.trace import graph as tracing
from rafters.trace import names

# Up to here the time that a dependent launch saves between matrix products outweighs what it costs (docs/measuring.md).
PDL_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class Plan:
    """`run(*arguments)` in the order of the op's parameters, with the given results last where the caller brought them."""

    run: Callable[..., Any]
    resolved: Resolved
    layout: Layout | None = None
    variant: "variant.Variant | None" = None


def build(spec: Spec, arguments: dict[str, Any], given: Sequence[torch.Tensor], store: "variant.Store", pdl: bool = True) -> Plan:
    """The plan of a call on plain tensors. `given` are the caller's `out=` tensors (empty: the plan allocates)."""
    resolved = resolve(spec, arguments)
    device = common_device(spec, arguments)
    resolved = _with_given(spec, resolved, given)
    results = [r for r in resolved.results if r.into is None]
    outputs = outputs_of(spec, resolved)
    if 0 in resolved.shape:
        return Plan(_empty_runner(spec, results, device, bool(given)), resolved)
    if device.type == "cpu":
        return Plan(_cpu_runner(spec, arguments, resolved, outputs, results, bool(given)), resolved)
    if device.type != "cuda":
        raise ArgumentError(
            f"{spec.name}: the tensors are on {device}; kernels run on CUDA and ROCm devices, the traced form on the CPU"
        )
    chosen = target.device_target(device.index)
    bytes_ = sum(_bytes(p) for p in (*resolved.inputs, *outputs))
    use_pdl = pdl and chosen.has_pdl and bytes_ <= PDL_BYTES
    made, laid = prepare(spec, resolved, outputs, arguments, given, chosen, use_pdl)
    typing = made[1]
    found = store.get(made[0], laid, typing)
    run = _kernel_runner(spec, resolved, outputs, results, laid, found, device, bool(given), arguments)
    return Plan(run, resolved, laid, found)


def common_device(spec: Spec, arguments: dict[str, Any]) -> torch.device:
    """The device of the call. A 0-d tensor on the CPU goes anywhere; anything else mixed is an error."""
    tensors = [(p.name, arguments[p.name]) for p in spec.tensors if isinstance(arguments[p.name], torch.Tensor)]
    chosen: torch.device | None = None
    first = ""
    for name, tensor in tensors:
        if tensor.layout is not torch.strided:
            raise argument_error(spec.name, name, f"layout {tensor.layout}", "a strided (dense) tensor")
        if tensor.dim() == 0 and tensor.device.type == "cpu" and spec_kind(spec, name) != "index":
            continue
        if chosen is None:
            chosen, first = tensor.device, name
        elif tensor.device != chosen:
            raise argument_error(spec.name, name, f"device {tensor.device}", f"device {chosen} (that of {first!r})")
    return chosen or torch.device("cpu")


def spec_kind(spec: Spec, name: str) -> str:
    return next(p.kind for p in spec.parameters if p.name == name)


def _bytes(piece: Piece) -> int:
    count = 1
    for n, s in zip(piece.shape, piece.strides, strict=True):
        count *= n if s else 1
    return count * piece.dtype.itemsize


def _with_given(spec: Spec, resolved: Resolved, given: Sequence[torch.Tensor]) -> Resolved:
    """The results replaced by the caller's tensors, after checking that these can hold them."""
    if not given:
        return resolved
    from dataclasses import replace

    results, remaining = [], list(given)
    for result in resolved.results:
        if result.into is not None:
            results.append(result)
            continue
        out = remaining.pop(0)
        if tuple(out.shape) != result.shape:
            raise argument_error(spec.name, "out", f"shape {tuple(out.shape)}", f"shape {result.shape}")
        if out.dtype is not result.dtype and (
            dtypes.category(result.dtype) > dtypes.category(out.dtype)
            or result.dtype in dtypes.FLOAT8
            or out.dtype in dtypes.FLOAT8
        ):
            raise argument_error(spec.name, "out", f"dtype {out.dtype}", f"dtype {result.dtype}, or one that it can be cast to")
        results.append(replace(result, dtype=out.dtype, strides=tuple(out.stride())))
    outputs = tuple((i, view, results[i].dtype) for i, view, _ in resolved.outputs)
    return replace(resolved, results=tuple(results), outputs=outputs)


def result_names(spec: Spec) -> list[str]:
    """Names of the new tensors: out, or out0, out1 ... ; never that of a parameter."""
    count = sum(1 for group in spec.results if group[0].into is None)
    taken = {p.name for p in spec.parameters}
    names_ = ["out"] if count == 1 else [f"out{i}" for i in range(count)]
    return [f"{n}_result" if n in taken else n for n in names_]


def outputs_of(spec: Spec, resolved: Resolved) -> tuple[Piece, ...]:
    """The pieces written, each with the tensor it belongs to as `argument`."""
    from dataclasses import replace

    fresh = iter(result_names(spec))
    owners = [r.into or next(fresh) for r in resolved.results]
    several = len(spec.outputs) > len(owners)
    labels = [f"{owners[i]}_{view.part}" if several and view.part else f"{owners[i]}_new" if resolved.results[i].into else owners[i]
              for i, view, _ in resolved.outputs]  # fmt: skip
    pieces = output_pieces(spec, resolved, {p.name: p for p in resolved.indices}, labels)
    return tuple(replace(p, argument=owners[i]) for p, (i, _, _) in zip(pieces, resolved.outputs, strict=True))


# -- kernels -----------------------------------------------------------------------------------------------------------------------


def prepare(
    spec: Spec,
    resolved: Resolved,
    outputs: Sequence[Piece],
    arguments: dict[str, Any],
    given: Sequence[torch.Tensor],
    chosen: Target,
    pdl: bool,
    config: Config | None = None,
    addresses: dict[str, int] | None = None,
) -> tuple[tuple["variant.Recipe", "variant.Typing"], Layout]:
    """Layout, text and recipe of a call; needs no device. `addresses` stands in for the pointers (16-byte aligned by default)."""
    _check_target(spec, resolved, outputs, chosen)
    where = addresses or {}
    for name, tensor in [*arguments.items(), *zip(result_names(spec), given, strict=False)]:
        if isinstance(tensor, torch.Tensor) and addresses is None and tensor.device.type != "meta":
            where[name] = tensor.data_ptr()

    def operand(p: Piece) -> Operand:
        address = where.get(p.argument, 0) + p.offset * p.dtype.itemsize
        return Operand(module.slot_name(p.name), p.dtype, p.shape, p.strides, layout.alignment(address, p.dtype.itemsize),
                       p.index and module.slot_name(p.index), p.index_stride, p.index_size)  # fmt: skip

    by_name = {p.name: p for p in resolved.inputs}
    slots: list[Operand | Slot] = []
    for parameter in spec.body.parameters:
        name = module.slot_name(parameter.name)
        argument = spec.views[parameter.name].source if parameter.name in spec.views else parameter.name
        if parameter.name in by_name and not _is_cpu_scalar(arguments[argument], chosen):
            slots.append(operand(by_name[parameter.name]))
        elif parameter.kind == "constexpr":
            slots.append(Slot(name, CONSTEXPR))
        else:
            slots.append(Slot(name, ABSENT if arguments[argument] is None else NUMBER))
    laid = layout.lay_out(
        spec.name, slots, [operand(p) for p in resolved.indices], [operand(p) for p in outputs], resolved.shape, spec.rowwise,
        chosen.warp_size, config,
    )  # fmt: skip
    memory = {module.slot_name(p.name): p.dtype for p in (*resolved.inputs, *resolved.indices, *outputs)}
    values = {module.slot_name(name): dtype for name, dtype in resolved.values.items()}
    typing = variant.Typing(memory, values, is_half(resolved))
    text, body = kernel_text(spec, laid, resolved, arguments, [module.slot_name(p.name) for p in outputs])
    constexprs = {module.slot_name(p.name): arguments[p.name] for p in spec.constexprs}
    return (variant.recipe(spec.name, text, body, laid, typing, constexprs, chosen, pdl), typing), laid


def _is_cpu_scalar(value: Any, chosen: Target) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu"


def _check_target(spec: Spec, resolved: Resolved, outputs: Sequence[Piece], chosen: Target) -> None:
    for p in (*resolved.inputs, *outputs):
        if p.dtype in dtypes.FLOAT8 and not chosen.has_fp8:
            raise argument_error(
                spec.name, p.argument, f"dtype {p.dtype} on {chosen.name}", "a GPU that converts float8 (sm_89 or later)"
            )


@functools.cache
def triton_body(spec: Spec, half: bool) -> Any:
    """The user's function as the kernel calls it; None where triton is not installed."""
    from rafters.lang._define import has_triton

    return names.for_triton(spec.body.function, half) if has_triton() else None


def is_half(resolved: Resolved) -> bool:
    """Do the values come from 16-bit memory? Then `lang` means its shorter codes: PyTorch's promotion gives a half type."""
    return resolved.common.is_floating_point and resolved.common.itemsize <= 2


def kernel_text(
    spec: Spec, laid: Layout, resolved: Resolved, arguments: dict[str, Any], outputs: Sequence[str]
) -> tuple[str, Any]:
    """The module's text and the body it calls (None for a kernel that is written from the trace)."""
    title = f"{spec.namespace}::{spec.name}, layout `{laid.form.layout}`. Body: {spec.body.where}"
    if not spec.rowwise:
        compute = codegen.body_call(laid.form, outputs)
        return codegen.module_text(spec.name, laid.form, compute, title, __version__), triton_body(spec, is_half(resolved))
    from rafters.trace.emit import emit

    kinds = {s.name: s.kind for s in laid.form.inputs}
    graph = trace_call(spec, resolved, arguments, kinds)
    inputs = [module.slot_name(name) for name in graph.inputs]

    def compute_rows(mask: str) -> list[str]:
        return emit(graph, inputs, outputs, "cols", lambda kind: {TILE: "m", COLUMN: "m_col"}.get(kind, "") if mask else "")

    return codegen.module_text(spec.name, laid.form, compute_rows, title, __version__), None


def piece_kind(piece: Piece, shape: tuple[int, ...]) -> str:
    """How a piece varies over the rows and columns of a row-wise op; a dimension of size 1 that it has counts as varying."""
    along = bool(piece.shape) and piece.shape[-1] == shape[-1]
    ahead = shape[:-1]
    down = len(piece.shape) == len(shape) and (any(n != 1 for n in piece.shape[:-1]) or all(n == 1 for n in ahead))
    return (TILE if down else COLUMN) if along else (ROW if down else POINT)


def trace_call(spec: Spec, resolved: Resolved, arguments: dict[str, Any], kinds: dict[str, str] | None = None) -> tracing.Graph:
    """The graph of the body for the dtypes (and, row-wise, the kinds) of a call."""
    pieces = {p.name: p for p in resolved.inputs}
    inputs: dict[str, tuple[torch.dtype, str]] = {}
    constants: dict[str, Any] = {}
    for parameter in spec.body.parameters:
        argument = spec.views[parameter.name].source if parameter.name in spec.views else parameter.name
        if parameter.kind == "constexpr":
            constants[parameter.name] = arguments[parameter.name]
        elif arguments[argument] is None:
            constants[parameter.name] = None
        else:
            piece = pieces.get(parameter.name)
            kind = POINT if piece is None else piece_kind(piece, resolved.shape) if spec.rowwise else TILE
            inputs[parameter.name] = (resolved.values[parameter.name], kind)
    return _traced(spec, tuple(inputs.items()), tuple(constants.items()))


@functools.cache
def _traced(
    spec: Spec, inputs: tuple[tuple[str, tuple[torch.dtype, str]], ...], constants: tuple[tuple[str, Any], ...]
) -> tracing.Graph:
    return tracing.trace(spec.body, dict(inputs), dict(constants))


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


def _kernel_runner(
    spec: Spec,
    resolved: Resolved,
    outputs: Sequence[Piece],
    results: Sequence[Any],
    laid: Layout,
    found: "variant.Variant",
    device: torch.device,
    given: bool,
    arguments: dict[str, Any],
) -> Callable[..., Any]:
    """A function of the op's arguments with one straight path: allocate, collect pointers and numbers, launch."""
    from rafters.engine.launch import allocator, launcher

    with torch.cuda.device(device):
        start = launcher(found.compiled)
    names_ = result_names(spec)
    pieces = {module.slot_name(p.name): p for p in (*resolved.inputs, *resolved.indices, *outputs)}
    passed = []
    for slot in laid.form.memory:
        piece = pieces[slot.name]
        offset = piece.offset * piece.dtype.itemsize
        passed.append(f"{piece.argument}.data_ptr()" + (f" + {offset}" if offset else ""))
    for slot in laid.form.inputs:
        if slot.kind == NUMBER:
            own = _unslotted(spec, slot.name)
            kind = "float" if resolved.values[own].is_floating_point else "int"
            tensor = own in spec.views
            passed.append(f"_number({spec.views[own].source}, {kind})" if tensor else f"{kind}({own})")
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
        constants=", ".join(["_grid", *constants, *made, *start.names]),
        parameters=", ".join([p.name for p in spec.parameters] + (names_ if given else [])),
        lines="\n".join(f"        {line}" for line in lines),
        results=", ".join(names_) or "None",
    )
    return _factory(text)(
        device.index, allocator(), _number, torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice,
        torch.cuda.device, laid.grid, *static, *made.values(), *start.values,
    )  # type: ignore[no-any-return]  # fmt: skip


def _unslotted(spec: Spec, slot: str) -> str:
    return next(p.name for p in spec.body.parameters if module.slot_name(p.name) == slot)


def _number(value: Any, kind: type) -> Any:
    """A Python number for the launch; a 0-d tensor on the CPU is read here."""
    return kind(value.item() if isinstance(value, torch.Tensor) else value)


# -- without a kernel --------------------------------------------------------------------------------------------------------------


def _new(results: Sequence[Any], device: torch.device) -> list[torch.Tensor]:
    return [torch.empty_strided(r.shape, r.strides, dtype=r.dtype, device=device) for r in results]


def _returned(tensors: Sequence[torch.Tensor]) -> Any:
    return None if not tensors else tensors[0] if len(tensors) == 1 else tuple(tensors)


def _empty_runner(spec: Spec, results: Sequence[Any], device: torch.device, given: bool) -> Callable[..., Any]:
    count = len(spec.parameters)
    return lambda *call: _returned(call[count:] if given else _new(results, device))


def _cpu_runner(
    spec: Spec, arguments: dict[str, Any], resolved: Resolved, outputs: Sequence[Piece], results: Sequence[Any], given: bool
) -> Callable[..., Any]:
    if spec.reference is not None:
        return _reference_runner(spec, spec.reference, results, given)
    graph = trace_call(spec, resolved, arguments)
    pieces = {p.name: p for p in resolved.inputs}
    inputs: list[Piece | str] = [
        pieces.get(name, spec.views[name].source if name in spec.views else name) for name in graph.inputs
    ]
    run = cpu.executor(graph.hoisted, resolved.shape, inputs, resolved.indices, outputs, resolved.values, spec.rowwise)
    names_ = result_names(spec)
    parameters = [p.name for p in spec.parameters]
    numbers = resolved.numbers
    cpu_device = torch.device("cpu")

    def call(*values: Any) -> Any:
        made = list(values[len(parameters) :]) if given else _new(results, cpu_device)
        tensors: dict[str, Any] = dict(zip(parameters, values, strict=False))
        for name, dtype in numbers.items():
            tensors[name] = torch.tensor(tensors[name]).to(dtype)
        tensors.update(zip(names_, made, strict=True))
        with torch.no_grad():
            run(tensors)
        return _returned(made)

    return call


def _reference_runner(spec: Spec, reference: Callable[..., Any], results: Sequence[Any], given: bool) -> Callable[..., Any]:
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


def source(spec: Spec, arguments: dict[str, Any], chosen: Target | None = None) -> str:
    """The generated module of a call, without compiling it."""
    resolved = resolve(spec, arguments)
    made, _ = prepare(spec, resolved, outputs_of(spec, resolved), arguments, (), chosen or Target("cuda", 90, 32), pdl=True)
    return made[0].text
