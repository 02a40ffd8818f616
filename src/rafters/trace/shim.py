"""What `tl` and `lang` mean while a body is traced: the same names, on values that hold torch tensors."""

from collections.abc import Callable
from typing import Any

import torch

from rafters import dtypes, lang
from rafters.lang._define import Word
from rafters.trace.values import METHODS, DType, Value, lift, raw, torch_dtype, unify


def _float(operand: Any) -> torch.Tensor:
    tensor = lift(operand)
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.to(torch.float32)


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def call(x: Any, **_: Any) -> Any:
        return Value(function(_float(x)))

    return call


def _propagates(propagate_nan: Any) -> bool:
    return "ALL" in str(getattr(propagate_nan, "name", propagate_nan)).upper()


def _extremum(drop: Callable[..., torch.Tensor], keep: Callable[..., torch.Tensor], name: str) -> Callable[..., Any]:
    def call(x: Any, y: Any, propagate_nan: Any = None) -> Any:
        if not isinstance(x, Value) and not isinstance(y, Value):
            return (max if name == "maximum" else min)(raw(x)[0], raw(y)[0])
        a, b, dtype = unify(x, y)
        return Value((drop if dtype.is_floating_point and not _propagates(propagate_nan) else keep)(a, b))

    call.__name__ = name
    return call


maximum = _extremum(torch.fmax, torch.maximum, "maximum")
minimum = _extremum(torch.fmin, torch.minimum, "minimum")


def where(condition: Any, x: Any, y: Any) -> Value:
    a, b, _ = unify(x, y)
    test = lift(condition)
    return Value(torch.where(test if test.dtype is torch.bool else test != 0, a, b))


def clamp(x: Any, min: Any, max: Any, propagate_nan: Any = None) -> Value:
    return minimum(maximum(x, min, propagate_nan), max, propagate_nan)  # type: ignore[no-any-return]


def fabs(x: Any) -> Any:
    return Value(torch.abs(x.tensor)) if isinstance(x, Value) else abs(raw(x)[0])


def div_rn(x: Any, y: Any, **_: Any) -> Value:
    a, b, _dtype = unify(x, y, division=True)
    return Value(a / b)


def fma(x: Any, y: Any, z: Any) -> Value:
    result: Value = word(lang.WORDS["fma"])(x, y, z)
    return result


def reduction(name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    def call(x: Any, axis: Any = None, keep_dims: bool = False, **_: Any) -> Any:
        raise TypeError(f"tl.{name} over a tile has no meaning in a body; in @rafters.rowwise use lang.row_{name}")

    return call


def static_assert(condition: Any, message: str = "") -> None:
    if not condition:
        raise TypeError(f"static_assert failed: {message}")


def full(shape: Any, value: Any, dtype: Any) -> Value:
    raise TypeError("a body has no shape of its own; write the constant, or tl.zeros_like(x)")


def cdiv(x: Any, y: Any) -> Any:
    return (x + y - 1) // y


LANGUAGE: dict[str, Any] = {
    "abs": fabs, "cast": lambda x, dtype, **kw: (x if isinstance(x, Value) else Value(lift(x))).to(dtype, **kw),
    "cdiv": cdiv, "ceil": _unary(torch.ceil), "clamp": clamp, "cos": _unary(torch.cos), "device_assert": lambda *a, **k: None,
    "div_rn": div_rn, "erf": _unary(torch.erf), "exp": _unary(torch.exp), "exp2": _unary(torch.exp2), "fdiv": div_rn,
    "floor": _unary(torch.floor), "fma": fma, "full": full, "log": _unary(torch.log), "log2": _unary(torch.log2),
    "maximum": maximum, "minimum": minimum, "rsqrt": _unary(torch.rsqrt), "sigmoid": _unary(torch.sigmoid),
    "sin": _unary(torch.sin), "sqrt": _unary(torch.sqrt), "sqrt_rn": _unary(torch.sqrt), "static_assert": static_assert,
    "static_print": lambda *a, **k: None, "static_range": range, "range": range, "where": where,
    "zeros_like": lambda x: Value(torch.zeros_like(x.tensor)), "constexpr": lambda value: value,
    "add": lambda x, y, **_: x + y, "sub": lambda x, y, **_: x - y, "mul": lambda x, y, **_: x * y,
    **{name: reduction(name, getattr(torch, name)) for name in ("sum", "max", "min")},
    **{name: DType(dtype) for name, dtype in dtypes.FROM_TRITON.items()},
}  # fmt: skip
LIBDEVICE: dict[str, Any] = {
    name: _unary(getattr(torch, name))
    for name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh", "asin",
                 "acos", "atan", "erf", "erfc", "floor", "ceil", "trunc")
}  # fmt: skip
METHODS.update({name: LANGUAGE[name] for name in ("abs", "cast", "ceil", "cos", "erf", "exp", "exp2", "floor", "log", "log2", "rsqrt",
                                                  "sigmoid", "sin", "sqrt")})  # fmt: skip


class _Constants:
    def __getattr__(self, name: str) -> str:
        return name


class Language:
    """`tl` during a trace. An unknown name is an error that says which and what to do."""

    def __init__(self, table: dict[str, Any], prefix: str) -> None:
        self._table, self._prefix = table, prefix

    def __getattr__(self, name: str) -> Any:
        if name in ("math", "extra", "cuda", "hip", "standard", "core"):
            return Language(self._table, self._prefix)
        if name == "libdevice":
            return Language(LIBDEVICE, "libdevice")
        if name == "PropagateNan":
            return _Constants()
        if name in self._table:
            return self._table[name]
        raise NotImplementedError(f"{self._prefix}.{name} cannot be traced; give the op a reference= made of torch operations")


LANGUAGE_SHIM = Language(LANGUAGE, "tl")


def word(word_: Word) -> Callable[..., Any]:
    """A word of `lang` on values: its own torch meaning."""

    lift_ = _float if word_.is_real else lift

    def plain(value: Any) -> Any:
        return lift_(value) if isinstance(value, Value) else torch_dtype(value) if isinstance(value, DType) else value

    def call(*args: Any, **kwargs: Any) -> Any:
        result = word_.meaning(*map(plain, args), **{name: plain(value) for name, value in kwargs.items()})
        return Value(result) if isinstance(result, torch.Tensor) else result

    return call


class LangShim:
    """`rafters.lang` during a trace."""

    def __getattr__(self, name: str) -> Any:
        found = lang.WORDS.get(name)
        if found is None:
            raise NotImplementedError(f"rafters.lang has no word {name!r}; it has {', '.join(sorted(lang.WORDS))}")
        return word(found)


LANG_SHIM = LangShim()


def logical_and(*values: Callable[[], Any]) -> Any:
    """`a and b`: short-circuit on compile-time values, per element on tensors."""
    return _logical(values, stop=False, combine=torch.logical_and)


def logical_or(*values: Callable[[], Any]) -> Any:
    return _logical(values, stop=True, combine=torch.logical_or)


def _logical(values: tuple[Callable[[], Any], ...], stop: bool, combine: Callable[..., torch.Tensor]) -> Any:
    result: Any = None
    for thunk in values:
        value = thunk()
        if isinstance(value, Value) and value.tensor.dtype is not torch.bool:
            raise TypeError("`and` and `or` join conditions, as in Triton; compare the number first: x != 0")
        if not isinstance(value, Value):
            if bool(value) is stop:
                return value
            result = value if not isinstance(result, Value) else result
        else:
            result = Value(combine(result.tensor, value.tensor)) if isinstance(result, Value) else value
    return result


def logical_not(value: Any) -> Any:
    if isinstance(value, Value) and value.tensor.dtype is not torch.bool:
        raise TypeError("`not` takes a condition, as in Triton; write x == 0")
    return Value(torch.logical_not(value.tensor)) if isinstance(value, Value) else not value


def _no_abs(x: Any) -> Any:
    raise TypeError("Triton has no builtin abs; write tl.abs(x)")


BUILTINS: dict[str, Any] = {
    "max": lambda *a: maximum(*a), "min": lambda *a: minimum(*a), "abs": _no_abs, "print": lambda *a, **k: None,
    "float": lambda x: x.to(DType(torch.float32)) if isinstance(x, Value) else float(x),
    "int": lambda x: x.to(DType(torch.int32)) if isinstance(x, Value) else int(x),
}  # fmt: skip
