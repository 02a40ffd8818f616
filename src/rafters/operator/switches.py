"""Switches of the whole library, for a block of code: `with rafters.options(checked=True): ...`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Options:
    """`pdl`: programmatic dependent launch where it pays (environment: RAFTERS_PDL=0 turns it off)."""

    pdl: bool = os.environ.get("RAFTERS_PDL", "1") != "0"


current = Options()


@contextmanager
def options(*, pdl: bool | None = None) -> Iterator[Options]:
    """Sets switches for a block; they are process-wide, not per thread."""
    before = current.pdl
    if pdl is not None:
        current.pdl = pdl
    try:
        yield current
    finally:
        current.pdl = before
