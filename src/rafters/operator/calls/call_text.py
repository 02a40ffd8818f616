"""Writes the call of an op: Python functions with the op's own signature and one straight path to a known plan.

Generated, because a generic call (loops over arguments, inspect.bind) costs several times what `torch.add` does. Where each
microsecond goes: docs/host_cost.md.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rafters.engine.spec import CONSTEXPR, INDEX, SCALAR, TENSOR, Parameter

# Names of its own begin with _, which no parameter of an op may. See operator/calls/gate.py for the questions.
#
# A call is answered by the first of these that knows it:
#   the latest plan, whose own check of the tensors is one call into PyTorch;
#   the plans by key, where all arguments are plain tensors and nothing needs the dispatcher;
#   the plan of another size, where the first dimension alone is new (engine/family.py);
#   `other`: a known key with numbers in tensors' places, `out=`, and whatever depends on the default dtype;
#   `_slow`: the first call of its kind and everything that goes through the dispatcher.
_CALL = """\
def __call__(_self, {signature}, *, out=None):
    if _is_compiling():
        if out is None and {tensors}:
            return _self._registration.overload({passed})
        return _self._dispatched(({passed},), out)
    if out is None:
        _plans = _self._plans
        {latest}if {plain} and {quiet}:
            try:
                _entry = _plans.get(({key},))
            except RuntimeError:  # a tensor without an address (sparse); what it is, is said below
                return _self._slow(({passed},), None)
            if _entry is not None:
                {remember}if {gradient} and _grad_enabled():
                    return _self._record(_entry, {passed})
                return _entry.run({passed})
            if {floating}:
                _families = _plans.sizes.get(_size_key({passed}))
                if _families and not ({gradient} and _grad_enabled()):
                    _n = {first}.shape[0]
                    for _family in _families:
                        if _family.spans(_n):
                            if _family.again(_n):
                                _plans.keep_size(({key},), _n, _family)
                            return _family.open(_n, {passed})
                return _self._slow(({passed},), None)
    {latest_into}return _other(_self, {passed}, out)


def _other(_self, {passed}, out):
    if {plain_or_number} and {quiet} and not ({gradient_or_number} and _grad_enabled()):
        _given = () if out is None else out if _type(out) is _tuple else (out,)
        for _g in _given:
            if (_type(_g) is not _Tensor and _type(_g) is not _Parameter) or (_g.requires_grad and _grad_enabled()):
                break
        else:
            try:
                _entry = _self._plans.get(_any_key({passed}, _given))
            except RuntimeError:
                _entry = None
            if _entry is not None:
                {remember_into}return _entry.run({passed}, *_given)
    return _self._slow(({passed},), out)


def key({passed}):
    return ({key},)


def _size_key({passed}):
    _lead, _rank = {first}.shape[:1], {first}.dim()
    return ({size_key},)


def _first({passed}):
    return {first}


def _any_key({passed}, _given):
    return ({any_key}, _default_dtype(), *[_facts(_g) for _g in _given])


def _facts(t):
    return (t.dtype, t.shape, t.stride(), t.data_ptr() & 15, t.device)


def registered(_plans, _otherwise, _defaults):
    def call({passed}, *, _body=""):
        {latest_registered}return _below({passed})

    def _below({passed}, *, _body=""):
        if {plain} and {quiet} and not ({gradient} and _grad_enabled()):
            _entry = _plans.get(({key},))
            if _entry is not None:
                {remember}return _entry.run({passed})
        return _otherwise({passed})

    call.__defaults__ = _defaults
    return call


def below(_plans, _otherwise, _defaults):
    def call({passed}, *, _body=""):
        if {plain} and {quiet} and not ({gradient} and _grad_enabled()):
            _entry = _plans.get(({key},))
            if _entry is not None:
                return _entry.run({passed})
        return _otherwise({passed})

    call.__defaults__ = _defaults
    return call
"""
_QUIET = "not _transforms() and not _dispatch_modes() and not _function_modes() and _forward_ad._current_level < 0"
# The addresses are looked at here: entries of other classes of addresses are found by their key.
_LATEST = """\
_entry = _plans.last
        if (_entry.check({tensors}) and {usual}not ({addresses}) & 15
                and not _function_modes() and _forward_ad._current_level < 0):
            if _entry.free or not _grad_enabled():
                return _entry.run({passed})
            {record}
        """
_LATEST_INTO = """\
elif _type(out) is _Tensor:
        _entry = _self._plans.last_into
        if (_entry.check({tensors}, out) and (_entry.free or not _grad_enabled()) and {usual}not ({addresses} | out.data_ptr()) & 15
                and not _function_modes() and _forward_ad._current_level < 0):
            return _entry.run({passed}, out)
    """
_REMEMBER = """\
if {usual}_entry is not _plans.last:
                    if _entry.check is None and _entry is _plans.candidate:
                        _plans.watch(_entry, ({tensors},), ({constants}))
                    _plans.candidate = _entry
                    if _entry.check is not None:
                        _plans.last = _entry
                """
_REMEMBER_INTO = """\
if _len(_given) == 1 and {usual}{present}_entry is not _self._plans.last_into:
                    if _entry.check is None and _entry is _self._plans.candidate:
                        _self._plans.watch(_entry, ({tensors}, *_given), ({constants}))
                    _self._plans.candidate = _entry
                    if _entry.check is not None:
                        _self._plans.last_into = _entry
                """


def functions(name: str, parameters: Sequence[Parameter], names: dict[str, Any], guarded: bool) -> dict[str, Any]:
    """`__call__`, the keys and the registered calls of an op with these parameters; `names` are the gate's functions.

    `guarded`: the latest plan is tried first, which needs PyTorch's tensor guards.
    """
    tensors = [p for p in parameters if p.kind in (TENSOR, INDEX)]
    constants = [p for p in parameters if p.kind == CONSTEXPR]
    listed = ", ".join(p.name for p in tensors)
    passed = ", ".join(p.name for p in parameters)
    # what the check of the tensors leaves open: present, numbers of the declared type, the same compile-time objects
    usual = [f"{p.name} is not None" for p in tensors if p.optional]
    usual += [f"_type({p.name}) is _{p.type.__name__}{_range(p)}" for p in parameters if p.kind == SCALAR]
    same = [f"{p.name} is _entry.constants[{i}]" for i, p in enumerate(constants)]
    parts = {
        "tensors": listed,
        "passed": passed,
        "addresses": " | ".join(f"{p.name}.data_ptr()" for p in tensors),
        "constants": "".join(f"{p.name}, " for p in constants),
        "present": "".join(f"_isinstance({p.name}, _Tensor) and " for p in tensors),
    }
    known = {"usual": "".join(f"{u} and " for u in (*usual, *same))}
    met = {"usual": "".join(f"{u} and " for u in usual)}
    text = _CALL.format(
        latest=_LATEST.format(**parts, **known, record=f"return _self._record(_entry, {passed})") if guarded else "",
        latest_registered=_LATEST.format(**parts, **known, record=f"return _otherwise({passed})") if guarded else "",
        latest_into=_LATEST_INTO.format(**parts, **known) if guarded else "",
        remember=_REMEMBER.format(**parts, **met) if guarded else "",
        remember_into=_REMEMBER_INTO.format(**parts, **met) if guarded else "",
        floating=" or ".join(_present(p) + f"{p.name}.dtype.is_floating_point" for p in tensors),
        signature=", ".join(p.name + ("=None" if p.default is not ... else "") for p in parameters),
        passed=passed,
        plain=" and ".join(_plain(p) for p in tensors),
        plain_or_number=" and ".join(
            f"({_plain(p)} or _type({p.name}) in _numbers)" if p.kind == TENSOR else _plain(p) for p in tensors
        ),
        quiet=_QUIET,
        # asked of the tensors only: Dynamo fixes the value of a number that is looked at
        tensors=" and ".join(
            (f"({p.name} is None or " if p.optional else "(") + f"_isinstance({p.name}, _Tensor))" for p in tensors
        ),
        gradient="(" + " or ".join(_present(p) + f"{p.name}.requires_grad" for p in tensors) + ")",
        gradient_or_number="("
        + " or ".join(f"(_isinstance({p.name}, _Tensor) and {p.name}.requires_grad)" for p in tensors)
        + ")",
        key=_terms(parameters, _plain_term),
        any_key=_terms(parameters, _any_term),
        size_key=_terms(parameters, _size_term),
        first=next((p.name for p in tensors if not p.optional), tensors[0].name),
    )
    space = dict(names)
    exec(compile(text, f"<rafters call of {name}>", "exec"), space)
    call = space["__call__"]
    call.__qualname__ = name  # what Python calls it where an argument is missing
    call.__defaults__ = tuple(p.default for p in parameters if p.default is not ...)
    return {
        "__call__": call,
        "key": space["key"],
        "any_key": space["_any_key"],
        "size_key": space["_size_key"],
        "first": space["_first"],
        "registered": space["registered"],
        "below": space["below"],
    }


def _present(p: Parameter) -> str:
    return f"{p.name} is not None and " if p.optional else ""


def _plain(p: Parameter) -> str:
    return (f"({p.name} is None or " if p.optional else "(") + f"_type({p.name}) is _Tensor or _type({p.name}) is _Parameter)"


def _range(p: Parameter) -> str:
    return f" and {_is_short(p.name)}" if p.type is int else ""


def _is_short(name: str) -> str:
    return f"-0x80000000 <= {name} < 0x80000000"


def _scalar_terms(p: Parameter) -> list[str]:
    if p.kind == CONSTEXPR:
        return [f"_repr({p.name})"]  # 1, 1.0 and True are three values, and so are 0.0 and -0.0
    return [f"_type({p.name})"] + ([_is_short(p.name)] if p.type is int else [])


def _terms(parameters: Sequence[Parameter], of_tensor: Callable[[str, Parameter], list[str]]) -> str:
    """A key: what is known of the numbers, and of each tensor what `of_tensor(its name, its parameter)` says."""
    return ", ".join(t for p in parameters for t in (
        _scalar_terms(p) if p.kind in (CONSTEXPR, SCALAR) else of_tensor(p.name, p)))  # fmt: skip


def _plain_term(t: str, p: Parameter) -> list[str]:
    """All that is known of a tensor but its data."""
    facts = [f"{t}.dtype", f"{t}.shape", f"{t}.stride()", f"{t}.data_ptr() & 15", f"{t}.device"]
    return [f"None if {t} is None else ({', '.join(facts)})"] if p.optional else facts


def _size_term(t: str, p: Parameter) -> list[str]:
    """The same but for the first dimension of the tensors that have the first one's."""
    own = f"{t}.shape[1:], {t}.stride(), ({t}.shape[:1] == _lead and {t}.dim() == _rank) or {t}.shape[:1]"
    return [f"None if {t} is None else " * p.optional + f"({t}.dtype, {own}, {t}.data_ptr() & 15, {t}.device)"]


def _any_term(t: str, _p: Parameter) -> list[str]:
    """The same for what need not be a tensor: a number in a tensor's place is passed, not compiled in."""
    number = f"(_type({t}), _isinstance({t}, _int) and {_is_short(t)})"
    return [f"_facts({t}) if _isinstance({t}, _Tensor) else {number}"]


def may_be_negative(tensors: Sequence[Any]) -> list[int]:
    """Positions of the tensors that may carry the negative bit, which no key holds.

    It comes from `z.conj().imag`, whose strides are all even: a stride that is odd rules it out, and nothing has to be asked per call.
    """
    return [
        i
        for i, t in enumerate(tensors)
        if isinstance(t, torch.Tensor)
        and t.dtype.is_floating_point
        and not any(s % 2 and n > 1 for s, n in zip(t.stride(), t.shape, strict=True))
    ]
