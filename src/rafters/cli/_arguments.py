"""Arguments for any op, from what its parameters say of themselves."""

import math
from collections.abc import Callable
from typing import Any

import torch

from rafters.cli._shapes import Case, Shape
from rafters.engine.spec import CONSTEXPR, INDEX, SCALAR, TENSOR, Parameter
from rafters.errors import RaftersError
from rafters.operator import Op

SEED = 20261129
# Drawing is much slower than computing on a CPU, whose speed does not depend on values: a block is drawn and repeated.
_DRAWN = 65_521
# Vectors along the row go by these names in every library.
_VECTORS = ("weight", "bias", "gamma", "beta", "w", "b")
_TABLE_ROWS = 4096
_SCALARS = {float: 1.5, int: 3, bool: False}


def maker(op: Op, case: Case, dtype: torch.dtype, device: torch.device) -> Callable[[], tuple[Any, ...]]:
    """A function that makes a new set of arguments at every call; the same sequence of sets in every run."""
    generator = torch.Generator(device).manual_seed(SEED)
    tensors = op.spec.tensors
    if len(case.shapes) > len(tensors):
        raise RaftersError(f"{op.name}: {len(case.shapes)} shapes in {case.label}, but {len(tensors)} tensor arguments")
    makers = [_maker(op, p, case, dtype, device, generator) for p in op.spec.parameters]
    return lambda: tuple(make() for make in makers)


def _maker(
    op: Op, p: Parameter, case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Callable[[], Any]:
    if p.kind in (SCALAR, CONSTEXPR):
        value = number(op, p)
        return lambda: value
    position = [t.name for t in op.spec.tensors].index(p.name)
    shape = case.shapes[min(position, len(case.shapes) - 1)]
    alone = len(case.shapes) == 1
    if p.kind == INDEX:
        rows = shape[:-1] if alone and len(shape) > 1 else shape
        return lambda: torch.randint(_TABLE_ROWS, rows, device=device, generator=generator)
    if p.kind == TENSOR and alone:
        if any(v.source == p.name and v.rows for v in op.spec.views.values()):
            shape = (_TABLE_ROWS, shape[-1])
        elif op.spec.rowwise and p.name in _VECTORS:
            shape = shape[-1:]
    wanted = _dtype(op, p, dtype)
    return lambda: tensor(shape, wanted, device, generator)


def number(op: Op, p: Parameter) -> Any:
    """The value of a scalar or a compile-time parameter: its default, else one of its type."""
    if p.default is not ...:
        return p.default
    if p.type in _SCALARS:
        return _SCALARS[p.type]
    raise RaftersError(f"{op.name}: compile-time argument {p.name!r} has no default, so no call can be made up; give it one")


def _dtype(op: Op, p: Parameter, dtype: torch.dtype) -> torch.dtype:
    accepts = op.spec.accepts.get(p.name)
    if accepts == "bool":
        return torch.bool
    if accepts == "int" and (dtype.is_floating_point or dtype is torch.bool):
        return torch.int32
    return dtype


def tensor(shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """Random normal values; integers from -100 to 100, bools by a fair coin."""
    if device.type == "cpu" and (count := math.prod(shape)) > _DRAWN:
        block = tensor((_DRAWN,), dtype, device, generator)
        return block.repeat(-(-count // _DRAWN))[:count].view(shape)
    if dtype is torch.bool:
        return torch.randint(2, shape, device=device, generator=generator).bool()
    if not dtype.is_floating_point:
        low = 0 if dtype is torch.uint8 else -100
        return torch.randint(low, 101, shape, dtype=dtype, device=device, generator=generator)
    direct = dtype.itemsize > 1
    made = torch.randn(shape, dtype=dtype if direct else torch.float32, device=device, generator=generator)
    return made if direct else made.to(dtype)
