"""Forward mode (torch.autograd.forward_ad): a call of dual tensors is the op on the primals and one op more for the tangents.

The tangents' body is derived and written as that of a gradient is (operator/derivatives/derive.py).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from rafters.dtypes import FLOAT8
from rafters.engine.call import resolve
from rafters.engine.spec import Output, Spec, View
from rafters.operator.derivatives.derive import (
    connected,
    declared_parameters,
    derivable,
    free_name,
    kinds,
    needed_inputs,
    op_of,
    spelled,
    tiles,
)
from rafters.trace.derivative import jvp
from rafters.trace.write import body_text


def forward_mode(op: Any, arguments: Sequence[Any]) -> Any:
    """The results as dual tensors; None where PyTorch is to derive the op's torch form: the op has no derived tangent, or a gradient is
    wanted as well, whose saved tensors would have to be dual.
    """
    spec: Spec = op.spec
    if torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments):
        return None
    names = [p.name for p in spec.parameters]
    split = [forward_ad.unpack_dual(a) if isinstance(a, torch.Tensor) else None for a in arguments]
    primals = [a if s is None else s.primal for a, s in zip(arguments, split, strict=True)]
    given = dict(zip(names, primals, strict=True))
    tangents = {n: s.tangent for n, s in zip(names, split, strict=True) if s is not None and s.tangent is not None}
    resolved = resolve(spec, given)
    if derivable(spec) or resolved.common in FLOAT8:
        return None
    by = connected(spec, given) or ()
    live = [i for i, names_ in enumerate(by) if names_ & set(tangents) and resolved.results[i].dtype.is_floating_point]
    result = op(*primals)
    if not live:
        return result
    made = _tangents(spec, given, tangents, live, [resolved.results[i].dtype for i in live])
    results = list(result) if isinstance(result, tuple) else [result]
    for i, tangent in zip(live, made, strict=True):
        results[i] = forward_ad.make_dual(results[i], tangent.expand(results[i].shape))
    return tuple(results) if isinstance(result, tuple) else results[0]


def _tangents(
    spec: Spec, given: dict[str, Any], tangents: dict[str, torch.Tensor], live: Sequence[int], dtypes: Sequence[torch.dtype]
) -> tuple[torch.Tensor, ...]:
    op = tangent_op(spec, given, tuple(tangents), live, dtypes)
    values = given | {free_name(f"tangent_{name}", spec): tangent for name, tangent in tangents.items()}
    made = op(*(values[p.name] for p in op.spec.parameters))
    return made if isinstance(made, tuple) else (made,)


def tangent_op(
    spec: Spec, arguments: dict[str, Any], moved: tuple[str, ...], live: Sequence[int], dtypes: Sequence[torch.dtype]
) -> Any:
    """The op that gives the tangents of the results `live` from those of the arguments `moved`."""
    typed, constants = tiles(spec, resolve(spec, arguments), arguments)
    key = ("jvp", moved, tuple(live), tuple(dtypes), tuple(typed.items()), repr(constants))
    if key in spec.memory:
        return spec.memory[key]
    tensors = tuple(dict.fromkeys(spec.views[p].source for p in typed if p in spec.views))
    name = spelled(spec, "jvp", () if moved == tensors else moved, live, constants)
    read = {p: free_name(f"tangent_{p}", spec) for p in typed if p in spec.views and spec.views[p].source in moved}
    graph = jvp(spec.body, typed, constants, read, live, kinds(spec, live))

    def write(name_: str) -> tuple[str, dict[str, Any]]:
        used = needed_inputs(graph, next(iter(read.values())), spec, live)
        if spec.rowwise:  # a tangent alone may have no row
            used = [n for n in graph.inputs if n in {*used, *spec.views}]
        given = tuple(read.values())
        outputs = [free_name("tangent_out" if len(spec.results) == 1 else f"tangent_out{i}", spec, given) for i in live]
        doc = f"Tangent of {spec.namespace}::{spec.name} along {', '.join(moved)}."
        text = body_text(name_, graph, declared_parameters(spec, used), outputs, doc)
        sources = {t: View(free_name(f"tangent_{spec.views[p].source}", spec), spec.views[p].part) for p, t in read.items()}
        views = {n: (spec.views | sources)[n] for n in used if n in spec.views | sources}
        made = [spec.results[i][0] for i in live]
        outputs_ = tuple(Output(dtype, o.per_row, sum_to=o.sum_to) for dtype, o in zip(dtypes, made, strict=True))
        return text, {"views": {n: v for n, v in views.items() if v != View(n)}, "outputs": outputs_}

    spec.memory[key] = op_of(spec, name, write)
    return spec.memory[key]
