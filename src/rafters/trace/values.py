"""A value inside a traced body: a torch tensor that follows Triton's typing rules.

The rules are those of triton.language.semantic (computation_type_impl, integer_promote_impl), which a test compares with ours for
every pair of dtypes. A Python number is a literal: it takes part in promotion only where its category is higher.
"""

from collections.abc import Callable
from typing import Any

import torch

from rafters import dtypes

Number = bool | int | float
_HALVES = (torch.float16, torch.bfloat16)
_RANK = {torch.bool: 1, torch.uint8: 8, torch.int8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}
_UNSIGNED = (torch.bool, torch.uint8)  # as Triton has it


def literal_dtype(number: Number) -> torch.dtype:
    """The dtype of a Python number that meets no tensor of its own category."""
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, int):
        return torch.int32 if -(2**31) <= number < 2**31 else torch.int64
    magnitude = abs(number)
    single = (
        magnitude == 0 or magnitude != magnitude or magnitude == float("inf") or 2.0**-126 <= magnitude <= 3.4028234663852886e38
    )
    return torch.float32 if single else torch.float64


def _kind(dtype: torch.dtype) -> int:
    """bool < integer < float, as Triton orders them for literals."""
    return 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1


def promote(a: torch.dtype, a_literal: bool, b: torch.dtype, b_literal: bool, division: bool = False) -> torch.dtype:
    """The dtype in which Triton computes `a op b`; `division` is true for / and %."""
    if a_literal != b_literal:
        number, tensor = (a, b) if a_literal else (b, a)
        if _kind(number) <= _kind(tensor):
            return torch.float32 if division and tensor in _HALVES else tensor
    for wide in (torch.float64, torch.float32):
        if wide in (a, b):
            return wide
    if torch.float16 in (a, b):
        return torch.float32 if division else torch.float16
    if torch.bfloat16 in (a, b):
        return torch.bfloat16 if a is b and not division else torch.float32
    if a.is_floating_point and b.is_floating_point:
        return a if a is b else torch.float16
    if a.is_floating_point or b.is_floating_point:
        raise TypeError(f"Triton cannot combine {a} and {b}; cast one of them with .to(tl.float32)")
    a_unsigned, b_unsigned = a in _UNSIGNED, b in _UNSIGNED
    if a_unsigned == b_unsigned:
        return a if _RANK[a] > _RANK[b] else b
    if division:
        raise TypeError(f"Triton cannot divide {a} by {b}: their signedness differs; cast one of them")
    unsigned, signed = (a, b) if a_unsigned else (b, a)
    return unsigned if _RANK[unsigned] >= _RANK[signed] else signed


METHODS: dict[str, Callable[..., Any]] = {}  # x.exp(), x.abs() ...: filled by the shim, which knows what they mean


class Value:
    """A tensor inside a traced body."""

    __slots__ = ("tensor",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @property
    def dtype(self) -> "DType":
        return DType(self.tensor.dtype)

    type = dtype

    def to(self, dtype: "DType", fp_downcast_rounding: Any = None, bitcast: bool = False) -> "Value":
        target = torch_dtype(dtype)
        if fp_downcast_rounding not in (None, "rtne"):
            raise TypeError(f"rounding {fp_downcast_rounding!r} has no PyTorch meaning; give the op a reference=")
        if bitcast:
            return Value(self.tensor.view(target))
        return Value(self.tensor if self.tensor.dtype is target else self.tensor.to(target))

    def __bool__(self) -> bool:
        raise TypeError("a tensor decides no branch: every element has its own value; use tl.where(condition, a, b)")

    def __index__(self) -> int:
        raise TypeError("a tensor or scalar has no value when a kernel is compiled; annotate the parameter tl.constexpr")

    __int__ = __index__

    def __iter__(self) -> Any:
        raise TypeError("a tensor of a body cannot be unpacked: it stands for one element")

    def __pow__(self, other: Any) -> "Value":
        raise TypeError("Triton has no **; write x * x, or lang.exp(y * lang.log(x))")

    __rpow__ = __pow__

    def __neg__(self) -> "Value":
        return Value(torch.neg(self.tensor))

    def __pos__(self) -> "Value":
        return self

    def __invert__(self) -> "Value":
        return Value(torch.bitwise_not(self.tensor))

    def __getattr__(self, name: str) -> Any:
        function = METHODS.get(name)
        if function is None:
            raise AttributeError(f"a tensor of a body has no {name!r}")
        return lambda *args, **kwargs: function(self, *args, **kwargs)


def raw(operand: Any) -> tuple[Any, torch.dtype, bool]:
    """(tensor or number, dtype, is literal) of an operand."""
    if isinstance(operand, Value):
        return operand.tensor, operand.tensor.dtype, False
    operand = getattr(operand, "value", operand)
    if isinstance(operand, bool | int | float):
        return operand, literal_dtype(operand), True
    if operand is None:
        raise TypeError("None (an optional argument that is absent) is no value; branch on it: `if bias is not None:`")
    raise TypeError(f"{type(operand).__name__} cannot be used as a value in a body")


def unify(a: Any, b: Any, division: bool = False) -> tuple[Any, Any, torch.dtype]:
    """Both operands in Triton's computation dtype; a literal becomes a tensor only where both are literals."""
    x, x_dtype, x_literal = raw(a)
    y, y_dtype, y_literal = raw(b)
    dtype = promote(x_dtype, x_literal, y_dtype, y_literal, division)
    return _cast(x, dtype, x_literal), _cast(y, dtype, y_literal), dtype


def _cast(x: Any, dtype: torch.dtype, literal: bool) -> torch.Tensor:
    if literal:
        if x < 0 and dtype in _UNSIGNED:
            raise TypeError(f"Triton refuses the negative number {x} beside an unsigned tensor; cast the tensor first")
        # x + 0 for floats would not do: Triton makes every zero constant a plain +0, so a literal -0.0 is one
        return torch.full((), x if x else abs(x), dtype=dtype)
    tensor: torch.Tensor = x
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def lift(operand: Any) -> torch.Tensor:
    """The operand as a tensor."""
    x, dtype, literal = raw(operand)
    return _cast(x, dtype, literal)


def _binary(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[[Value, Any], Value]:
    def method(self: Value, other: Any) -> Value:
        x, y, _ = unify(self, other)
        return Value(function(x, y))

    return method


def _reflected(function: Callable[[Value, Any], Value]) -> Callable[[Value, Any], Value]:
    return lambda self, other: function(other if isinstance(other, Value) else Value(lift_like(other, self)), self)


def lift_like(number: Any, other: Value) -> torch.Tensor:
    """A literal on the left of an operator, in the dtype that it would have on the right of it."""
    x, dtype, literal = raw(number)
    return _cast(x, promote(dtype, literal, other.tensor.dtype, False), literal)


def _add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.bitwise_xor(x, y) if x.dtype is torch.bool else x + y  # an add of one bit drops the carry


def _sub(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.bitwise_xor(x, y) if x.dtype is torch.bool else x - y


def _integers(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], sign: str) -> Callable[[Value, Any], Value]:
    def method(self: Value, other: Any) -> Value:
        x, y, dtype = unify(self, other)
        if dtype.is_floating_point:
            raise TypeError(f"{sign} of {dtype} values is not defined in Triton")
        return Value(function(x, y))

    return method


def _true_divide(self: Value, other: Any) -> Value:
    x, y, dtype = unify(self, other, division=True)
    if not dtype.is_floating_point:
        x, y = x.to(torch.float32), y.to(torch.float32)
    return Value(x / y)


def _floor_divide(self: Value, other: Any) -> Value:
    """Triton's // truncates: -7 // 2 == -3."""
    x, y, dtype = unify(self, other, division=True)
    if dtype.is_floating_point:
        raise TypeError("// of floating-point values is not defined in Triton; use tl.floor(x / y)")
    return Value(torch.div(x, y, rounding_mode="trunc"))


def _modulo(self: Value, other: Any) -> Value:
    """Triton's % has the sign of the dividend: -7 % 2 == -1."""
    x, y, _ = unify(self, other, division=True)
    return Value(torch.fmod(x, y))


_ARITHMETIC: dict[str, Callable[[Value, Any], Value]] = {
    "add": _binary(_add),
    "sub": _binary(_sub),
    "mul": _binary(lambda x, y: torch.bitwise_and(x, y) if x.dtype is torch.bool else x * y),
    "truediv": _true_divide,
    "floordiv": _floor_divide,
    "mod": _modulo,
    "and": _integers(torch.bitwise_and, "&"),
    "or": _integers(torch.bitwise_or, "|"),
    "xor": _integers(torch.bitwise_xor, "^"),
    "lshift": _integers(torch.bitwise_left_shift, "<<"),
    "rshift": _integers(torch.bitwise_right_shift, ">>"),
}
for _name, _method in _ARITHMETIC.items():
    setattr(Value, f"__{_name}__", _method)
    setattr(Value, f"__r{_name}__", _reflected(_method))
for _name, _function in {"lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne}.items():
    setattr(Value, f"__{_name}__", _binary(_function))


class DType:
    """A dtype as a body sees it: `x.dtype == tl.float32`, `x.dtype.is_floating()`."""

    __slots__ = ("torch",)

    def __init__(self, dtype: torch.dtype) -> None:
        self.torch = dtype

    def __eq__(self, other: object) -> bool:
        return torch_dtype(other) is self.torch

    def __hash__(self) -> int:
        return hash(self.torch)

    def __repr__(self) -> str:
        return f"tl.{dtypes.TRITON_NAMES[self.torch]}"

    @property
    def scalar(self) -> "DType":
        return self

    @property
    def primitive_bitwidth(self) -> int:
        return 1 if self.torch is torch.bool else self.torch.itemsize * 8

    int_bitwidth = primitive_bitwidth

    def is_floating(self) -> bool:
        return self.torch.is_floating_point

    def is_int(self) -> bool:
        return not self.torch.is_floating_point

    def is_bool(self) -> bool:
        return self.torch is torch.bool

    def is_int_signed(self) -> bool:
        return self.is_int() and self.torch not in _UNSIGNED

    def is_fp64(self) -> bool:
        return self.torch is torch.float64

    def is_fp32(self) -> bool:
        return self.torch is torch.float32

    def is_fp16(self) -> bool:
        return self.torch is torch.float16

    def is_bf16(self) -> bool:
        return self.torch is torch.bfloat16

    def is_fp8(self) -> bool:
        return self.torch in dtypes.FLOAT8


def torch_dtype(dtype: Any) -> torch.dtype:
    """The torch dtype of a body's dtype (a DType, a name of the stand-in, or triton's own object)."""
    if isinstance(dtype, DType):
        return dtype.torch
    dtype = getattr(dtype, "value", dtype)
    name = getattr(dtype, "name", None)
    if name in dtypes.FROM_TRITON:
        return dtypes.FROM_TRITON[str(name)]
    raise TypeError(f"{dtype!r} is no dtype that a body can use; known: {', '.join(dtypes.FROM_TRITON)}")
