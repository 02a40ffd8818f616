"""Writes the call of an op: Python functions with the op's own signature and one straight path to a known plan.

Generated, because a generic call (loops over arguments, inspect.bind) costs several times what `torch.add` does.
"""

from collections.abc import Sequence
from typing import Any

import torch

from rafters.engine.spec import CONSTEXPR, INDEX, SCALAR, TENSOR, Parameter

# Names of its own begin with _, which no parameter of an op may. Without `out` in its way, and with nothing that needs the
# dispatcher, a call is one lookup. See operator/gate.py for the questions.
_CALL = """\
def __call__(_self, {signature}, *, out=None):
    if _is_compiling():
        if out is None and {tensors}:
            return _self._registration.overload({passed})
        return _self._dispatched(({passed},), out)
    if out is None and {plain} and {quiet} and not ({gradient} and _grad_enabled()):
        try:
            _run = _self._plans.get(({key},))
        except RuntimeError:  # a tensor without an address (sparse); what it is, is said below
            _run = None
        if _run is not None:
            return _run({passed})
    return _self._slow(({passed},), out)


def key({passed}):
    return ({key},)


def registered(_plans, _otherwise, _defaults):
    def call({passed}, *, _body=""):
        if {plain} and {quiet} and not ({gradient} and _grad_enabled()):
            _run = _plans.get(({key},))
            if _run is not None:
                return _run({passed})
        return _otherwise({passed})

    call.__defaults__ = _defaults
    return call
"""
_QUIET = "not _transforms() and not _dispatch_modes() and not _function_modes() and _forward_ad._current_level < 0"


def functions(name: str, parameters: Sequence[Parameter], names: dict[str, Any]) -> dict[str, Any]:
    """`__call__`, `key` and `registered` of an op with these parameters; `names` are the gate's functions."""
    tensors = [p for p in parameters if p.kind in (TENSOR, INDEX)]
    text = _CALL.format(
        signature=", ".join(p.name + ("=None" if p.default is not ... else "") for p in parameters),
        passed=", ".join(p.name for p in parameters),
        plain=" and ".join(
            ("({0} is None or " if p.optional else "(").format(p.name)
            + f"_type({p.name}) is _Tensor or _type({p.name}) is _Parameter)"
            for p in tensors
        ),
        quiet=_QUIET,
        # asked of the tensors only: Dynamo fixes the value of a number that is looked at
        tensors=" and ".join(
            (f"({p.name} is None or " if p.optional else "(") + f"_isinstance({p.name}, _Tensor))" for p in tensors
        ),
        gradient="(" + " or ".join(_where_present(p, f"{p.name}.requires_grad") for p in tensors) + ")",
        key=", ".join(_key_terms(parameters)),
    )
    space = dict(names)
    exec(compile(text, f"<rafters call of {name}>", "exec"), space)
    call = space["__call__"]
    call.__qualname__ = name  # what Python calls it where an argument is missing
    call.__defaults__ = tuple(p.default for p in parameters if p.default is not ...)
    return {name: space[name] for name in ("__call__", "key", "registered")}


def _where_present(p: Parameter, text: str) -> str:
    return f"({p.name} is not None and {text})" if p.optional else text


def _key_terms(parameters: Sequence[Parameter]) -> list[str]:
    """What a plan depends on: all that is known of a tensor but its data, the value of what is compiled in, the width of an integer."""
    terms = []
    for p in parameters:
        t = p.name
        if p.kind == CONSTEXPR:
            terms.append(f"_repr({t})")  # 1, 1.0 and True are three values, and so are 0.0 and -0.0
        elif p.kind == SCALAR:
            terms += [f"_type({t})"] + ([f"-0x80000000 <= {t} < 0x80000000"] if p.type is int else [])
        else:
            facts = [f"{t}.dtype", f"{t}.shape", f"{t}.stride()", f"{t}.data_ptr() & 15", f"{t}.device"]
            terms += [f"None if {t} is None else ({', '.join(facts)})"] if p.optional else facts
    return terms


def key_of(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """A key for any arguments: numbers for tensors, `out=`, what depends on the default dtype."""
    key: list[Any] = []
    for value in arguments:
        if isinstance(value, torch.Tensor):
            key += [value.dtype, value.shape, value.stride(), value.data_ptr() & 15, value.device]
        elif isinstance(value, bool | str | None):
            key += [type(value), value]
        else:
            # a number is passed, not compiled in, unless its parameter is a compile-time one
            key += [type(value), isinstance(value, int) and -0x80000000 <= value < 0x80000000]
    return (*key, torch.get_default_dtype())


def constants_of(parameters: Sequence[Parameter], arguments: Sequence[Any]) -> tuple[Any, ...]:
    """The compile-time values of a call, apart where Python calls them equal (1, 1.0 and True; 0.0 and -0.0)."""
    return tuple(repr(v) for p, v in zip(parameters, arguments, strict=False) if p.kind == CONSTEXPR)


def may_be_negative(arguments: Sequence[Any]) -> list[int]:
    """Positions of the tensors that may carry the negative bit, which no key holds.

    It comes from `z.conj().imag`, whose strides are all even: a stride that is odd rules it out, and nothing has to be asked per call.
    """
    return [
        i
        for i, t in enumerate(arguments)
        if isinstance(t, torch.Tensor)
        and t.dtype.is_floating_point
        and not any(s % 2 and n > 1 for s, n in zip(t.stride(), t.shape, strict=True))
    ]
