"""Calls drawn by hypothesis: shapes, broadcast patterns, layouts, dtypes and values; and the smallest one that still fails.

Derandomized: the same op is asked the same questions in every run.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, NoSuchExample, Unsatisfiable

from rafters.engine.spec import INDEX, TENSOR, Parameter
from rafters.operator.op import Op
from rafters.testing.calls import Call, Rows, Shape, Tensor, numbers_for
from rafters.testing.cases import argument_dtype
from rafters.testing.layouts import LAYOUTS

SIZES = (1, 2, 3, 5, 7, 8, 16, 31, 33, 64, 65, 129, 200)
NUMBERS = (2, 0.5, -1)


@dataclass(frozen=True)
class Space:
    """Which calls are drawn; what stands first in a list is what a failing call is reduced to."""

    dtypes: tuple[torch.dtype, ...]
    layouts: tuple[str, ...] = tuple(LAYOUTS)
    values: tuple[str, ...] = ("counting", "ordinary", "awkward")
    broadcast: bool = True
    numbers: bool = False
    elements: int = 1500
    sizes: tuple[int, ...] = SIZES
    ranks: tuple[int, int] = (0, 4)
    long: int = 2000  # of a 1-d call: some blocks
    outside: bool = True  # indices that lie outside their table
    varied: bool = True  # numbers other than the defaults
    label: str = ""


def calls(op: Op, space: Space) -> st.SearchStrategy[Call]:
    """Calls of `op` in `space`."""

    @st.composite
    def draw_call(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Call:
        return _Drawing(op, space, draw).call()

    return draw_call()


class _Drawing:
    """One call being drawn."""

    def __init__(self, op: Op, space: Space, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self.op, self.space, self.draw = op, space, draw
        self.views = list(op.spec.views.values())
        outputs = op.spec.outputs
        self.gathered = {*(v.source for v in self.views if v.rows), *(o.into for o in outputs if o.rows and o.into)}
        self.halved = {*(v.source for v in self.views if v.part), *(o.into for o in outputs if o.part and o.into)}
        self.dtype = draw(st.sampled_from(space.dtypes))
        self.domain = self._domain()
        self.leading = max(1, len(self.domain) - 2) if self.gathered else 0
        self.table = draw(st.integers(1, 40)) + (math.prod(self.domain[: self.leading]) if self._scatters() else 0)
        self.seed = draw(st.integers(0, 3))

    def _scatters(self) -> bool:
        return any(o.rows for o in self.op.spec.outputs)

    def _domain(self) -> Shape:
        first, last = self.space.ranks
        least = max(first, int(bool(self.halved) or self.op.spec.rowwise), 2 if self.gathered else 0)
        rank = self.draw(st.integers(least, max(last, least)))
        if rank == 1:
            return (self.draw(st.integers(1, self.space.long)),)
        shape, room = [], self.space.elements
        for _ in range(rank):
            size = self.draw(st.sampled_from([s for s in self.space.sizes if s <= room]))
            shape.append(size)
            room //= size
        return tuple(shape)

    def call(self) -> Call:
        tensors = [p for p in self.op.spec.parameters if p.kind == TENSOR]
        whole = self.draw(st.sampled_from(tensors)).name  # at least one has the whole shape
        return Call(self.op, tuple(self._argument(p, p.name == whole) for p in self.op.spec.parameters), self.space.label)

    def _argument(self, p: Parameter, whole: bool) -> Any:
        draw, space = self.draw, self.space
        if p.kind == INDEX:
            dtype = draw(st.sampled_from((torch.int64, torch.int32)))
            outside = draw(st.integers(0, 2)) if space.outside else 0
            return Rows(self.domain[: self.leading], self.table, dtype, self.seed, outside, self._scatters())
        if p.kind != TENSOR:
            return self._number(p)
        if p.optional and draw(st.booleans()):
            return None
        if (
            space.numbers
            and not whole
            and not p.mutated
            and not self.op.spec.rowwise
            and p.name not in self.gathered
            and draw(st.booleans())
        ):
            return draw(st.sampled_from([n for n in NUMBERS if number_fits(self.op, p.name, n, self.dtype)] or [1]))
        shape = self._shape(p, whole)
        layout = draw(st.sampled_from([name for name in space.layouts if name != "expanded" or not p.mutated]))
        values = draw(st.sampled_from(space.values))
        # no two arguments are equal: at a tie many functions have a kink
        seed = 10 * self.op.spec.parameters.index(p) + draw(st.integers(0, 7))
        return Tensor(shape, argument_dtype(self.op, p.name, self.dtype), layout, values, seed)

    def _shape(self, p: Parameter, whole: bool) -> Shape:
        domain = (self.table, *self.domain[self.leading :]) if p.name in self.gathered else self.domain
        kept = 1 if p.name in self.gathered else 0
        if not whole and not p.mutated and self.space.broadcast:
            row = int(p.name in self.halved)  # the last dimension stays
            ones = [self.draw(st.booleans()) for _ in domain[kept : len(domain) - row]] + [False] * row
            domain = (*domain[:kept], *(1 if one else n for n, one in zip(domain[kept:], ones, strict=True)))
            if not kept:
                drop = self.draw(st.integers(0, len(domain) - row))
                domain = domain[drop:]
        if p.name in self.halved and self._halves(p.name):
            domain = (*domain[:-1], 2 * domain[-1])
        return domain

    def _halves(self, name: str) -> bool:
        """Is the argument read, or written, in halves of the domain (and not halves of halves)?"""
        return any(v.source == name and v.part for v in self.views) or any(
            o.into == name and o.part for o in self.op.spec.outputs
        )

    def _number(self, p: Parameter) -> Any:
        return self.draw(st.sampled_from(numbers_for(p) if self.space.varied else numbers_for(p)[:1]))


def number_fits(op: Op, parameter: str, number: float, dtype: torch.dtype) -> bool:
    """May this Python number stand in the tensor's place?"""
    accept = op.spec.accepts.get(parameter)
    if accept == "bool" or (accept == "float" and not isinstance(number, float)):
        return False
    return not (accept == "int" and isinstance(number, float)) and not (number < 0 and dtype is torch.uint8)


def _rules(count: int) -> settings:
    # twice the count: about half of what is drawn was drawn before
    return settings(
        max_examples=2 * count, derandomize=True, database=None, deadline=None, phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck), print_blob=False,
    )  # fmt: skip


def drawn(op: Op, space: Space, count: int) -> Iterator[Call]:
    """At most `count` different calls, the same ones in every run."""
    kept: dict[Call, None] = {}

    @settings(_rules(count), phases=(Phase.generate,))
    @given(calls(op, space))
    def collect(call: Call) -> None:
        kept.setdefault(call)

    try:
        collect()
    except Unsatisfiable:
        return
    yield from itertools.islice(kept, count)


def smallest(op: Op, space: Space, fails: Callable[[Call], bool], known: Sequence[Call], tries: int = 150) -> Call:
    """The smallest call found for which `fails`; at worst the smallest of those known."""
    best = min(known, key=lambda call: call.size)

    def smaller(call: Call) -> bool:
        return call.size < best.size and fails(call)

    try:
        return find(calls(op, space), smaller, settings=_rules(tries))
    except (NoSuchExample, Flaky):
        return best
