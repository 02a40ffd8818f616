"""From a resolved call to a recipe: the form of its kernel, the text, the signature. Needs neither a device nor triton."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from rafters import dtypes
from rafters._version import __version__
from rafters.engine import codegen, module, promotion, variant
from rafters.engine.call import Resolved, resolve
from rafters.engine.layouts import layout
from rafters.engine.layouts.form import ABSENT, COLUMN, CONSTEXPR, NUMBER, POINT, TILE, Slot, row_kind
from rafters.engine.layouts.layout import Config, Layout, Operand
from rafters.engine.piece import Piece
from rafters.engine.results import outputs_of, result_names
from rafters.engine.spec import Spec
from rafters.engine.target import Target
from rafters.errors import argument_error
from rafters.lang import has_triton
from rafters.trace import graph as tracing
from rafters.trace import names
from rafters.trace.emit import emit


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
    only: Collection[str] | None = None,
) -> tuple[tuple[variant.Recipe, variant.Typing], Layout]:
    """Layout, text and recipe of a call; needs no device. `addresses` stands in for the pointers (16-byte aligned by default).

    A call whose results are sums may need more than one kernel (engine/stages.py); `only` names the outputs of this one.
    """
    _check_target(spec, resolved, outputs, chosen)
    where = addresses or {}
    for name, tensor in [*arguments.items(), *zip(result_names(spec), given, strict=False)]:
        if isinstance(tensor, torch.Tensor) and addresses is None and tensor.device.type != "meta":
            where[name] = tensor.data_ptr()

    def operand(p: Piece) -> Operand:
        address = where.get(p.argument, 0) + p.offset * p.dtype.itemsize
        return Operand(module.slot_name(p.name), p.dtype, p.shape, p.strides, layout.alignment(address, p.dtype.itemsize),
                       p.index and module.slot_name(p.index), p.index_stride, p.index_size)  # fmt: skip

    names_of = [module.slot_name(p.name) for p in outputs]
    sums = {
        name: promotion.totals(dtype)
        for name, o, (_, _, dtype) in zip(names_of, spec.outputs, resolved.outputs, strict=True)
        if o.sum_to
    }
    written = [
        replace(operand(p), total=sums.get(n)) for n, p in zip(names_of, outputs, strict=True) if only is None or n in only
    ]
    by_name = {p.name: p for p in resolved.inputs}
    slots: list[Operand | Slot] = []
    for parameter in spec.body.parameters:
        name = module.slot_name(parameter.name)
        argument = spec.views[parameter.name].source if parameter.name in spec.views else parameter.name
        if parameter.name in by_name and not _is_cpu_scalar(arguments[argument]):
            slots.append(operand(by_name[parameter.name]))
        elif parameter.kind == "constexpr":
            slots.append(Slot(name, CONSTEXPR))
        else:
            slots.append(Slot(name, ABSENT if arguments[argument] is None else NUMBER))
    laid = layout.lay_out(
        spec.name, slots, [operand(p) for p in resolved.indices], written, resolved.shape, spec.rowwise,
        chosen.warp_size, config,
    )  # fmt: skip
    memory = {module.slot_name(p.name): p.dtype for p in (*resolved.inputs, *resolved.indices, *outputs)}
    memory |= {name: sums[name] for name in laid.partials}
    values = {module.slot_name(name): dtype for name, dtype in resolved.values.items()}
    typing = variant.Typing(memory, values, is_half(resolved), sums)
    text, body = kernel_text(spec, laid, resolved, arguments, names_of)
    constexprs = {module.slot_name(p.name): arguments[p.name] for p in spec.constexprs}
    return (variant.recipe(spec.name, text, body, laid, typing, constexprs, chosen, pdl), typing), laid


def _is_cpu_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.device.type == "cpu"


def _check_target(spec: Spec, resolved: Resolved, outputs: Sequence[Piece], chosen: Target) -> None:
    for p in (*resolved.inputs, *outputs):
        if p.dtype in dtypes.FLOAT8 and not chosen.has_fp8:
            raise argument_error(
                spec.name, p.argument, f"dtype {p.dtype} on {chosen.name}", "a GPU that converts float8 (sm_89 or later)"
            )


def triton_body(spec: Spec, half: bool) -> Any:
    """The user's function as the kernel calls it; None where triton is not installed."""
    if half not in spec.memory:
        # two threads may both get here: one body is kept, whose identity is part of a variant's key
        spec.memory.setdefault(half, names.for_triton(spec.body.function, half) if has_triton() else None)
    return spec.memory[half]


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
    graph = trace_call(spec, resolved, arguments)
    inputs = [module.slot_name(name) for name in graph.inputs]

    def compute_rows(mask: str) -> list[str]:
        return emit(graph, inputs, outputs, "cols", lambda kind: {TILE: "m", COLUMN: "m_col"}.get(kind, "") if mask else "")

    return codegen.module_text(spec.name, laid.form, compute_rows, title, __version__), None


def traced_values(
    spec: Spec, resolved: Resolved, arguments: dict[str, Any]
) -> tuple[dict[str, tuple[torch.dtype, str]], dict[str, Any]]:
    """What a trace of a call takes: dtype and kind of every value; compile-time values, and None for optionals that are absent."""
    pieces = {p.name: p for p in resolved.inputs}
    values: dict[str, tuple[torch.dtype, str]] = {}
    constants: dict[str, Any] = {}
    for parameter in spec.body.parameters:
        argument = spec.views[parameter.name].source if parameter.name in spec.views else parameter.name
        if parameter.kind == "constexpr" or arguments[argument] is None:
            constants[parameter.name] = arguments[argument]
        else:
            piece = pieces.get(parameter.name)
            kind = POINT if piece is None else row_kind(piece.shape, resolved.shape) if spec.rowwise else TILE
            values[parameter.name] = (resolved.values[parameter.name], kind)
    return values, constants


def trace_call(spec: Spec, resolved: Resolved, arguments: dict[str, Any]) -> tracing.Graph:
    """The graph of the body for the dtypes (and, row-wise, the kinds) of a call."""
    values, constants = traced_values(spec, resolved, arguments)
    # by their text: 1, 1.0 and True are equal to Python, and so are 0.0 and -0.0
    key = (tuple(values.items()), tuple(p.name for p in resolved.inputs), repr(constants))
    if key not in spec.memory:
        numbers = set(values) - {p.name for p in resolved.inputs}
        spec.memory[key] = tracing.trace(spec.body, values, constants, spec.rowwise, numbers)
    graph: tracing.Graph = spec.memory[key]
    if spec.rowwise and resolved.shape[-1] != 1:
        _check_per_row(spec, graph)
    return graph


def _check_per_row(spec: Spec, graph: tracing.Graph) -> None:
    returned = next(node for node in graph.module.graph.nodes if node.op == "output").args[0]
    for i, (output, value) in enumerate(zip(spec.outputs, returned, strict=True)):
        if output.per_row and graph.varying[value] in (TILE, COLUMN):
            raise spec.body.error(
                f"output {i} is declared one value a row (per_row=True), and what is returned varies along the row"
            )


def source(spec: Spec, arguments: dict[str, Any], chosen: Target | None = None) -> str:
    """The generated module of a call, without compiling it."""
    resolved = resolve(spec, arguments)
    made, _ = prepare(spec, resolved, outputs_of(spec, resolved), arguments, (), chosen or Target("cuda", 90, 32), pdl=True)
    return made[0].text.replace("\n\n@triton.jit", f"from rafters import lang\n{_body_text(spec)}\n\n@triton.jit", 1)


def _body_text(spec: Spec) -> str:
    """The body as the module's kernel calls it, for reading; a row-wise kernel has it written out."""
    if spec.rowwise:
        return ""
    _, _, rest = spec.body.source.partition("(")
    return f"\n\n@triton.jit\ndef body({rest}\n"
