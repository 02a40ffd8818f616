"""What a call still has to look at when its plan is known: memory that is written, integers that must fit, a negative bit.

None of it is in a key. It is written out as a function around the plan's own, cheap tests first: tensors whose addresses lie apart do
not overlap, and only where they do not is the exact question asked.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rafters.engine.call import check_number
from rafters.engine.results import result_names
from rafters.errors import ArgumentError, argument_error
from rafters.operator.calls import call_text

_CAREFUL = """\
def make(_run, _slow, _refuse, _check, _check_number, _bump, {names}):
    def careful({parameters}):
{lines}
    return careful
"""


def careful(op: Any, plan: Any, run: Callable[..., Any], arguments: Sequence[Any], given: Sequence[torch.Tensor]) -> Any:
    """`run`, or a function that looks first, where something has to be looked at."""
    negative = call_text.may_be_negative(arguments)
    if not (negative or plan.resolved.numbers or given or op.writes):
        return run
    parameters = [p.name for p in op.spec.parameters]
    named = dict(zip(parameters, arguments, strict=True))
    written = dict(zip(result_names(op.spec), given, strict=False)) | {
        p.name: named[p.name] for p in op.spec.parameters if p.mutated
    }
    values: dict[str, Any] = {}
    lines: list[str] = []
    suspects = [parameters[i] for i in negative if parameters[i] not in written]
    if suspects:  # negated, as PyTorch does before a kernel runs
        out = "None" if not given else f"({', '.join(result_names(op.spec))},)"
        lines += [f"if {' or '.join(f'{name}.is_neg()' for name in suspects)}:",
                  f"    return _slow(({', '.join(parameters)},), {out})"]  # fmt: skip
    targets = list(written)
    for name in (targets[i] for i in call_text.may_be_negative(list(written.values()))):
        lines.append(f"if {name}.is_neg(): _refuse({name!r})")
    for name, dtype in plan.resolved.numbers.items():
        if dtype is not torch.bool and not dtype.is_floating_point and not isinstance(named[name], torch.Tensor):
            values[f"_dtype_{name}"] = dtype
            lines.append(f"_check_number({op.name!r}, {name!r}, {name}, _dtype_{name})")
    passed = ", ".join([*parameters, *(result_names(op.spec) if given else [])])
    if written:
        apart = _apart(op, plan, named, written, given, values)
        if apart:
            lines += [f"if not ({' and '.join(apart)}):", f"    _check(({passed},))"]
        lines += [f"_result = _run({passed})", f"_bump(({', '.join(written)},))", "return _result"]
    elif lines:
        lines.append(f"return _run({passed})")
    if not lines:
        return run
    text = _CAREFUL.format(names=", ".join(values), parameters=passed, lines="\n".join(f"        {line}" for line in lines))
    space: dict[str, Any] = {}
    exec(compile(text, f"<rafters checks of {op.name}>", "exec"), space)
    count = len(parameters)

    def check(call: tuple[Any, ...]) -> None:
        op.form.check(dict(zip(parameters, call[:count], strict=True)), plan, call[count:])

    def refuse(name: str) -> None:
        raise argument_error(op.name, name, "a lazily negated tensor", "plain memory to write to (.resolve_neg())")

    # a saved tensor that was overwritten must be noticed by autograd
    bump = torch.autograd.graph.increment_version
    return space["make"](run, op._slow, refuse, check, check_number, bump, *values.values())


def _apart(
    op: Any,
    plan: Any,
    named: dict[str, Any],
    written: dict[str, torch.Tensor],
    given: Sequence[torch.Tensor],
    values: dict[str, Any],
) -> list[str]:
    """Conditions, of addresses alone, under which nothing that is written overlaps anything else (or is it, where that is allowed)."""
    conditions = []
    tensors = {name: t for name, t in named.items() if isinstance(t, torch.Tensor)} | written
    for position, (target, memory) in enumerate(written.items()):
        others = [name for name in tensors if name not in list(written)[: position + 1] and tensors[name].numel()]
        for name in others if memory.numel() else []:
            a, b = f"{target}.data_ptr()", f"{name}.data_ptr()"
            values[f"_end_{target}"], values[f"_end_{name}"] = _bytes(memory), _bytes(tensors[name])
            apart = f"{a} + _end_{target} <= {b} or {b} + _end_{name} <= {a}"
            if name in named and target not in named and _may_be_the_same(op, plan, named, given, name, memory):
                apart = f"{a} == {b} or {apart}"
            conditions.append(f"({apart})")
    return conditions


def _bytes(tensor: torch.Tensor) -> int:
    """From the first to behind the last byte."""
    return (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * tensor.element_size()


def _may_be_the_same(op: Any, plan: Any, named: dict[str, Any], given: Sequence[torch.Tensor], name: str, memory: Any) -> bool:
    """May the argument be the result itself? Asked of the op's own check, with the result in the argument's place."""
    like = named[name]
    if like.shape != memory.shape or like.stride() != memory.stride() or like.dtype is not memory.dtype:
        return False
    if len(given) != 1:
        return False
    try:
        op.form.check(named | {name: memory}, plan, tuple(given))
    except ArgumentError:
        return False
    return True
