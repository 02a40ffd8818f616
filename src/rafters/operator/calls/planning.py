"""How a call finds its plan when its key does not: one of another size serves it, or it is planned from the start."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from rafters.engine.family import Family, Open, open_call
from rafters.engine.plan import Elsewhere, Plan
from rafters.engine.results import result_names
from rafters.engine.spec import INDEX, TENSOR
from rafters.engine.variant import NotCompiledError
from rafters.operator.calls.careful import careful
from rafters.operator.calls.table import Entry
from rafters.operator.switches import current


def ready(op: Any, arguments: tuple[Any, ...], given: tuple[torch.Tensor, ...] = ()) -> Entry:
    """The entry of a call on plain tensors, found or made."""
    table, state = op._plans, op._plans.state
    tensors = not given and _are_tensors(op, arguments)
    floating = tensors and any(isinstance(a, torch.Tensor) and a.dtype.is_floating_point for a in arguments)
    # the key of plain tensors does not hold the default dtype, which decides where no floating-point tensor does
    key = op._key(*arguments) if floating else op._any_key(*arguments, given)
    entry: Entry | None = table.find(key)
    if entry is None:
        plan, run, call = _plan(op, arguments, given, state)
        entry = Entry(careful(op, plan, run, arguments, given))
        table.keep(key, entry, state)
        if call is not None and floating and entry.run is run and _is_open(op._first(*arguments), arguments, call):
            table.leave_open(op._size_key(*arguments), call)
        if tensors and not plan.resolved.common.is_floating_point:
            table.keep(op._key(*arguments), entry, state)
    return entry


def _is_open(first: torch.Tensor, arguments: Sequence[Any], call: Open) -> bool:
    """Are the tensors whose size is open those that have the first one's first dimension?"""
    lead = first.shape[:1]
    alike = [isinstance(a, torch.Tensor) and a.dim() == first.dim() and a.shape[:1] == lead for a in arguments]
    return call.lead == lead and call.size > 1 and alike == list(call.varies)


def _plan(
    op: Any, arguments: tuple[Any, ...], given: tuple[torch.Tensor, ...], state: int
) -> tuple[Plan, Callable[..., Any], Open | None]:
    """A plan that such calls share, the function that this one runs, and what is open in it."""
    call = open_call(op.spec, arguments, given)
    family = op._plans.family(call) if call else None
    if call and family:
        plan, run = family.plan, family.run(call.lead)
    else:
        plan = op.form.build(op._named(arguments), given, op._variants, current.pdl)
        run = plan.run
        if call and _shares(op, call, plan):
            family = op._plans.observe(call, plan, state)
            where = Elsewhere(plan.straight.device, _addresses(op, arguments, given), compile=False)
            for far in (2 * call.rows, call.rows // 2):
                _foresee(op, family, call, far, arguments, given, where)
    if given or op.writes:
        op.form.check(op._named(arguments), plan, given)
    return plan, run, call


def _shares(op: Any, call: Open, plan: Plan) -> bool:
    """May the plan serve other sizes? One of several kernels is made anew for each: what lies between them depends on the size in ways of
    its own. Nor does one where plan after plan had nothing in common with the others."""
    return plan.straight is not None and plan.straight.launches_one and op._plans.has_room(call)


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
    if call is None or not _shares(op, call, plan):
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


def _are_tensors(op: Any, arguments: Sequence[Any]) -> bool:
    """No number stands for a tensor."""
    pairs = zip(op.spec.parameters, arguments, strict=True)
    return all(isinstance(a, torch.Tensor) or (a is None and p.optional) for p, a in pairs if p.kind in (TENSOR, INDEX))
