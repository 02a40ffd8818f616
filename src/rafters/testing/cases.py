"""Arguments for any op, from its declaration alone: every dtype it takes, awkward shapes, awkward layouts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rafters.dtypes import FLOAT8, SUPPORTED
from rafters.engine.promotion import ACCEPTS
from rafters.engine.spec import INDEX, SCALAR, TENSOR
from rafters.operator.op import Op
from rafters.testing.layouts import place
from rafters.testing.values import awkward

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """Shape and layout of each tensor argument in turn; an op with more arguments starts again from the first."""

    name: str
    operands: tuple[tuple[Shape, str], ...]


def _all(name: str, shape: Shape, *layouts: str) -> Case:
    return Case(name, tuple((shape, layout) for layout in layouts or ("contiguous",)))


# Shapes: empty, 0-d, one element, primes, a power of two and its neighbours, around a block (1024 float32), many dimensions.
SHAPES = tuple(
    _all("x".join(map(str, shape)) or "0-d", shape)
    for shape in ((), (0,), (3, 0, 5), (1,), (2,), (7,), (16,), (31,), (1023,), (1024,), (1025,), (4099,), (17, 129),
                  (2, 3, 4, 5), (1, 1, 5, 1, 1, 2), (2, 1, 2, 1, 2, 1, 2, 1, 3))
)  # fmt: skip
# Layouts: each names what is awkward in it.
STRIDES = (
    _all("start 1 element in", (1025,), "offset 1"),
    _all("starts differ", (1040,), "contiguous", "offset 1", "offset 4"),
    _all("8-byte starts", (520,), "offset 4"),
    _all("pitched rows", (33, 60), "pitched"),
    _all("rows of aligned pitch", (9, 192), "aligned pitch"),
    _all("rows of 8-byte pitch", (5, 180), "contiguous", "aligned pitch"),
    _all("every other column", (11, 37), "stepped"),
    _all("all transposed", (48, 65), "transposed"),
    _all("transposed beside contiguous", (70, 45), "transposed", "contiguous"),
    _all("contiguous beside transposed", (45, 70), "contiguous", "transposed"),
    _all("channels last", (2, 3, 4, 5), "rotated"),
    _all("channels last beside contiguous", (2, 3, 4, 5), "rotated", "contiguous", "transposed"),
    _all("stride 0 rows", (9, 40), "expanded"),
    _all("stride 0 rows beside dense", (9, 40), "contiguous", "expanded"),
    Case("vector of the last dimension", (((21, 96), "contiguous"), ((96,), "contiguous"), ((96,), "offset 1"))),
    Case("one value a row", (((21, 96), "contiguous"), ((21, 1), "contiguous"), ((96,), "contiguous"))),
    Case("vector first", (((5,), "contiguous"), ((7, 5), "contiguous"), ((7, 1), "contiguous"))),
    Case("rows longer than a block", (((3, 2500), "contiguous"), ((2500,), "contiguous"), ((3, 1), "contiguous"))),
    Case("broadcast both ways", (((4, 1, 6), "contiguous"), ((5, 1), "contiguous"), ((4, 5, 1), "transposed"))),
    Case("0-d beside dense", (((13, 7), "contiguous"), ((), "contiguous"), ((1, 1), "contiguous"))),
    Case("0-d first", (((), "contiguous"), ((13, 7), "contiguous"), ((7,), "contiguous"))),
    Case("no dimension joins", (((2, 3, 4, 5, 3), "pitched"), ((2, 3, 4, 5, 3), "rotated"), ((3, 1, 5, 1), "stepped"))),
    Case("empty by broadcasting", (((0, 3), "contiguous"), ((3,), "contiguous"), ((1, 1), "contiguous"))),
)
CASES = {case.name: case for case in (*SHAPES, *STRIDES)}
DTYPES = tuple(sorted(SUPPORTED, key=lambda d: (d.is_floating_point, d.itemsize, str(d))))


def dtypes_of(op: Op) -> tuple[torch.dtype, ...]:
    """The dtypes that all unrestricted arguments of an op may have together."""
    accepted = [op.spec.accepts.get(p.name) for p in op.spec.parameters if p.kind == TENSOR]
    rules: list[Callable[[torch.dtype], bool]] = [ACCEPTS[a][0] for a in accepted if a and a != "bool"]
    return tuple(d for d in DTYPES if all(rule(d) for rule in rules))


def argument_dtype(op: Op, parameter: str, dtype: torch.dtype) -> torch.dtype:
    """`dtype`, or the nearest that this argument takes."""
    accept = op.spec.accepts.get(parameter)
    if accept is None or ACCEPTS[accept][0](dtype):
        return dtype
    return {"bool": torch.bool, "int": torch.int32, "float": torch.float32, "number": torch.int32}[accept]


def arguments_for(
    op: Op,
    case: Case,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    seed: int = 0,
    make: Callable[..., torch.Tensor] = awkward,
) -> tuple[Any, ...]:
    """Arguments of one call. Scalars take their default, else 1.5 or 3; an index counts through the rows it selects from."""
    made: list[Any] = []
    tensors = 0
    for parameter in op.spec.parameters:
        if parameter.kind == TENSOR:
            shape, layout = case.operands[tensors % len(case.operands)]
            values = make(shape, argument_dtype(op, parameter.name, dtype), seed + 10 * tensors)
            made.append(place(values.to(device), layout))
            tensors += 1
        elif parameter.kind == INDEX:
            rows = case.operands[0][0][0] if case.operands[0][0] else 1
            made.append(torch.arange(rows, device=device).flip(0))
        elif parameter.default is not ...:
            made.append(parameter.default)
        elif parameter.kind == SCALAR:
            made.append(1.5 if parameter.type is float else 3)
        else:
            made.append(True)
    return tuple(made)


def is_float8(dtype: torch.dtype) -> bool:
    return dtype in FLOAT8
