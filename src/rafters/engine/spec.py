"""What an op declares: its parameters, how each is read, what it returns. Data only; nothing here knows an op."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from rafters.trace.body import Body

PARTS = ("lo", "hi", "even", "odd")


@dataclass(frozen=True)
class View:
    """How a tensor parameter of the body is read from an argument of the op.

    `part` takes a half of the last dimension: "lo" and "hi" its first and second half, "even" and "odd" every other element.
    `rows` names an integer argument that selects rows of the first dimension (positions, slots): its dimensions come first, the
    remaining dimensions of the source align with the last ones. An index outside the source reads NaN (0 in an integer).
    """

    source: str
    part: str | None = None
    rows: str | None = None

    def __post_init__(self) -> None:
        if self.part is not None and self.part not in PARTS:
            raise ValueError(f"View part {self.part!r} is not one of {', '.join(PARTS)}")


@dataclass(frozen=True)
class Output:
    """One value the body returns.

    `dtype`: None follows PyTorch's promotion, "float" the same with integers lifted to floating point, a torch.dtype is fixed, a name
    takes that argument's dtype. `per_row` is one value a row ([..., 1]). `into` names the argument that is overwritten, `part` the
    half of it (or of the new tensor) that is written; `rows` names the integer argument that selects the rows written (an index
    outside is skipped). `sum_to` names a tensor argument whose shape the result takes: the value is summed over the dimensions in
    which that argument is broadcast, in float32 (float64 in float64, integers in int64), always in the same order.
    """

    dtype: torch.dtype | str | None = None
    per_row: bool = False
    into: str | None = None
    part: str | None = None
    rows: str | None = None
    sum_to: str | None = None

    def __post_init__(self) -> None:
        if self.sum_to is not None and (self.per_row or self.into or self.part or self.rows):
            raise ValueError("an Output with sum_to= is a new tensor, whole: no per_row=, into=, part= or rows=")


@dataclass(frozen=True)
class Parameter:
    """One argument of the op: a tensor, an index tensor, a scalar, or a compile-time value."""

    name: str
    kind: str
    type: Any = None
    default: Any = ...
    optional: bool = False
    mutated: bool = False


TENSOR, INDEX, SCALAR, CONSTEXPR = "tensor", "index", "scalar", "constexpr"


@dataclass(frozen=True, eq=False)
class Spec:
    """A whole op, as the engine needs it."""

    name: str
    namespace: str
    body: Body
    rowwise: bool
    parameters: tuple[Parameter, ...]
    views: dict[str, View]
    outputs: tuple[Output, ...]
    accepts: dict[str, str] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None
    make: Callable[..., Any] | None = None  # makes an op of the same kind of a function: what derivatives become
    memory: dict[Any, Any] = field(default_factory=dict, repr=False)  # traces and compiled bodies, as long-lived as the op

    @property
    def tensors(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.kind in (TENSOR, INDEX))

    @property
    def scalars(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.kind == SCALAR)

    @property
    def constexprs(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.kind == CONSTEXPR)

    @property
    def results(self) -> tuple[tuple[Output, ...], ...]:
        """The outputs grouped by the tensor they make up: one group a new tensor, halves of one tensor together."""
        groups: list[list[Output]] = []
        for output in self.outputs:
            joins = groups and output.part in ("hi", "odd") and groups[-1][0].into == output.into and len(groups[-1]) == 1
            if joins:
                groups[-1].append(output)
            else:
                groups.append([output])
        return tuple(tuple(g) for g in groups)
