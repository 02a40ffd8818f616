"""PyTorch's own samples for its operators, as calls of ours.

An adapter reorders the arguments of one sample; what has no counterpart here it turns away by a rule, whose name is counted
(test_opinfo.py pins the counts), so that nothing is dropped in silence.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from rafters import ops
from rafters.dtypes import FLOAT8, SUPPORTED

ALPHA = "alpha whose negative the dtype does not have"
BOOL = "clamp of bool, which torch.clamp refuses as well"
COMPLEX = "complex"
NUMBERS = "numbers only"
ROUNDING = "rounding_mode"
VALUE = "addcmul's value, a third factor"
RULES = {ALPHA, BOOL, COMPLEX, NUMBERS, ROUNDING, VALUE}


class Filtered(Exception):
    """A sample that has no counterpart; the text is the rule."""


@dataclass(frozen=True)
class Call:
    """One sample: our op and its arguments; PyTorch's own call of it."""

    op: Any
    arguments: tuple[Any, ...]
    peer: Callable[[], torch.Tensor]
    wide: Callable[[], torch.Tensor]  # the same in float64 on the CPU

    def __str__(self) -> str:
        told = (f"{v.dtype} {tuple(v.shape)} {v.stride()}" if isinstance(v, torch.Tensor) else repr(v) for v in self.arguments)
        return f"{self.op.name}({', '.join(told)})"


def _same(op: Any) -> Callable[..., Any]:
    return lambda *arguments: (op, arguments)


def _plus(sign: int, swapped: bool = False) -> Callable[..., Any]:
    """x + alpha * y and its like; with an alpha it is `mul_add`."""

    def adapt(x: Any, y: Any, alpha: Any = None) -> Any:
        x, y = (y, x) if swapped else (x, y)
        if alpha is None or alpha == 1:
            return (ops.add if sign > 0 else ops.sub), (x, y)
        dtype = torch.result_type(x, y)
        alpha = bool(alpha) if dtype is torch.bool else alpha
        if sign * alpha < 0 and not dtype.is_signed:
            raise Filtered(ALPHA)
        return ops.mul_add, (y, alpha if sign > 0 else -alpha, x)

    return adapt


def _addcmul(op: Any) -> Callable[..., Any]:
    def adapt(x: Any, a: Any, b: Any, value: Any = 1) -> Any:
        if value != 1:
            raise Filtered(VALUE)
        return op, (a, b, x)

    return adapt


def _div(x: Any, y: Any, rounding_mode: Any = None) -> Any:
    if rounding_mode is not None:
        raise Filtered(ROUNDING)
    return ops.div, (x, y)


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 (as torch.clamp names them)
    if isinstance(x, torch.Tensor) and x.dtype is torch.bool:
        raise Filtered(BOOL)
    return ops.clamp, (x, min, max)


# (OpInfo, our op) -> how its arguments become ours. `where` gives its samples as (x, condition, y).
ADAPTERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("add", "add"): _plus(1),
    ("sub", "sub"): _plus(-1),
    ("rsub", "sub"): _plus(-1, swapped=True),
    ("mul", "mul"): _same(ops.mul),
    ("mul", "scale"): _same(ops.scale),
    ("div.no_rounding_mode", "div"): _div,
    ("div.trunc_rounding", "div"): _div,
    ("div.floor_rounding", "div"): _div,
    ("true_divide", "div"): _div,
    ("maximum", "maximum"): _same(ops.maximum),
    ("minimum", "minimum"): _same(ops.minimum),
    ("max.binary", "maximum"): _same(ops.maximum),
    ("min.binary", "minimum"): _same(ops.minimum),
    ("clamp", "clamp"): _clamp,
    ("clamp_min", "clamp"): lambda x, bound: _clamp(x, min=bound),
    ("clamp_max", "clamp"): lambda x, bound: _clamp(x, max=bound),
    ("nn.functional.relu6", "clamp"): lambda x: _clamp(x, 0, 6),
    ("where", "where"): lambda x, condition, y: (ops.where, (condition, x, y)),
    ("lerp", "lerp"): _same(ops.lerp),
    ("addcmul", "mul_add"): _addcmul(ops.mul_add),
    ("addcmul", "scale_bias"): _addcmul(ops.scale_bias),
    ("nn.functional.relu", "relu"): _same(ops.relu),
    ("nn.functional.silu", "silu"): _same(ops.silu),
    ("nn.functional.gelu", "gelu"): lambda x, approximate="none": (ops.gelu if approximate == "none" else ops.gelu_tanh, (x,)),
    ("sigmoid", "sigmoid"): _same(ops.sigmoid),
    ("tanh", "tanh"): _same(ops.tanh),
}
WITHOUT = {"softcap", "silu_mul"}  # PyTorch has no single operator for these; tests/ops compares them with compositions
INFOS = {info.full_name: info for info in op_db}


def dtypes_of(name: str, device: str) -> list[torch.dtype]:
    """What PyTorch's op takes there, as its OpInfo declares it."""
    return sorted(INFOS[name].supported_dtypes(torch.device(device).type), key=str)


def calls(name: str, op: str, dtype: torch.dtype, device: str, kind: str, **options: Any) -> Iterator[Call | str]:
    """Each sample of one OpInfo as a call, or the rule that turns it away."""
    if dtype.is_complex:
        yield COMPLEX
        return
    info = INFOS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in getattr(info, f"{kind}_inputs")(torch.device(device), dtype, **options):
            yield adapted(info, op, sample)


def adapted(info: Any, op: str, sample: Any) -> Call | str:
    """One sample as a call, or the rule that turns it away."""
    values = (sample.input, *sample.args)
    every = (*values, *sample.kwargs.values())
    if any(isinstance(v, complex) or (isinstance(v, torch.Tensor) and v.is_complex()) for v in every):
        return COMPLEX
    if not any(isinstance(v, torch.Tensor) for v in every):
        return NUMBERS
    try:
        ours, arguments = ADAPTERS[info.full_name, op](*values, **sample.kwargs)
    except Filtered as rule:
        return str(rule)

    def peer() -> torch.Tensor:
        return info.op(*values, **sample.kwargs)

    def wide() -> torch.Tensor:
        keep = torch.bool if info.name == "where" else None
        here, options = [_wide(v, keep) for v in values], {k: _wide(v, keep) for k, v in sample.kwargs.items()}
        return _gelu(*here, **options) if info.name == "nn.functional.gelu" else info.op(*here, **options)

    return Call(ours, arguments, peer, wide)


def _wide(value: Any, keep: torch.dtype | None) -> Any:
    return value.detach().cpu().double() if isinstance(value, torch.Tensor) and value.dtype is not keep else value


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """PyTorch's own is no truth in the negative tail, where its sums cancel."""
    import mpmath

    def tanh_form(v: Any) -> Any:
        return v * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (v + mpmath.mpf("0.044715") * v**3))) / 2

    with mpmath.workdps(50):
        one = tanh_form if approximate == "tanh" else lambda v: v * mpmath.ncdf(v)
        made = [float(one(mpmath.mpf(v))) for v in x.flatten().tolist()]
    return torch.tensor(made, dtype=torch.float64).reshape(x.shape)


def refused_dtypes(name: str, device: str) -> list[torch.dtype]:
    """Dtypes of ours that PyTorch's op does not take. (float8, which PyTorch computes nothing in, is ours alone.)"""
    known = SUPPORTED - FLOAT8 - set(INFOS[name].supported_dtypes(torch.device(device).type))
    return sorted(known, key=str)


def error_inputs(name: str, device: str) -> list[Any]:
    """PyTorch's error cases of an op, where it declares any."""
    return list(INFOS[name].error_inputs(device)) if INFOS[name].error_inputs_func else []
