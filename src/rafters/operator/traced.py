"""The traced form of a whole call: the body on whole tensors, in PyTorch operations. It is the reference, and what autograd sees."""

from typing import Any

import torch

from rafters.dtypes import FLOAT8
from rafters.engine.call import Resolved, number_tensor, resolve
from rafters.engine.promotion import totals
from rafters.engine.spec import Spec, View
from rafters.trace.run import run


def traced_form(spec: Spec, arguments: dict[str, Any], exact: bool = False) -> tuple[torch.Tensor, ...]:
    """The values of the outputs, one tensor a result (a mutated argument's new value included).

    With `exact` the body runs in float64 wherever it would run in float32: the oracle of the tests.
    """
    resolved = resolve(spec, arguments)
    values: dict[str, Any] = {}
    rank = len(resolved.shape)
    for parameter in spec.body.parameters:
        view = spec.views.get(parameter.name, View(parameter.name))
        value = arguments[view.source]
        dtype = resolved.values.get(parameter.name)
        if dtype is None:
            values[parameter.name] = value
            continue
        if exact and dtype is torch.float32:
            dtype = torch.float64
        if isinstance(value, torch.Tensor):
            value = _view(value, view, arguments, rank).to(dtype)
            # in a row-wise body a tensor is a row: one that is broadcast along it a row of equal numbers
            values[parameter.name] = value.expand(*value.shape[:-1], resolved.shape[-1]) if spec.rowwise else value
        else:
            values[parameter.name] = _number(value, dtype)
    outputs = run(spec.body, values)
    return _assemble(spec, resolved, arguments, outputs, exact)


def _number(value: Any, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(value, torch.SymFloat):
        return float_tensor(value).to(dtype)
    if isinstance(value, torch.SymInt):
        return torch.scalar_tensor(value, dtype=torch.int64).to(dtype)  # type: ignore[arg-type]
    return number_tensor(value, dtype)


def float_tensor(value: Any) -> torch.Tensor:
    """A 0-d float64 tensor on the CPU. A product: PyTorch lets a float vary from call to call (under torch.compile) in few operations."""
    made: torch.Tensor = torch.ones((), dtype=torch.float64) * value
    return made


def _part(value: torch.Tensor, part: str | None) -> torch.Tensor:
    """A half of the last dimension, as a view."""
    if part is None:
        return value
    half = value.shape[-1] // 2
    window = {"lo": slice(half), "hi": slice(half, None), "even": slice(None, None, 2), "odd": slice(1, None, 2)}[part]
    return value[..., window]


def _view(value: torch.Tensor, view: View, arguments: dict[str, Any], rank: int) -> torch.Tensor:
    value = _part(value, view.part)
    if view.rows is None:
        return value
    index = arguments[view.rows]
    inside = (index >= 0) & (index < value.shape[0])
    picked = value[index.clamp(0, max(value.shape[0] - 1, 0)).long()]
    missing = float("nan") if value.dtype.is_floating_point else 0
    inside = inside.reshape(*index.shape, *(1,) * (value.dim() - 1))
    picked = torch.where(inside, picked, torch.full((), missing, dtype=value.dtype, device=value.device))
    middle = max(rank - index.dim() - value.dim() + 1, 0)
    return picked.reshape(*index.shape, *(1,) * middle, *value.shape[1:])


def _assemble(
    spec: Spec, resolved: Resolved, arguments: dict[str, Any], outputs: tuple[torch.Tensor, ...], exact: bool
) -> tuple[torch.Tensor, ...]:
    made = []
    position = 0
    for result, group in zip(resolved.results, spec.results, strict=True):
        pieces = []
        for output in group:
            shape = (*resolved.shape[:-1], 1) if output.per_row else resolved.shape
            value = outputs[position][..., :1] if output.per_row else outputs[position]
            value = value.expand(shape)
            if output.sum_to is not None and result.shape != resolved.shape:
                value = value.to(torch.promote_types(value.dtype, totals(result.dtype))).sum_to_size(result.shape)
            pieces.append(_cast(value, result.dtype, exact))
            position += 1
        if result.into is not None:
            made.append(_written(arguments, group, pieces))
        elif group[0].part in ("even", "odd"):
            made.append(torch.stack(pieces, -1).flatten(-2))  # interleaved
        else:
            made.append(torch.cat(pieces, -1) if len(pieces) > 1 else pieces[0])
    return tuple(made)


def _cast(value: torch.Tensor, dtype: torch.dtype, exact: bool) -> torch.Tensor:
    if exact and dtype.is_floating_point and dtype not in FLOAT8:
        return value
    if dtype in FLOAT8:
        largest = torch.finfo(dtype).max
        value = value.clamp(-largest, largest)
    return value.to(dtype)


def _written(arguments: dict[str, Any], group: Any, pieces: list[torch.Tensor]) -> torch.Tensor:
    """The argument that is overwritten, with the written parts replaced, as a new tensor."""
    target = arguments[group[0].into].clone().to(pieces[0].dtype)
    for output, piece in zip(group, pieces, strict=True):
        window = _part(target, output.part)
        if output.rows is None:
            window.copy_(piece)
        else:
            index = arguments[output.rows]
            inside = (index >= 0) & (index < target.shape[0])
            window[index[inside].long()] = piece[inside]
    return target  # type: ignore[no-any-return]
