"""What a call writes, and where: the device, the new tensors or the caller's own, and the pieces of them that a kernel fills."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from rafters import dtypes
from rafters.engine import module
from rafters.engine.call import Resolved, output_pieces
from rafters.engine.piece import Piece
from rafters.engine.spec import INDEX, Spec
from rafters.errors import argument_error


def common_device(spec: Spec, arguments: dict[str, Any]) -> torch.device:
    """The device of the call. A 0-d tensor on the CPU goes anywhere; anything else mixed is an error."""
    tensors = [(p.name, arguments[p.name]) for p in spec.tensors if isinstance(arguments[p.name], torch.Tensor)]
    chosen: torch.device | None = None
    first = ""
    for name, tensor in tensors:
        if tensor.layout is not torch.strided:
            raise argument_error(spec.name, name, f"layout {tensor.layout}", "a strided (dense) tensor")
        if tensor.dim() == 0 and tensor.device.type == "cpu" and _kind(spec, name) != INDEX:
            continue
        if chosen is None:
            chosen, first = tensor.device, name
        elif tensor.device != chosen:
            raise argument_error(spec.name, name, f"device {tensor.device}", f"device {chosen} (that of {first!r})")
    return chosen or torch.device("cpu")


def _kind(spec: Spec, name: str) -> str:
    return next(p.kind for p in spec.parameters if p.name == name)


def check_given(op: str, out: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    """May this `out=` take such a result? It is never resized, and cast to only where PyTorch would cast."""
    if tuple(out.shape) != tuple(shape):
        raise argument_error(op, "out", f"shape {tuple(out.shape)}", f"shape {tuple(shape)}")
    if out.device != device:
        raise argument_error(op, "out", f"device {out.device}", f"device {device}")
    # torch.compile cannot ask for the negative bit, and needs not: what it compiles writes through it
    if out.layout is not torch.strided or (not torch.compiler.is_compiling() and out.is_neg()):
        raise argument_error(op, "out", "a tensor that is no plain memory (sparse, or lazily negated)", "a strided tensor")
    eighths = dtype in dtypes.FLOAT8 or out.dtype in dtypes.FLOAT8
    if out.dtype is not dtype and (eighths or dtypes.category(dtype) > dtypes.category(out.dtype)):
        raise argument_error(op, "out", f"dtype {out.dtype}", f"dtype {dtype}, or one that it can be cast to")


def with_given(spec: Spec, resolved: Resolved, given: Sequence[torch.Tensor], device: torch.device) -> Resolved:
    """The results replaced by the caller's tensors, after checking that these can hold them."""
    if not given:
        return resolved
    results, remaining = [], list(given)
    for result in resolved.results:
        if result.into is not None:
            results.append(result)
            continue
        out = remaining.pop(0)
        check_given(spec.name, out, result.shape, result.dtype, device)
        results.append(replace(result, dtype=out.dtype, strides=tuple(out.stride())))
    outputs = tuple((i, view, results[i].dtype) for i, view, _ in resolved.outputs)
    return replace(resolved, results=tuple(results), outputs=outputs)


def result_names(spec: Spec) -> list[str]:
    """Names of the new tensors: out, or out0, out1 ... ; never that of a parameter."""
    count = sum(1 for group in spec.results if group[0].into is None)
    names = ["out"] if count == 1 else [f"out{i}" for i in range(count)]
    return [_free(name, _taken(spec)) for name in names]


def _taken(spec: Spec) -> set[str]:
    """Names in a kernel that are not for results."""
    return {module.slot_name(name) for name in (*(p.name for p in spec.parameters), *(p.name for p in spec.body.parameters))}


def _free(name: str, taken: set[str]) -> str:
    while name.upper() in {t.upper() for t in taken} or module.slot_name(name) != name:
        name += "_result"
    return name


def outputs_of(spec: Spec, resolved: Resolved) -> tuple[Piece, ...]:
    """The pieces written, each with the tensor it belongs to as `argument`."""
    fresh = iter(result_names(spec))
    owners = [r.into or next(fresh) for r in resolved.results]
    several = len(spec.outputs) > len(owners)
    labels = []
    for i, view, _ in resolved.outputs:
        plain = (
            f"{owners[i]}_{view.part}" if several and view.part else f"{owners[i]}_new" if resolved.results[i].into else owners[i]
        )
        labels.append(plain if plain in owners and not resolved.results[i].into else _free(plain, _taken(spec)))
    pieces = output_pieces(spec, resolved, {p.name: p for p in resolved.indices}, labels)
    return tuple(replace(p, argument=owners[i]) for p, (i, _, _) in zip(pieces, resolved.outputs, strict=True))
