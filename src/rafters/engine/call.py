"""From the arguments of a call to operands: checks, views, dtypes, shapes. Shared by the kernel, the CPU path and the fake function."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from rafters.dtypes import compute_dtype
from rafters.engine import promotion
from rafters.engine.layouts import geometry
from rafters.engine.piece import Piece, gather, leading, part
from rafters.engine.promotion import ACCEPTS, DIMENSIONED, NUMBER, ZERO_DIM, Typed
from rafters.engine.spec import CONSTEXPR, INDEX, SCALAR, TENSOR, Output, Spec, View
from rafters.errors import ArgumentError, argument_error

Number = bool | int | float


@dataclass(frozen=True)
class Result:
    """A tensor that the call makes (or, with `into`, writes)."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    into: str | None = None


@dataclass(frozen=True)
class Resolved:
    """A call with everything decided but the kernel."""

    shape: tuple[int, ...]
    common: torch.dtype
    inputs: tuple[Piece, ...]
    indices: tuple[Piece, ...]
    numbers: dict[str, torch.dtype]
    values: dict[str, torch.dtype]
    results: tuple[Result, ...]
    outputs: tuple[tuple[int, View, torch.dtype], ...]
    index_ranks: dict[str, int] = field(default_factory=dict)


def resolve(spec: Spec, arguments: dict[str, Any]) -> Resolved:
    """Checks a call and decides dtypes and shapes. Raises ArgumentError that names op, argument, got and wanted."""
    op = spec.name
    typed = _typed(spec, arguments)
    common = promotion.common_dtype(op, typed)
    if any(output.dtype == "float" for output in spec.outputs):
        common = promotion.lifted(common)
    dtypes = {p.name: arguments[p.name].dtype for p in spec.tensors if isinstance(arguments[p.name], torch.Tensor)}
    indices = _indices(spec, arguments)
    inputs = _inputs(spec, arguments, indices)
    shape = _domain(spec, [*inputs, *_shapes(spec, arguments, inputs)], indices)
    values, numbers = _values(spec, arguments, typed, common)
    results, outputs = _results(spec, arguments, shape, inputs, common, dtypes)
    aligned = tuple(leading(index, len(shape)) for index in indices.values())
    ranks = {name: len(index.shape) for name, index in indices.items()}
    return Resolved(shape, common, inputs, aligned, numbers, values, results, outputs, ranks)


def _typed(spec: Spec, arguments: dict[str, Any]) -> list[Typed]:
    typed = []
    for parameter in spec.parameters:
        value = arguments[parameter.name]
        if (value is None and parameter.optional) or parameter.kind in (INDEX, CONSTEXPR):
            continue
        if isinstance(value, torch.Tensor):
            accept = spec.accepts.get(parameter.name)
            if accept and not ACCEPTS[accept][0](value.dtype):
                raise argument_error(spec.name, parameter.name, f"dtype {value.dtype}", ACCEPTS[accept][1])
            if parameter.name in _read(spec):
                typed.append(Typed(parameter.name, value.dtype, DIMENSIONED if value.dim() else ZERO_DIM))
        elif isinstance(value, bool | int | float | torch.SymInt | torch.SymFloat):
            accept = spec.accepts.get(parameter.name)
            if accept and parameter.kind == TENSOR and not ACCEPTS[accept][0](promotion.number_dtype(value)):
                raise argument_error(spec.name, parameter.name, f"the number {value!r}", ACCEPTS[accept][1])
            kind = parameter.type if parameter.kind == SCALAR else type(value)
            typed.append(Typed(parameter.name, promotion.number_dtype(value, kind), NUMBER))
        else:
            wanted = "a tensor or a number" if parameter.kind == TENSOR else f"a number ({parameter.type.__name__})"
            raise argument_error(spec.name, parameter.name, f"{type(value).__name__}", wanted)
    if all(t.rank == NUMBER for t in typed):
        raise ArgumentError(f"{spec.name}: no argument is a tensor; at least one must be")
    return typed


def _read(spec: Spec) -> set[str]:
    """The arguments whose values the body sees; the others only receive results."""
    return {view.source for view in spec.views.values()}


def _indices(spec: Spec, arguments: dict[str, Any]) -> dict[str, Piece]:
    pieces = {}
    for parameter in spec.parameters:
        if parameter.kind != INDEX:
            continue
        value = arguments[parameter.name]
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.int32, torch.int64):
            got = f"dtype {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
            raise argument_error(spec.name, parameter.name, got, "an int32 or int64 tensor of row numbers")
        pieces[parameter.name] = Piece(parameter.name, parameter.name, tuple(value.shape), tuple(value.stride()), value.dtype)
    return pieces


def _inputs(spec: Spec, arguments: dict[str, Any], indices: dict[str, Piece]) -> tuple[Piece, ...]:
    plain: list[tuple[Piece, View]] = []
    gathered: list[tuple[Piece, View]] = []
    for name, view in spec.views.items():
        value = arguments[view.source]
        if not isinstance(value, torch.Tensor):
            continue
        piece = part(spec.name, Piece(name, view.source, tuple(value.shape), tuple(value.stride()), value.dtype), view.part)
        (gathered if view.rows else plain).append((piece, view))
    pieces = {piece.name: piece for piece, _ in plain}
    rank = max([len(p.shape) for p in pieces.values()], default=0)
    for piece, view in gathered:
        pieces[piece.name] = gather(spec.name, piece, indices[view.rows or ""], rank)
    return tuple(pieces[name] for name in spec.views if name in pieces)


def _shapes(spec: Spec, arguments: dict[str, Any], inputs: Sequence[Piece]) -> list[Piece]:
    """The arguments that are not read, to whose shape a result is summed: they take part in the broadcast."""
    read = {piece.argument for piece in inputs}
    pieces = []
    for name in dict.fromkeys(o.sum_to for o in spec.outputs if o.sum_to and o.sum_to not in read):
        value = arguments[name]
        if not isinstance(value, torch.Tensor):
            raise argument_error(spec.name, name, type(value).__name__, "a tensor (a result is summed to its shape)")
        pieces.append(Piece(name, name, tuple(value.shape), tuple(value.stride()), value.dtype))
    return pieces


def _domain(spec: Spec, inputs: Sequence[Piece], indices: dict[str, Piece]) -> tuple[int, ...]:
    _check_indices(spec, inputs, indices)
    shapes = [piece.shape for piece in inputs]
    try:
        shape = geometry.broadcast_shapes(shapes)
    except ValueError as problem:
        position, got, dimension = problem.args
        others = ", ".join(f"{p.argument} {tuple(p.shape)}" for i, p in enumerate(inputs) if i != position)
        wanted = f"a shape that broadcasts with {others} (dimension {dimension} does not)"
        raise argument_error(spec.name, inputs[position].argument, f"shape {tuple(got)}", wanted) from None
    for index in (indices[o.rows] for o in spec.outputs if o.rows):
        for n, m in zip(index.shape, shape, strict=False):
            if n not in (1, m):
                wanted = f"the first dimensions of the result, {shape} (a written row is not repeated)"
                raise argument_error(spec.name, index.name, f"shape {tuple(index.shape)}", wanted)
    if spec.rowwise and not shape:
        raise ArgumentError(f"{spec.name}: all arguments are 0-d; a row-wise op needs at least one dimension, its row")
    return shape


def _check_indices(spec: Spec, inputs: Sequence[Piece], indices: dict[str, Piece]) -> None:
    """An index has the first dimensions of what is not gathered."""
    plain = [piece for piece in inputs if piece.index is None]
    rank = max((len(piece.shape) for piece in plain), default=0)
    for index in indices.values():
        for piece in plain:
            missing = rank - len(piece.shape)  # a lower rank aligns with the last dimensions
            fits = len(index.shape) <= rank and all(
                i < missing or n in (1, piece.shape[i - missing]) or piece.shape[i - missing] == 1
                for i, n in enumerate(index.shape)
            )
            if not fits:
                wanted = f"the first dimensions of {piece.argument} {tuple(piece.shape)}"
                raise argument_error(spec.name, index.name, f"shape {tuple(index.shape)}", wanted)


def _values(
    spec: Spec, arguments: dict[str, Any], typed: Sequence[Typed], common: torch.dtype
) -> tuple[dict[str, torch.dtype], dict[str, torch.dtype]]:
    """The dtype in which each body parameter is computed; and of the numbers, the dtype in which they are passed."""
    lift = any(output.dtype == "float" for output in spec.outputs)
    by_name = {t.name: t for t in typed}
    values: dict[str, torch.dtype] = {}
    numbers: dict[str, torch.dtype] = {}
    for name, view in spec.views.items():
        entry = by_name.get(view.source)
        if entry is None:
            continue
        values[name] = compute_dtype(common) if lift else promotion.value_dtype(entry, common)
        if entry.rank == NUMBER:
            numbers[view.source] = values[name]
            check_number(spec.name, view.source, arguments[view.source], values[name])
    for parameter in spec.scalars:
        value = arguments[parameter.name]
        dtype = promotion.scalar_dtype(parameter.type, value, common)
        check_number(spec.name, parameter.name, value, dtype)
        values[parameter.name] = numbers[parameter.name] = dtype
    return values, numbers


def check_number(op: str, name: str, value: Number, dtype: torch.dtype) -> None:
    if isinstance(value, int) and not dtype.is_floating_point and dtype is not torch.bool:
        info = torch.iinfo(dtype)
        low = info.min if info.min < 0 else -info.max  # a negative number wraps in an unsigned dtype, as in PyTorch
        if not low <= value <= info.max:
            raise argument_error(op, name, f"the number {value!r}", f"a number that {dtype} can hold ({info.min} to {info.max})")


def number_tensor(value: Number, dtype: torch.dtype) -> torch.Tensor:
    """A Python number as a 0-d tensor: a float in the full precision of `dtype`, an integer wrapped into it."""
    return torch.tensor(value, dtype=dtype) if dtype.is_floating_point else torch.tensor(value).to(dtype)


def _results(
    spec: Spec,
    arguments: dict[str, Any],
    shape: tuple[int, ...],
    inputs: Sequence[Piece],
    common: torch.dtype,
    dtypes: dict[str, torch.dtype],
) -> tuple[tuple[Result, ...], tuple[tuple[int, View, torch.dtype], ...]]:
    results: list[Result] = []
    outputs: list[tuple[int, View, torch.dtype]] = []
    layouts = [(p.shape, p.strides) for p in inputs if p.index is None]
    for group in spec.results:
        first = group[0]
        dtype = promotion.output_dtype(spec.name, first, common, dtypes)
        if first.into is not None:
            target = arguments[first.into]
            results.append(Result(dtype, tuple(target.shape), tuple(target.stride()), first.into))
        else:
            summed = None if first.sum_to is None else tuple(arguments[first.sum_to].shape)
            results.append(_new_result(first, dtype, shape, layouts, spec.rowwise, summed))
        outputs += [(len(results) - 1, View(first.into or "", output.part, output.rows), dtype) for output in group]
    return tuple(results), tuple(outputs)


def _new_result(
    output: Output,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    layouts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    rowwise: bool,
    summed: tuple[int, ...] | None,
) -> Result:
    if summed is not None and summed != shape:
        return Result(dtype, summed, geometry.contiguous_strides(summed))
    if output.per_row:
        rows = (*shape[:-1], 1)
        return Result(dtype, rows, geometry.contiguous_strides(rows))
    if output.part is not None:
        whole = (*shape[:-1], shape[-1] * 2)
        return Result(dtype, whole, geometry.contiguous_strides(whole))
    if rowwise:
        return Result(dtype, shape, geometry.contiguous_strides(shape))
    return Result(dtype, shape, geometry.output_strides(shape, layouts))


def output_pieces(spec: Spec, resolved: Resolved, indices: dict[str, Piece], names: Sequence[str]) -> tuple[Piece, ...]:
    """What the kernel writes: the results, in the parts and rows that the outputs name."""
    pieces: list[Piece] = []
    rank = len(resolved.shape)
    for (position, view, dtype), name in zip(resolved.outputs, names, strict=True):
        result = resolved.results[position]
        piece = part(spec.name, Piece(name, view.source or "out", result.shape, result.strides, dtype), view.part)
        if view.rows:
            index = indices[view.rows]
            index = replace(index, shape=index.shape[: resolved.index_ranks[view.rows]])
            piece = gather(spec.name, piece, index, rank)
        output = spec.outputs[len(pieces)]
        expected = (*resolved.shape[:-1], 1) if output.per_row else resolved.shape
        if output.sum_to is None and tuple(piece.shape) != tuple(expected):
            raise argument_error(
                spec.name, piece.argument, f"shape {tuple(result.shape)}", f"shape {tuple(expected)} (the result's)"
            )
        if geometry.overlaps_itself(piece.shape, piece.strides) and not view.rows:
            raise argument_error(
                spec.name, piece.argument, f"strides {tuple(result.strides)}", "a tensor that does not overlap itself"
            )
        pieces.append(piece)
    return tuple(pieces)
