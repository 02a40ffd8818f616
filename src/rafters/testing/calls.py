"""Descriptions of calls: small enough to print as code that rebuilds them, and to be made smaller by hypothesis."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rafters.engine.spec import INDEX, SCALAR, TENSOR, Parameter
from rafters.operator.from_body import FromBody
from rafters.operator.op import Op
from rafters.testing.cases import argument_dtype
from rafters.testing.layouts import place
from rafters.testing.values import awkward, counting, ordinary, smooth

Shape = tuple[int, ...]
VALUES = {"counting": counting, "ordinary": ordinary, "smooth": smooth, "awkward": awkward}
_SHOWN = 24  # elements of a tensor that is written out


@dataclass(frozen=True)
class Tensor:
    """A tensor argument: everything that `make` needs, nothing that holds memory."""

    shape: Shape
    dtype: torch.dtype
    layout: str = "contiguous"
    values: str = "ordinary"
    seed: int = 0

    def make(self, device: torch.device | str = "cpu") -> torch.Tensor:
        return place(VALUES[self.values](self.shape, self.dtype, self.seed).to(device), self.layout)

    def code(self, device: str = "cpu") -> str:
        shape = "()" if not self.shape else f"({', '.join(map(str, self.shape))}{',' if len(self.shape) == 1 else ''})"
        values = VALUES[self.values](self.shape, self.dtype, self.seed)
        if 0 < math.prod(self.shape) <= _SHOWN and self.dtype.itemsize > 1:
            text = f"torch.tensor({values.tolist()!r}, dtype={self.dtype})"
        else:
            text = f"testing.{self.values}({shape}, {self.dtype}, seed={self.seed})"
        text = _there(text, device)
        return text if self.layout == "contiguous" else f"testing.place({text}, {self.layout!r})"


@dataclass(frozen=True)
class Rows:
    """An index argument: which rows of a table of `limit` rows; `outside` of them lie outside, and none comes twice if `unique`."""

    shape: Shape
    limit: int
    dtype: torch.dtype = torch.int64
    seed: int = 0
    outside: int = 0
    unique: bool = False

    def make(self, device: torch.device | str = "cpu") -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        count = math.prod(self.shape)
        picked = torch.randperm(self.limit, generator=generator)[:count]
        if not self.unique or count > self.limit:
            picked = torch.randint(max(self.limit, 1), (count,), generator=generator)
        for i in range(min(self.outside, count)):
            picked[i] = (-1, self.limit, self.limit + 100)[i % 3]
        return picked.reshape(self.shape).to(self.dtype).to(device)

    def code(self, device: str = "cpu") -> str:
        return _there(f"torch.tensor({self.make().tolist()!r}, dtype={self.dtype})", device)


@dataclass(frozen=True)
class Call:
    """One call of an op. `label` says what is special about it, where its arguments do not show it."""

    op: Op = field(repr=False)
    arguments: tuple[Any, ...]
    label: str = ""

    def make(self, device: torch.device | str = "cpu") -> tuple[Any, ...]:
        return tuple(a.make(device) if isinstance(a, Tensor | Rows) else a for a in self.arguments)

    def named(self, arguments: Sequence[Any]) -> dict[str, Any]:
        return dict(zip((p.name for p in self.op.spec.parameters), arguments, strict=True))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(a for a in self.arguments if isinstance(a, Tensor))

    @property
    def size(self) -> tuple[int, int]:
        """For "smallest": elements, then how much there is to read."""
        return sum(math.prod(t.shape) for t in self.tensors), len(repr(self.arguments))

    @property
    def subject(self) -> str:
        """The promise that wrong values in this call break: what sets it apart from the plainest one."""
        tensors = self.tensors
        expected = sum(p.kind == TENSOR for p in self.op.spec.parameters)
        if self.label:
            return self.label
        if len(tensors) < expected and any(isinstance(a, bool | int | float) for a in self._of_kind(TENSOR)):
            return "numbers"
        if any(t.layout != "contiguous" and not t.layout.startswith("offset") for t in tensors):
            return "argument strides"
        if any(t.layout != "contiguous" for t in tensors):
            return "alignment"
        if not self._of_kind(INDEX) and len({t.shape for t in tensors}) > 1:
            return "broadcasting"
        return "values"

    def _of_kind(self, kind: str) -> list[Any]:
        return [a for p, a in zip(self.op.spec.parameters, self.arguments, strict=True) if p.kind == kind]

    def code(self, device: str = "cpu") -> str:
        """Lines that make the arguments and call the op, on the device where the call failed."""
        function = self.op.spec.body.function
        passed, made = [], []
        for parameter, argument in zip(self.op.spec.parameters, self.arguments, strict=True):
            drawn = isinstance(argument, Tensor | Rows)
            passed.append(parameter.name if drawn else repr(argument))
            made += [f"{parameter.name} = {argument.code(device)}"] if drawn else []
        constants = ["nan, inf = float('nan'), float('inf')"] if any("nan" in m or "inf" in m for m in (*made, *passed)) else []
        home, _, derived = str(function.__qualname__).partition(".")  # a derived op is asked of the one it comes from
        imports = ["import torch", "from rafters import testing", f"from {function.__module__} import {home}"]
        imports += [f"{derived} = {home}.backward_op()"] if derived and "<" not in derived else []
        return "\n".join([*imports, *constants, *made, f"{name_of(self.op)}({', '.join(passed)})"])


SCALARS: dict[Any, tuple[Any, ...]] = {float: (1.5, 0.5, -2.0), int: (3, 1, 2), bool: (False, True)}


def numbers_for(p: Parameter) -> tuple[Any, ...]:
    """Values of a scalar or compile-time argument, its default first; a compile-time one that is no bool has only its default."""
    default = () if p.default is ... else (p.default,)
    known = SCALARS.get(p.type or type(p.default), (2,))
    return default if default and p.kind != SCALAR and p.type is not bool else tuple(dict.fromkeys((*default, *known)))


def listed_call(op: Op, operands: Sequence[tuple[Shape, str]], dtype: torch.dtype, values: str) -> Call:
    """A call with these shapes and layouts, in turn, for an op without index arguments."""
    operand = itertools.cycle(operands)
    arguments: list[Any] = []
    for seed, p in enumerate(op.spec.parameters):
        if p.kind == TENSOR:
            shape, layout = next(operand)
            arguments.append(Tensor(shape, argument_dtype(op, p.name, dtype), layout, values, seed))
        else:
            arguments.append(numbers_for(p)[0])
    return Call(op, tuple(arguments))


def takes_any_shapes(op: Op) -> bool:
    """An op of plain arguments, which takes any shapes that broadcast."""
    views = not any(v.part or v.rows for v in op.spec.views.values())
    return views and not any(p.mutated for p in op.spec.parameters) and isinstance(op.form, FromBody)


def _there(text: str, device: str) -> str:
    return text if device == "cpu" else f"{text}.to({device!r})"


def name_of(op: Op) -> str:
    """The name under which an op's module holds it."""
    return str(op.spec.body.function.__qualname__).rsplit(".", 1)[-1]
