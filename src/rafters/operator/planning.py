"""How a call finds its plan when its key does not: one of another size serves it, or it is planned from the start."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from rafters.engine.family import Family, Open, open_call
from rafters.engine.plan import Elsewhere, Plan
from rafters.engine.results import result_names
from rafters.engine.spec import INDEX, TENSOR
from rafters.engine.variant import NotCompiledError
from rafters.operator.careful import careful
from rafters.operator.switches import current
from rafters.operator.table import Entry


def ready(op: Any, arguments: tuple[Any, ...], given: tuple[torch.Tensor, ...] = ()) -> Entry:
    """The entry of a call on plain tensors, found or made."""
    table, state = op._plans, op._plans.state
    key = op._any_key(*arguments, given)
    entry: Entry | None = table.find(key)
    if entry is None:
        entry = _made(op, arguments, given, state)
        table.keep(key, entry, state)
    if entry.plain:
        table.keep(op._key(*arguments), entry, state)
    return entry


def _made(op: Any, arguments: tuple[Any, ...], given: tuple[torch.Tensor, ...], state: int) -> Entry:
    named = op._named(arguments)
    call = open_call(op.spec, arguments, given)
    family = op._plans.family(call) if call else None
    if call and family:
        plan, run = family.plan, family.run(call.lead)
    else:
        plan = op.form.build(named, given, op._variants, current.pdl)
        run = plan.run
        if call and plan.straight is not None:
            family = op._plans.observe(call, plan, state)
            where = Elsewhere(plan.straight.device, _addresses(op, arguments, given), compile=False)
            for far in (2 * call.rows, call.rows // 2):
                _foresee(op, family, call, far, arguments, given, where)
    if given or any(p.mutated for p in op.spec.parameters):
        op.form.check(named, plan, given)
    return Entry(careful(op, plan, run, arguments, given), not given and _is_plain(op, arguments, plan))


def _addresses(op: Any, arguments: Sequence[Any], given: Sequence[torch.Tensor]) -> dict[str, int]:
    names = [*(p.name for p in op.spec.parameters), *result_names(op.spec)]
    return {n: v.data_ptr() for n, v in zip(names, (*arguments, *given), strict=False) if isinstance(v, torch.Tensor)}


def _foresee(
    op: Any, own: Family, call: Open, far: int, arguments: Sequence[Any], given: Sequence[torch.Tensor], where: Elsewhere
) -> None:
    """Finds how far a kernel reaches, at most to `far` rows, by planning calls without memory: sizes that grow from call to call are
    planned when they have doubled, not each time. What is not compiled is left alone."""

    def reached(rows: int) -> bool:
        other = call.with_rows(rows)
        if not own.reaches(other.size):
            values = other.values((*arguments, *given))
            try:
                _plan_elsewhere(op, values[: len(arguments)], values[len(arguments) :], where, other)
            except NotCompiledError:
                return False
        return own.reaches(other.size)

    near, far = call.rows, max(far, 2)
    if near == far or reached(far):
        return
    while abs(far - near) > 1:
        middle = (near + far) // 2
        near, far = (middle, far) if reached(middle) else (near, middle)


def _plan_elsewhere(
    op: Any, arguments: Sequence[Any], given: Sequence[torch.Tensor], where: Elsewhere, call: Open | None
) -> Family | None:
    """Plans a call of tensors without memory, and learns from it what it says of calls of other sizes."""
    state = op._plans.state
    plan: Plan = op.form.build(op._named(arguments), given, op._variants, current.pdl, where)
    if call is None or plan.straight is None:
        return None
    family: Family = op._plans.observe(call, plan, state)
    return family


def warm(op: Any, arguments: Sequence[Any], where: Elsewhere, rows: tuple[int, int]) -> None:
    """Makes the kernel of a call of tensors without memory ready; between the smallest and the largest number of rows, it is known
    afterwards which kernel each number has."""
    call = open_call(op.spec, arguments, (), where)
    family = _plan_elsewhere(op, arguments, (), where, call)
    if call and family and call.rows in rows:
        far = rows[0] if call.rows == rows[1] else rows[1]
        _foresee(op, family, call, far, arguments, (), replace(where, compile=False))


def _is_plain(op: Any, arguments: Sequence[Any], plan: Plan) -> bool:
    """May the generated call find this plan by the key of plain tensors? Not where numbers stand for tensors, or where the default
    dtype decided (a floating-point result of no floating-point tensor)."""
    values = [a for p, a in zip(op.spec.parameters, arguments, strict=True) if p.kind in (TENSOR, INDEX)]
    tensors = [a for a in values if isinstance(a, torch.Tensor)]
    return all(a is None or isinstance(a, torch.Tensor) for a in values) and (
        any(t.dtype.is_floating_point for t in tensors) or not plan.resolved.common.is_floating_point
    )
