"""What a layout is made from and what it is: operands, arguments of a kernel, the whole."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rafters.engine.layouts.form import COLUMN, TILE, Form, Slot
from rafters.engine.layouts.geometry import Shape, Strides

MAX_DIMENSIONS = 8
MAX_ROW = 1 << 20  # Triton's largest tile
INT32_REACH = 2**31 - 2**16  # offsets of a last block may pass the end by less than the largest block


@dataclass(frozen=True)
class Operand:
    """One tensor of a call as the kernel will see it: after views, before broadcasting. Strides in elements, `align` in bytes.

    `index` names the operand that selects along `index_stride`, of which there are `index_size`. `total` is the dtype in which an
    output is summed over the dimensions that it lacks; None where it lacks none.
    """

    name: str
    dtype: torch.dtype
    shape: Shape
    strides: Strides
    align: int = 16
    index: str | None = None
    index_stride: int = 0
    index_size: int = 0
    total: torch.dtype | None = None


@dataclass(frozen=True)
class Argument:
    """A run-time integer of the kernel: its value, whether it is 64 bits wide, and what is known to divide it."""

    value: int
    wide: bool = False
    divisor: int = 1
    constant: bool = False


@dataclass(frozen=True)
class Partial:
    """Sums of blocks: a dense buffer of `shape` in the dtype of the sum; `result` is where they go, over the same dimensions."""

    shape: Shape
    result: Operand


@dataclass(frozen=True)
class Layout:
    """Everything a launch needs beside the pointers, the numbers and the dtypes.

    `partials`: outputs of which this kernel leaves sums of blocks, for a further kernel to sum; `left`: outputs that it does not
    make, because their sums run over other dimensions.
    """

    form: Form
    arguments: dict[str, Argument]
    constants: dict[str, Any]
    grid: int
    warps: int
    align: dict[str, int]
    wide: bool
    domain: Shape = field(default=())
    partials: dict[str, Partial] = field(default_factory=dict)
    left: tuple[str, ...] = ()


def alignment(address: int, itemsize: int) -> int:
    """The alignment class of an address: 16, 8, 4 bytes, or that of the element."""
    for bytes_ in (16, 8, 4):
        if address % bytes_ == 0:
            return max(bytes_, itemsize)
    return itemsize


def divisor(value: int) -> int:
    return math.gcd(value, 16) or 16


def next_power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True)
class Config:
    """Elements a program and its warps; None where the closed form decides. `split=False` masks every block (for studies)."""

    block: int | None = None
    warps: int = 4
    split: bool = True
    provable: bool = False


def slots(entries: Sequence[Operand | Slot], kinds: dict[str, str]) -> tuple[Slot, ...]:
    return tuple(e if isinstance(e, Slot) else Slot(e.name, kinds[e.name], e.index) for e in entries)


def vector(memory: Sequence[Operand], kinds: dict[str, str]) -> int:
    """Elements in 16 bytes of the narrowest operand that varies along the row."""
    return 16 // min((o.dtype.itemsize for o in memory if kinds[o.name] in (TILE, COLUMN)), default=4)
