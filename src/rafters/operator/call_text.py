"""Writes the call of an op: one Python function with the op's own signature and one straight path to a known plan.

A generated function, because a generic one (loops over arguments, inspect.bind) costs several times what `torch.add` does.
"""

from collections.abc import Sequence
from typing import Any

from rafters.engine.spec import CONSTEXPR, INDEX, SCALAR, TENSOR, Parameter

_CALL = """\
def __call__(self, {signature}):
    if is_compiling():
        return self._dispatched(({passed},), out)
    if (
        out is None
        and {plain}
        and not transforms()
        and not dispatch_modes()
        and not function_modes()
        and forward_ad._current_level < 0
        and not ({negative})
        and not (grad_enabled() and ({gradient}))
    ):
        run = self._plans.get(({key},))
        if run is not None:
            return run({passed})
    return self._slow(({passed},), out)
"""


def call_function(name: str, parameters: Sequence[Parameter], names: dict[str, Any]) -> Any:
    """The `__call__` of an op with these parameters; `names` are the gate's functions."""
    tensors = [p for p in parameters if p.kind in (TENSOR, INDEX)]
    text = _CALL.format(
        signature=signature(parameters),
        passed=", ".join(p.name for p in parameters),
        plain=" and ".join(
            ("({0} is None or " if p.optional else "(").format(p.name)
            + f"type({p.name}) is Tensor or type({p.name}) is Parameter)"
            for p in tensors
        ),
        negative=" or ".join(_where_present(p, f"{p.name}.is_neg()") for p in tensors),
        gradient=" or ".join(_where_present(p, f"{p.name}.requires_grad") for p in tensors),
        key=", ".join(key_terms(parameters)),
    )
    space = dict(names)
    exec(compile(text, f"<rafters call of {name}>", "exec"), space)
    function = space["__call__"]
    function.__defaults__ = tuple(p.default for p in parameters if p.default is not ...)
    function.__kwdefaults__ = {"out": None}
    return function


def _where_present(p: Parameter, text: str) -> str:
    return f"({p.name} is not None and {text})" if p.optional else text


def signature(parameters: Sequence[Parameter]) -> str:
    """`x, y, alpha=..., *, out=None`; the defaults are put on the function itself."""
    return ", ".join([*(p.name + ("=None" if p.default is not ... else "") for p in parameters), "*", "out=None"])


def key_terms(parameters: Sequence[Parameter]) -> list[str]:
    """What a plan depends on: all that is known of a tensor but its data, the value of what is compiled in, the width of an integer."""
    terms = []
    for p in parameters:
        if p.kind == CONSTEXPR:
            terms += [p.name, f"type({p.name})"]
        elif p.kind == SCALAR:
            terms += [f"-0x80000000 <= {p.name} < 0x80000000"] if p.type is int else []
        else:
            t = p.name
            facts = [f"{t}.dtype", f"{t}.shape", f"{t}.stride()", f"{t}.data_ptr() & 15", f"{t}.device"]
            terms += [f"None if {t} is None else ({', '.join(facts)})"] if p.optional else facts
    return [*terms, "default_dtype()"]


def key_of(parameters: Sequence[Parameter], arguments: Sequence[Any], default_dtype: Any) -> tuple[Any, ...]:
    """The same key for any arguments (numbers for tensors, `out=`), which the generated call never looks up under."""
    import torch

    key: list[Any] = []
    for value in arguments:
        if isinstance(value, torch.Tensor):
            key += [value.dtype, value.shape, value.stride(), value.data_ptr() & 15, value.device]
        elif isinstance(value, bool | str | None):
            key += [type(value), value]
        else:
            key += [type(value), isinstance(value, int) and -0x80000000 <= value < 0x80000000]
    constants = [v for p, v in zip(parameters, arguments, strict=False) if p.kind == CONSTEXPR]
    return (*key, *constants, default_dtype)
