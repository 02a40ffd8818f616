"""A plan for any number of rows: what two plans of different sizes share serves every size between them.

A call's leading dimensions (tokens, a batch of them) vary from call to call; little of a plan depends on them: the grid, the number
of elements or rows, the shapes of new tensors. Each of these is proportional to the size (the grid by blocks). What else depends on
it (dependent launches for small calls, 64-bit offsets for large ones, a smaller tile for few rows) changes at thresholds, so that two
sizes with the same kernel have that kernel between them. A new size inside the range then costs a few assignments.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from rafters.engine.form import LINEAR
from rafters.engine.layout import Layout
from rafters.engine.plan import Elsewhere
from rafters.engine.spec import INDEX, Spec

Lead = tuple[int, ...]


@dataclass(frozen=True)
class Open:
    """A call whose leading sizes may vary. `key`: all else that a plan depends on. `varies`: which of its values have the sizes."""

    key: tuple[Any, ...]
    lead: Lead
    varies: tuple[bool, ...]

    @property
    def size(self) -> int:
        return math.prod(self.lead)

    @property
    def rows(self) -> int:
        """The leading size that is varied to see how far a kernel reaches."""
        return next(n for n in self.lead if n != 1)

    def with_rows(self, rows: int) -> "Open":
        """The same class of call with more or fewer rows."""
        position = next(i for i, n in enumerate(self.lead) if n != 1)
        return replace(self, lead=(*self.lead[:position], rows, *self.lead[position + 1 :]))

    def values(self, values: Sequence[Any]) -> list[Any]:
        """Arguments of these sizes, like `values` but without memory."""
        return [_without_memory(v, self.lead if varies else ()) for v, varies in zip(values, self.varies, strict=True)]


def _without_memory(value: Any, lead: Lead) -> Any:
    if not isinstance(value, torch.Tensor) or (value.dim() == 0 and value.device.type == "cpu"):  # a 0-d tensor there is a number
        return value
    shape = (*lead, *value.shape[len(lead) :])
    return torch.empty_strided(shape, _joined(value.stride(), lead), dtype=value.dtype, device="meta")


def _joined(strides: Sequence[int], lead: Lead) -> tuple[int, ...]:
    """Strides whose first dimensions have other sizes and still lie in memory as one."""
    result = list(strides)
    for i in range(len(lead) - 2, -1, -1):
        result[i] = result[i + 1] * lead[i + 1]
    return tuple(result)


def open_call(
    spec: Spec, arguments: Sequence[Any], given: Sequence[torch.Tensor], elsewhere: Elsewhere | None = None
) -> Open | None:
    """What is open in a call; None where no leading dimension can vary on its own."""
    selected = {v.source for v in spec.views.values() if v.rows} | {o.into for o in spec.outputs if o.rows}
    roles = [INDEX if p.kind == INDEX else WHOLE if p.name in selected else "" for p in spec.parameters]
    entries = [*zip(arguments, roles, strict=True), *((g, "") for g in given)]
    places = [_place(v, p.name, elsewhere) for v, p in zip(arguments, spec.parameters, strict=True)]
    places += [_place(g, "", None) for g in given]
    full = [v for v, role in entries if isinstance(v, torch.Tensor) and not role]
    rank = max((t.dim() for t in full), default=0)
    for count in range(max(rank - 1, min(rank, 1)), 0, -1):
        lead = next((tuple(t.shape[:count]) for t in full if t.dim() == rank and any(n != 1 for n in t.shape[:count])), None)
        if lead is None or 0 in lead:
            return None
        parts = [_part(value, role, place, lead, rank) for (value, role), place in zip(entries, places, strict=True)]
        if None not in parts:
            key = (*(n == 1 for n in lead), *parts, torch.get_default_dtype())
            return Open(key, lead, tuple(part[0] == OPEN for part in parts if part))
    return None


WHOLE, OPEN = "whole", "open"


def _place(value: Any, name: str, elsewhere: Elsewhere | None) -> tuple[Any, ...]:
    """Alignment and device of a tensor."""
    if not isinstance(value, torch.Tensor):
        return ()
    if elsewhere is None or value.device.type != "meta":
        return value.data_ptr() & 15, value.device
    return elsewhere.addresses.get(name, 0) & 15, elsewhere.device


def _part(value: Any, role: str, place: tuple[Any, ...], lead: Lead, rank: int) -> tuple[Any, ...] | None:
    """What the class of a call holds of one value; None where the value ties the leading sizes to something else."""
    if not isinstance(value, torch.Tensor):
        short = isinstance(value, int) and -0x80000000 <= value < 0x80000000
        return type(value), repr(value) if isinstance(value, bool | str) else short
    shape, strides, count = tuple(value.shape), value.stride(), len(lead)
    facts = (value.dtype, *place)
    if role != WHOLE and shape[:count] == lead and (len(shape) == rank or role == INDEX):
        return (OPEN, shape[count:], strides[count - 1 :], *facts) if _outermost(shape, strides, count) else None
    overlapping = len(shape) if role == INDEX else count - (rank - len(shape))  # its dimensions that lie along the leading ones
    fixed = role == WHOLE or all(n == 1 for n in shape[: max(overlapping, 0)])
    return (WHOLE, shape, strides, *facts) if fixed else None


def _outermost(shape: Sequence[int], strides: Sequence[int], count: int) -> bool:
    """Are the first dimensions one in memory, and further out than all others?"""
    joined = all(strides[i] == strides[i + 1] * shape[i + 1] for i in range(count - 1))
    return joined and all(strides[count - 1] > s for s, n in zip(strides[count:], shape[count:], strict=True) if n > 1)


class Family:
    """The plans of one class of calls that launch one kernel."""

    def __init__(self, lead: Lead, plan: Any) -> None:
        self.plan = plan  # of the first size seen
        self._lead, self._size = lead, math.prod(lead)
        self.low = self.high = self._size
        self._scaled: set[str] | None = None  # the constants that depend on the size; known from the second size on

    def take(self, lead: Lead, plan: Any) -> bool:
        """Is this plan, of another size, of the family? If so, all sizes up to its own are."""
        size = math.prod(lead)
        if plan.variant is not self.plan.variant or plan.straight.text != self.plan.straight.text or size == self._size:
            return False
        own, others = self.plan.straight.constants, plan.straight.constants
        scaled = {name for name, value in own.items() if not _same(value, others[name])}
        scaled |= {"_grid0"}  # may be the same for two sizes and yet depend on them; so may strides
        for name, value in own.items():
            if name.startswith("_shape_") and value[: len(lead)] == self._lead:
                scaled |= {name, name.replace("_shape_", "_strides_", 1)}
        try:
            if any(self._at(name, own[name], lead, size) != others[name] for name in scaled):
                return False
        except _UnknownError:
            return False
        if self._scaled is None:
            self._scaled = scaled
        elif scaled != self._scaled:
            return False
        self.low, self.high = min(self.low, size), max(self.high, size)
        return True

    def reaches(self, size: int) -> bool:
        """Is a call of that many rows (in all leading dimensions together) known?"""
        return self._scaled is not None and self.low <= size <= self.high

    def run(self, lead: Lead) -> Callable[..., Any]:
        """The function for leading sizes that it reaches to."""
        own, size = self.plan.straight.constants, math.prod(lead)
        made: Callable[..., Any] = self.plan.straight.run(
            {name: self._at(name, own[name], lead, size) for name in self._scaled or ()}
        )
        return made

    def _at(self, name: str, value: Any, lead: Lead, size: int) -> Any:
        """A constant of the first plan as another size has it."""
        count = len(lead)
        if name.startswith("_shape_") and value[:count] == self._lead:
            return (*lead, *value[count:])
        if name.startswith("_strides_"):
            return _joined(value, lead)
        if name == "_grid0":
            return _grid(self.plan.layout, value, size, self._size)
        if name.startswith("_k0_") and type(value) is int and value % self._size == 0:
            return value // self._size * size
        raise _UnknownError(name)


class _UnknownError(Exception):
    """A constant that depends on the size in a way not known here."""


def _grid(layout: Layout, grid: int, size: int, own: int) -> int:
    """Programs along axis 0: blocks of what is open, times what is not."""
    if layout.form.walk == LINEAR:
        name, step = "n", int(layout.constants["BLOCK"])
    elif layout.form.outer:
        name, step = "n0", 1
    else:
        name, step = "rows", int(layout.constants["ROWS"])
    value: int = layout.arguments[name].value
    blocks = -(-value // step)
    if value % own or grid % blocks:
        raise _UnknownError("_grid0")
    return -(-(value // own * size) // step) * (grid // blocks)


def _same(a: Any, b: Any) -> bool:
    plain = type(a) is type(b) and isinstance(a, int | float | str | tuple)
    return a is b or (plain and repr(a) == repr(b))
