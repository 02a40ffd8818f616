"""Switches of the whole library, for a block of code: `with rafters.options(checked=True): ...`."""

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


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
