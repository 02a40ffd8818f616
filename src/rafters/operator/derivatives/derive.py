"""Derivatives of an op as ops of their own: the derived body is written as text, and made an op like any other.

An op has a derived backward where every tensor that its body reads is an argument or a half of one. Everything else (gathered
arguments, a `reference=`) has the derivative that PyTorch takes of its torch form.
"""

import functools
import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rafters.dtypes import FLOAT8
from rafters.engine.call import Resolved, resolve
from rafters.engine.prepare import traced_values
from rafters.engine.spec import TENSOR, Output, Spec, View
from rafters.errors import BodyError, RaftersError
from rafters.operator.text import function_of
from rafters.trace import body as bodies
from rafters.trace.derivative import Typed, connections, vjp
from rafters.trace.graph import Graph
from rafters.trace.nodes import ROW, TILE
from rafters.trace.write import body_text, passed_on, used_inputs

_lock = threading.RLock()
_PAIRS = ({"lo", "hi"}, {"even", "odd"})


@dataclass(frozen=True, eq=False)
class Derivative:
    """The gradients of `wanted` from the cotangents of the results `live`.

    `needed` are the arguments whose values the gradients depend on, `passed` the arguments whose gradient is a cotangent as it is.
    """

    spec: Spec
    graph: Graph
    wanted: tuple[str, ...]
    live: tuple[int, ...]
    needed: frozenset[str]
    passed: dict[str, int]
    typed: Typed
    constants: dict[str, Any]
    ops: dict[tuple[str, ...], Any] = field(default_factory=dict)

    @functools.cached_property
    def halved(self) -> list[str]:
        """The wanted arguments that the body reads in halves, whose gradients are written in halves."""
        return [name for name in self.wanted if any(v.source == name and v.part for v in self.spec.views.values())]

    @property
    def cotangents(self) -> list[str]:
        return cotangent_names(self.spec, self.live)

    def op(self, wanted: Sequence[str]) -> Any:
        """The op that gives the gradients of `wanted`; registered when it is first asked for."""
        key = tuple(wanted)
        if key not in self.ops:
            with _lock:
                if key not in self.ops:
                    self.ops[key] = op_of(self.spec, _name(self, key), lambda name: _written(self, key, name))
        return self.ops[key]


def cotangent_names(spec: Spec, live: Sequence[int]) -> list[str]:
    """`grad_out`, or `grad_out0` ... of several results."""
    several = len(spec.results) > 1
    return [free_name(f"grad_out{i}" if several else "grad_out", spec) for i in live]


def free_name(name: str, spec: Spec, others: Sequence[str] = ()) -> str:
    """`name`, or more where the op, or a derived body with the names `others`, has it."""
    taken = {n.upper() for n in (*(p.name for p in spec.parameters), *(p.name for p in spec.body.parameters), *others)}
    while name.upper() in taken:
        name += "_"
    return name


def derivable(spec: Spec) -> str:
    """Why an op has no derived backward; '' where it has one."""
    if spec.backward is not None:
        return "it has a backward= of its own"
    if spec.reference is not None or spec.make is None:
        return "it has a reference= of its own"
    if any(p.mutated for p in spec.parameters):
        return "it overwrites an argument"
    if any(v.rows for v in spec.views.values()):
        return "it gathers rows"
    for source in {v.source for v in spec.views.values()}:
        parts = [v.part for v in spec.views.values() if v.source == source]
        if parts != [None] and set(parts) not in _PAIRS:
            return f"its body reads {source!r} in parts that do not make up the whole"
    if any(o.part or (o.per_row and not spec.rowwise) for o in spec.outputs):
        return "a result of it is no whole tensor"
    return ""


def connected(spec: Spec, arguments: dict[str, Any]) -> tuple[frozenset[str], ...] | None:
    """For each result the arguments that it has a derivative by; None where only PyTorch can tell (a `reference=`)."""
    if spec.reference is not None:
        return None
    typed, constants = traced_values(spec, resolve(spec, arguments), arguments)
    key = ("connections", tuple(typed.items()), repr(constants))
    if key not in spec.memory:
        found = iter(connections(spec.body, typed, constants))
        sources = {p: spec.views[p].source if p in spec.views else p for p in typed}
        spec.memory[key] = tuple(frozenset(sources[p] for _ in group for p in next(found)) for group in spec.results)
    result: tuple[frozenset[str], ...] = spec.memory[key]
    return result


def derivative(spec: Spec, arguments: dict[str, Any], wanted: tuple[str, ...], live: tuple[int, ...]) -> Derivative | None:
    """The derivative for arguments like these; None where the op has no derived one. Traced once a kind of call."""
    if derivable(spec):
        return None
    resolved = resolve(spec, arguments)
    typed, constants = tiles(spec, resolved, arguments)
    if resolved.common in FLOAT8 or any(arguments[name].dtype in FLOAT8 for name in wanted):
        return None
    key = ("vjp", wanted, live, tuple(typed.items()), repr(constants))
    found: Derivative | None = spec.memory.get(key)
    if found is None:
        with _lock:
            found = spec.memory[key] = _traced(spec, typed, constants, wanted, live)
    return found


def tiles(spec: Spec, resolved: Resolved, arguments: dict[str, Any]) -> tuple[Typed, dict[str, Any]]:
    """What the trace of a derivative takes: every tensor over the whole domain. Where an argument is broadcast the kernel sums its
    gradient, not the body."""
    typed, constants = traced_values(spec, resolved, arguments)
    tensors = {p.name for p in resolved.inputs}
    return {name: (dtype, TILE if name in tensors else kind) for name, (dtype, kind) in typed.items()}, constants


def kinds(spec: Spec, live: Sequence[int]) -> list[str]:
    """Of each result in `live`, whether it is a tile or one value a row."""
    return [ROW if spec.results[i][0].per_row else TILE for i in live]


def _traced(spec: Spec, typed: Typed, constants: dict[str, Any], wanted: tuple[str, ...], live: tuple[int, ...]) -> Derivative:
    read = _read(spec, typed, wanted)
    dtype = torch.float64 if any(typed[p][0] is torch.float64 for p in read) else torch.float32
    cotangents: Typed = dict(zip(cotangent_names(spec, live), [(dtype, kind) for kind in kinds(spec, live)], strict=True))
    graph = vjp(spec.body, typed, constants, cotangents, live, read)
    needed = frozenset(spec.views[p].source if p in spec.views else p for p in graph.read if p not in cotangents)
    order = list(cotangents)
    passed = {
        spec.views[p].source: live[order.index(value)]
        for p, value in zip(read, passed_on(graph), strict=True)
        if value in order and spec.views[p].part is None and not spec.results[live[order.index(value)]][0].sum_to
    }
    return Derivative(spec, graph, wanted, live, needed, passed, typed, constants)


def op_of(spec: Spec, name: str, write: Callable[[str], tuple[str, dict[str, Any]]]) -> Any:
    """The op of a text that `write(name)` gives, with its declaration: one for all kinds of calls that have the same text.

    Another text never goes under the same name.
    """
    with _lock:
        text, options = write(name)
        key = ("op", text, repr(options))
        if key not in spec.memory:
            if ("name", name) in spec.memory:
                name += f"_{hashlib.sha256(repr(key).encode()).hexdigest()[:8]}"
                text, options = write(name)
            spec.memory["name", name] = spec.memory[key] = _compiled(spec, name, text, options)
        return spec.memory[key]


def _compiled(spec: Spec, name: str, text: str, options: dict[str, Any]) -> Any:
    body = spec.body.function
    function = function_of(name, text, body.__module__, f"{body.__qualname__}.{name}")
    make: Any = spec.make
    try:
        return make(function, name=f"{spec.namespace}::{name}", **options)
    except BodyError as problem:
        if "exists already" not in str(problem):
            raise
        return make(function, name=f"{spec.namespace}::{name}_derived", **options)


def _written(whole: Derivative, wanted: tuple[str, ...], name: str) -> tuple[str, dict[str, Any]]:
    """Body text and declaration (views, outputs) of the op that gives the gradients of `wanted`."""
    spec = whole.spec
    read = _read(spec, whole.typed, wanted)
    dtype = whole.typed[read[0]][0]
    cotangents: Typed = dict(zip(whole.cotangents, [(dtype, kind) for kind in kinds(spec, whole.live)], strict=True))
    graph = vjp(spec.body, whole.typed, whole.constants, cotangents, whole.live, read)
    used = needed_inputs(graph, whole.cotangents[0], spec, whole.live)
    parameters = declared_parameters(spec, used)
    doc = f"Gradient of {spec.namespace}::{spec.name} for {', '.join(wanted)}."
    text = body_text(name, graph, parameters, [free_name(f"grad_{p}", spec, whole.cotangents) for p in read], doc)
    views = {p: spec.views[p] for p in used if p in spec.views and spec.views[p] != View(p)}
    return text, {"views": views, "outputs": tuple(_output(spec.views[p]) for p in read)}


def needed_inputs(graph: Graph, first: str, spec: Spec, live: Sequence[int]) -> list[str]:
    """The inputs that a derived body takes: those it depends on, and those that give it the op's domain: its first one, where that is
    no sum over a part of it; else all, which a kernel that does not use them does not read."""
    used = set(used_inputs(graph)) | {first}
    if any(o.per_row or o.sum_to for o in (spec.results[i][0] for i in live)):
        used |= set(spec.views)
    return [name for name in graph.inputs if name in used]


def declared_parameters(spec: Spec, names: Sequence[str]) -> list[str]:
    """`x`, or `alpha: float` of a number, as a body declares them."""
    numbers = {p.name: p.type.__name__ for p in spec.body.parameters if p.kind == bodies.SCALAR}
    return [f"{name}: {numbers[name]}" if name in numbers else name for name in names]


def _read(spec: Spec, typed: Typed, wanted: Sequence[str]) -> list[str]:
    """The body's parameters that are read from the arguments whose gradient is wanted."""
    return [p for p in typed if p in spec.views and spec.views[p].source in wanted]


def _output(view: View) -> Output:
    if view.part is not None:
        return Output(view.source, part=view.part)
    return Output(view.source, sum_to=view.source)


def _name(whole: Derivative, wanted: tuple[str, ...]) -> str:
    """`swish_backward`; what is not the usual case (all tensors, all results, no compile-time values) stands behind it."""
    spec = whole.spec
    tensors = tuple(dict.fromkeys(spec.views[p].source for p in whole.typed if p in spec.views))
    return spelled(spec, "backward", () if wanted == tensors else wanted, whole.live, whole.constants)


def spelled(spec: Spec, what: str, names: Sequence[str], live: Sequence[int], constants: dict[str, Any]) -> str:
    parts = [spec.name, what, *names]
    if tuple(live) != tuple(range(len(spec.results))):
        parts += [f"of{i}" for i in live]
    if constants:
        parts.append(hashlib.sha256(repr(constants).encode()).hexdigest()[:8])
    return "_".join(parts)


def backward_op(spec: Spec, arguments: dict[str, Any]) -> Any:
    """The op that gives all gradients of a call like this one."""
    found, wanted = _of_call(spec, arguments)
    return found.op(wanted)


def _of_call(spec: Spec, arguments: dict[str, Any]) -> tuple[Derivative, tuple[str, ...]]:
    reason = derivable(spec)
    if reason:
        raise RaftersError(f"{spec.name}: it has no derived backward, because {reason}; PyTorch derives its torch form instead")
    wanted = tuple(p.name for p in spec.parameters if p.kind == TENSOR and _is_floating(arguments[p.name]))
    live = tuple(i for i, r in enumerate(resolve(spec, arguments).results) if r.dtype.is_floating_point)
    found = derivative(spec, arguments, wanted, live) if wanted and live else None
    if found is None:
        raise RaftersError(f"{spec.name}: it has no derived backward for these dtypes")
    return found, wanted


def backward_source(spec: Spec, arguments: dict[str, Any]) -> str:
    """The derived backward as a file of the user's own: imports, decorator, body."""
    found, wanted = _of_call(spec, arguments)
    text, options = _written(found, wanted, _name(found, wanted))
    views = ", ".join(f"{name!r}: {_shown(view)}" for name, view in options["views"].items())
    outputs = ", ".join(_shown(output) for output in options["outputs"])
    declared = (f"views={{{views}}}, " if views else "") + f"outputs=({outputs},)"
    names = ", ".join(n for n in ("Output", "View", "lang", "tl") if f"{n}(" in declared or f"{n}." in text)
    decorator = "rowwise" if spec.rowwise else "elementwise"
    return f"import rafters\nfrom rafters import {names}\n\n\n@rafters.{decorator}({declared})\n{text}"


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _shown(declared: Any) -> str:
    """`Output('x', sum_to='x')`: what is not the default."""
    shown = [
        repr(value) if name in ("dtype", "source") else f"{name}={value!r}"
        for name, value in vars(declared).items()
        if value not in (None, False)
    ]
    return f"{type(declared).__name__}({', '.join(shown)})"
