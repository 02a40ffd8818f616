"""Dtypes of a call: PyTorch's promotion, the dtype each value is computed in, and the dtype of each output."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rafters.dtypes import BOOL, FLOAT, FLOAT8, INT, SUPPORTED, category, compute_dtype
from rafters.engine.spec import Output
from rafters.errors import ArgumentError, argument_error

DIMENSIONED, ZERO_DIM, NUMBER = 0, 1, 2


@dataclass(frozen=True)
class Typed:
    """An argument as promotion sees it: a tensor with dimensions, a 0-d tensor, or a Python number."""

    name: str
    dtype: torch.dtype
    rank: int


def number_dtype(value: Any, kind: type | None = None) -> torch.dtype:
    """The dtype with which a Python number takes part in promotion; a parameter declared float takes any number as a float."""
    if kind is float:
        return torch.get_default_dtype()
    return (
        torch.bool
        if isinstance(value, bool)
        else torch.int64
        if isinstance(value, int | torch.SymInt)
        else torch.get_default_dtype()
    )


def common_dtype(op: str, arguments: Sequence[Typed]) -> torch.dtype:
    """PyTorch's result type: tensors with dimensions first, 0-d tensors and numbers only where their category is higher."""
    best: list[torch.dtype | None] = [None, None, None]
    for argument in arguments:
        if argument.dtype not in SUPPORTED:
            wanted = "one of " + ", ".join(sorted(str(d).removeprefix("torch.") for d in SUPPORTED))
            raise argument_error(op, argument.name, f"dtype {argument.dtype}", wanted)
        known = best[argument.rank]
        best[argument.rank] = argument.dtype if known is None else _promote(op, argument.name, known, argument.dtype)
    result = _combine(op, best[0], _combine(op, best[1], best[2]))
    if result is None:
        raise ArgumentError(f"{op}: no tensor argument was given")
    return result


def _promote(op: str, name: str, a: torch.dtype, b: torch.dtype) -> torch.dtype:
    if torch.bool in (a, b):  # torch.promote_types refuses a bool beside a float8
        return b if a is torch.bool else a
    if a is not b and (a in FLOAT8 or b in FLOAT8):
        raise argument_error(op, name, f"dtype {b} beside {a}", "the same float8 dtype (PyTorch does not promote float8)")
    return torch.promote_types(a, b)


def _combine(op: str, higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return lower if higher is None else higher
    if category(lower) <= category(higher) or category(higher) == FLOAT:
        return higher
    return _promote(op, "", higher, lower)


def value_dtype(argument: Typed, common: torch.dtype) -> torch.dtype:
    """The dtype an argument is computed in.

    Arguments of the result's category share its compute dtype; lower categories keep their own (an integer index beside floats stays
    exact, a mask stays a mask). A Python number takes the result's.
    """
    if argument.rank == NUMBER:
        return compute_dtype(common)
    own = category(argument.dtype)
    if own == category(common) and own != BOOL:
        return compute_dtype(common)
    return compute_dtype(argument.dtype)


def output_dtype(op: str, output: Output, common: torch.dtype, dtypes: dict[str, torch.dtype]) -> torch.dtype:
    if output.into is not None:
        target = dtypes[output.into]
        if category(common) > category(target):
            raise argument_error(op, output.into, f"dtype {target}", f"a dtype that can hold a result of dtype {common}")
        return target
    if isinstance(output.dtype, torch.dtype):
        return output.dtype
    if output.dtype is None or output.dtype == "float":
        return lifted(common) if output.dtype == "float" else common
    if output.dtype == "bool":
        return torch.bool
    if output.dtype not in dtypes:
        raise ArgumentError(f"{op}: the result takes the dtype of {output.dtype!r}, which is no tensor in this call")
    return dtypes[output.dtype]


def lifted(common: torch.dtype) -> torch.dtype:
    """Integers and bools become the default floating-point dtype, as in torch.exp or torch.div."""
    return common if category(common) == FLOAT else torch.get_default_dtype()


def scalar_dtype(declared: type, value: bool | int | float, common: torch.dtype) -> torch.dtype:
    """The dtype of a declared scalar: a float follows the computation, an int that of integer results."""
    if declared is float:
        return torch.float64 if common is torch.float64 else torch.float32
    if category(common) == INT:
        return common
    # a symbolic integer (under torch.compile) must not be asked for its value: that would fix it
    return torch.int32 if isinstance(value, int) and -(2**31) <= value < 2**31 else torch.int64


def totals(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values that end up in `dtype` are summed."""
    if not dtype.is_floating_point:
        return torch.int64
    return torch.float64 if dtype is torch.float64 else torch.float32


ACCEPTS: dict[str, tuple[Callable[[torch.dtype], bool], str]] = {
    "float": (lambda d: d.is_floating_point, "a floating-point dtype"),
    "bool": (lambda d: d is torch.bool, "torch.bool"),
    "int": (lambda d: not d.is_floating_point and d is not torch.bool, "an integer dtype"),
    "number": (lambda d: d is not torch.bool, "a dtype other than torch.bool"),
}
