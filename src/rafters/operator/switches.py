"""Switches of the whole library, for a block of code: `with rafters.options(checked=True): ...`."""

import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rafters.engine.variant import permission


@dataclass
class Options:
    """`pdl`: programmatic dependent launch where it pays (environment: RAFTERS_PDL=0 turns it off)."""

    pdl: bool = os.environ.get("RAFTERS_PDL", "1") != "0"


current = Options()
ops: "weakref.WeakSet[Any]" = weakref.WeakSet()  # every op, so that its plans can be dropped


@contextmanager
def options(*, pdl: bool | None = None) -> Iterator[Options]:
    """Sets switches for a block; they are process-wide, not per thread."""
    before = current.pdl
    try:
        _switch(before if pdl is None else pdl)
        yield current
    finally:
        _switch(before)


def _switch(pdl: bool) -> None:
    """What an op has planned holds for the switches of then: a change makes every op plan anew (compiled variants stay)."""
    if pdl != current.pdl:
        current.pdl = pdl
        for op in tuple(ops):
            op.forget_plans()


class no_compile:  # noqa: N801  (a verb: `with rafters.no_compile():`)
    """From here on, a call that needs a kernel which is not compiled raises CompileError and says what to warm.

    In a `with` statement for the block; on its own until `rafters.no_compile(False)`. For the whole process, not a thread.
    """

    def __init__(self, on: bool = True) -> None:
        self._before = permission.compile
        permission.compile = not on

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_error: object) -> None:
        permission.compile = self._before


def warm(named: Iterable[Any], *, dtypes: Sequence[Any], **what: Any) -> int:
    """`op.warm(dtypes=..., layouts=..., widths=...)` for each of these ops; returns how many variants they have together."""
    return sum(op.warm(dtypes=dtypes, **what) for op in named)


def variants() -> list[dict[str, Any]]:
    """The compiled variants of every op in this process, each with its op's name."""
    known = sorted(ops, key=lambda op: str(op.qualified_name))
    return [{"op": op.qualified_name, **v} for op in known for v in op.variants()]
