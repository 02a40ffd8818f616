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

from rafters.engine.layouts.form import LINEAR, NUMBER
from rafters.engine.layouts.layout import Layout
from rafters.engine.plan import Elsewhere
from rafters.engine.spec import CONSTEXPR, INDEX, Spec

Lead = tuple[int, ...]


@dataclass(slots=True)
class Open:
    """A call whose leading sizes may vary. `key`: all else that a plan depends on. `varies`: which of its values have the sizes."""

    key: tuple[Any, ...]
    lead: Lead
    varies: Sequence[bool]

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
    roles = spec.memory.get(_roles) or _roles(spec)
    entries = [_entry(value, name, role, elsewhere) for value, (name, role) in zip(arguments, roles, strict=True)]
    if given:
        entries += [_entry(g, "", "", None) for g in given]
    shapes = [shape for role, shape, _, _ in entries if not role]
    rank = max(map(len, shapes), default=0)
    for count in range(rank - 1 or rank, 0, -1):
        lead: Lead | None = None
        for shape in shapes:
            if len(shape) == rank and shape[:count] != _ONES[count]:
                lead = shape[:count]
                break
        if lead is None or 0 in lead:
            return None
        parts = [_part(*entry, lead, rank) for entry in entries]
        if None not in parts:
            ones = None if 1 not in lead else tuple([n == 1 for n in lead])
            return Open((count, ones, *parts, torch.get_default_dtype()), lead, [part[0] is OPEN for part in parts if part])
    return None


WHOLE, OPEN = "whole", "open"
_ONES = [(1,) * n for n in range(64)]  # PyTorch's tensors have at most 64 dimensions


def _roles(spec: Spec) -> list[tuple[str, str]]:
    """(name, role) of each parameter: an index lies along the first dimensions; what it selects from does so whole."""
    selected = {v.source for v in spec.views.values() if v.rows} | {o.into for o in spec.outputs if o.rows}
    roles = [(p.name, p.kind if p.kind in (INDEX, CONSTEXPR) else WHOLE if p.name in selected else "") for p in spec.parameters]
    spec.memory[_roles] = roles
    return roles


def _entry(value: Any, name: str, role: str, elsewhere: Elsewhere | None) -> tuple[str, tuple[int, ...], Any, tuple[Any, ...]]:
    """(role, shape, strides, what else a plan depends on) of one value of a call."""
    if isinstance(value, torch.Tensor):
        align, device = _place(value, name, elsewhere)
        return role, tuple(value.shape), value.stride(), (value.dtype, align, device)
    if role is CONSTEXPR:  # 1, 1.0 and True are three values
        return NUMBER, (), (), (CONSTEXPR, repr(value))
    short = isinstance(value, int) and -0x80000000 <= value < 0x80000000
    return NUMBER, (), (), (NUMBER, type(value), short)


def _place(value: torch.Tensor, name: str, elsewhere: Elsewhere | None) -> tuple[int, torch.device]:
    """Alignment and device."""
    if elsewhere is None or value.device.type != "meta":
        return value.data_ptr() & 15, value.device
    return elsewhere.addresses.get(name, 0) & 15, elsewhere.device


def _part(role: str, shape: Any, strides: Any, facts: tuple[Any, ...], lead: Lead, rank: int) -> tuple[Any, ...] | None:
    """What the class of a call holds of a value; None where the value ties the leading sizes to something else."""
    if role is NUMBER:
        return facts
    count = len(lead)
    if role is not WHOLE and shape[:count] == lead and (len(shape) == rank or role is INDEX):
        return (OPEN, shape[count:], strides[count - 1 :], facts) if _outermost(shape, strides, count) else None
    overlapping = len(shape) if role is INDEX else max(count - rank + len(shape), 0)  # its dimensions along the leading ones
    fixed = role is WHOLE or shape[:overlapping] == _ONES[overlapping]
    return (WHOLE, shape, strides, facts) if fixed else None


def _outermost(shape: Sequence[int], strides: Sequence[int], count: int) -> bool:
    """Are the first dimensions one in memory, and further out than all others?"""
    for i in range(count - 1):
        if strides[i] != strides[i + 1] * shape[i + 1]:
            return False
    step = strides[count - 1]
    return all(s < step or n == 1 for s, n in zip(strides[count:], shape[count:], strict=True))


SLOTS = 64  # sizes that a family remembers having met, by their remainder


class Family:
    """The plans of one class of calls that launch one kernel."""

    def __init__(self, lead: Lead, plan: Any, state: int = 0) -> None:
        self.plan = plan  # of the first size seen
        self.state = state  # of the table that has it, when the plan was made
        self._lead, self._size = lead, math.prod(lead)
        self.low = self.high = self._size
        self._rules: dict[str, Rule] | None = None  # of the constants that depend on the size; known from the second size on
        self.open: Callable[..., Any] | None = None  # f(n, *arguments), where one leading dimension varies
        self._met = [0] * SLOTS

    def take(self, lead: Lead, plan: Any) -> bool:
        """Is this plan, of another size, of the family? If so, all sizes up to its own are."""
        size = math.prod(lead)
        if plan.variant is not self.plan.variant or plan.straight.text != self.plan.straight.text or size == self._size:
            return False
        own, others = self.plan.straight.constants, plan.straight.constants
        rules = self._rules or self._learnt({name for name, value in own.items() if not _same(value, others[name])})
        if rules is None:
            return False
        if any(not _same(rules[name](lead, size) if name in rules else value, others[name]) for name, value in own.items()):
            return False
        if self._rules is None and len(lead) == 1:
            self.open = self.plan.straight.open(rules)
        self._rules = rules
        self.low, self.high = min(self.low, size), max(self.high, size)
        return True

    def reaches(self, size: int) -> bool:
        """Is a call of that many rows (in all leading dimensions together) known?"""
        return self._rules is not None and self.low <= size <= self.high

    def spans(self, size: int) -> bool:
        """Does `open` serve this size? One row is another kernel: its stride says nothing."""
        return self.open is not None and self.low <= size <= self.high and size > 1

    def again(self, size: int) -> bool:
        """Was this size met lately? What is met once is not worth remembering: objects that stay make Python's collector run, which
        takes longer than a call."""
        slot = size % SLOTS
        if self._met[slot] == size:
            return True
        self._met[slot] = size
        return False

    def run(self, lead: Lead) -> Callable[..., Any]:
        """The function for leading sizes that it reaches to."""
        size = math.prod(lead)
        made: Callable[..., Any] = self.plan.straight.run({name: rule(lead, size) for name, rule in (self._rules or {}).items()})
        return made

    def _learnt(self, differ: set[str]) -> "dict[str, Rule] | None":
        """How each constant follows from the size; None where it does so in a way not known here."""
        own, count = self.plan.straight.constants, len(self._lead)
        rules: dict[str, Rule] = {}
        for name, value in own.items():
            if name.startswith("_shape_") and value[:count] == self._lead:
                rules[name] = _shape(value[count:])
                strides = name.replace("_shape_", "_strides_", 1)
                rules[strides] = _strides(own[strides])
            elif name == "_grid0":  # may be the same for two sizes and yet depend on them
                if (grid := _grid(self.plan.layout, value, self._size)) is None:
                    return None
                rules[name] = grid
            elif name in differ and name.startswith("_k0_") and type(value) is int and value % self._size == 0:
                rules[name] = _multiple(value // self._size)
        return rules if differ <= rules.keys() else None


# A constant of a plan as a function of the leading sizes and their product.
Rule = Callable[[Lead, int], Any]


def _shape(rest: tuple[int, ...]) -> Rule:
    return lambda lead, _size: (*lead, *rest)


def _strides(strides: tuple[int, ...]) -> Rule:
    return lambda lead, _size: _joined(strides, lead)


def _multiple(unit: int) -> Rule:
    return lambda _lead, size: unit * size


def _grid(layout: Layout, grid: int, size: int) -> Rule | None:
    """Programs along axis 0: blocks of what is open, times what is not."""
    if layout.form.walk == LINEAR:
        name, step = "n", int(layout.constants["BLOCK"])
    elif layout.form.outer:
        name, step = "n0", 1
    else:
        name, step = "rows", int(layout.constants["ROWS"]) * int(layout.constants.get("STEPS", 1))
    value = layout.arguments[name].value
    blocks = -(-value // step)
    if value % size or grid % blocks:
        return None
    unit, times = value // size, grid // blocks
    return lambda _lead, rows: -(-(unit * rows) // step) * times


def _same(a: Any, b: Any) -> bool:
    plain = type(a) is type(b) and isinstance(a, int | float | str | tuple)
    return a is b or (plain and repr(a) == repr(b))
