"""In which arguments is a body linear? Read off its graph.

f is linear in a set of arguments when f(sums of them, the others) = the sum of f(their parts, the others): a result of partial sums is
itself a partial sum. The set is taken as a whole: x + y is linear in {x, y} but not in {x} (y would be added once a part), x * y is
linear in {x} and in {y} but not in both.
"""

from collections.abc import Set
from typing import Any

import torch

from rafters.trace.graph import Graph
from rafters.trace.nodes import FILLED, filling, name_of

# How a value depends on the set: not at all; not at all, being 0 (so that it may be added to a part); linearly. None: in another way.
FREE, ZERO, LINEAR = "free", "zero", "linear"

# The first operand passes through, in another shape or sign; the others are dimensions and the like.
_THROUGH = {"neg", "clone", "alias", "detach", "view", "expand", "unsqueeze", "squeeze", "permute", "slice", "sum", "mean"}


def linear_in(graph: Graph, chosen: Set[str]) -> tuple[str | None, ...]:
    """FREE, ZERO, LINEAR or None of each output, by the inputs named in `chosen`.

    Exact in real arithmetic where it says LINEAR; an operation it does not know it does not call linear.
    """
    state: dict[torch.fx.Node, str | None] = {}
    inputs = iter(graph.inputs)
    outputs: tuple[str | None, ...] = ()
    for node in graph.module.graph.nodes:
        if node.op == "placeholder":
            state[node] = LINEAR if next(inputs) in chosen else FREE
        elif node.op == "output":
            outputs = tuple(state[value] for value in node.args[0])
        else:
            state[node] = _state(node, state)
    return outputs


def _state(node: torch.fx.Node, state: dict[torch.fx.Node, str | None]) -> str | None:
    def of(value: Any) -> str | None:
        if isinstance(value, torch.fx.Node):
            return state[value]
        return ZERO if isinstance(value, bool | int | float) and value == 0 else FREE

    name = name_of(node)
    if name == "full":
        return of(node.args[1])
    if name in FILLED:
        return of(filling(node))
    operands = [state[value] for value in node.all_input_nodes]
    if all(s in (FREE, ZERO) for s in operands):
        return FREE
    if None in operands or not node.meta["val"].dtype.is_floating_point:
        return None  # integers wrap and truncate, a comparison steps
    first, *others = (of(value) for value in node.args)
    if name in _THROUGH or name == "_to_copy":
        return first
    if name in ("add", "sub"):
        return _sum(first, others[0])
    if name == "mul":
        return LINEAR if {first, others[0]} != {LINEAR} else None
    if name == "div" and not node.kwargs.get("rounding_mode"):
        return first if others[0] == FREE else None
    if name == "lerp":
        return _sum(first, others[0]) if others[1] == FREE else None
    if name == "where":
        return _sum(*others) if first == FREE else None
    return None


def _sum(one: str | None, other: str | None) -> str | None:
    return LINEAR if {one, other} <= {LINEAR, ZERO} else None
