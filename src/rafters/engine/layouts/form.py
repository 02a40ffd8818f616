"""The form of a kernel: everything its text depends on, and nothing else.

A form is small and finite: which walk over memory, how each operand lies in it, whether an operand is addressed through an index.
Sizes, strides, dtypes, alignment and block sizes are arguments or compile-time parameters of the same text.
"""

from dataclasses import dataclass

from rafters.trace.nodes import COLUMN as COLUMN
from rafters.trace.nodes import POINT as POINT
from rafters.trace.nodes import ROW as ROW
from rafters.trace.nodes import TILE as TILE

# TILE, COLUMN, ROW, POINT: how an operand varies over the two innermost dimensions of the walk, as in a trace.
# A parameter of the body that is no memory operand.
NUMBER, CONSTEXPR, ABSENT = "number", "constexpr", "absent"

FLAT, ROWS, STRIDED = "flat", "rows", "strided"
LINEAR, TILED, WHOLE_ROWS, SUMMED = "linear", "tiled", "whole_rows", "summed"


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter of the body, or one output, as the kernel sees it.

    `index` names the slot whose values are added (times a stride) to this one's address; an index outside the operand reads NaN
    (or 0) and writes nothing. `summed`: an output of which a program writes the sum over its rows and columns, as far as the kind
    does not vary along them.
    """

    name: str
    kind: str
    index: str | None = None
    summed: bool = False

    @property
    def in_memory(self) -> bool:
        return self.kind in (TILE, COLUMN, ROW, POINT)


@dataclass(frozen=True, slots=True)
class Form:
    """`walk` is linear (one dimension, dense), tiled (rows x columns in blocks, outer dimensions by the program), whole_rows, or
    summed (tiled, or of a row-wise op whole rows; a program walking down several blocks)."""

    layout: str
    walk: str
    outer: int
    inputs: tuple[Slot, ...]
    indices: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    split: bool = True

    @property
    def memory(self) -> tuple[Slot, ...]:
        """The slots that have a pointer, in the order of the kernel's arguments."""
        return tuple(s for s in (*self.inputs, *self.indices, *self.outputs) if s.in_memory)


def row_kind(shape: tuple[int, ...], domain: tuple[int, ...]) -> str:
    """How an operand varies over the rows and columns of a row-wise op.

    By its shape, never by strides or the number of rows: one row, or a row repeated, has to get the kernel that many rows get.
    """
    along = bool(shape) and shape[-1] == domain[-1]
    down = any(n != 1 for n in shape[:-1]) or (len(shape) == len(domain) and all(n == 1 for n in domain[:-1]))
    return (TILE if down else COLUMN) if along else (ROW if down else POINT)
