"""Derivatives of a traced body, as graphs of their own: the same trace, with PyTorch's rules applied inside it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rafters.lang import rows
from rafters.trace.body import Body
from rafters.trace.graph import Graph, alone, trace_function
from rafters.trace.nodes import ROW, SHAPES
from rafters.trace.run import run

Typed = dict[str, tuple[torch.dtype, str]]  # dtype and kind (tile, column, row, point) of every value of a body


def connections(body: Body, tensors: Typed, constants: dict[str, Any]) -> tuple[frozenset[str], ...]:
    """For each output the values that it has a derivative by, as autograd sees it: none by a comparison, an integer, a constant."""
    with alone(), torch.enable_grad():
        leaves = {n: torch.ones(SHAPES[kind], dtype=dtype) for n, (dtype, kind) in tensors.items()}
        real = {n: leaf.requires_grad_() for n, leaf in leaves.items() if leaf.dtype.is_floating_point}
        result = []
        for value in run(body, {**leaves, **constants}):
            if not value.requires_grad:
                result.append(frozenset[str]())
                continue
            found = torch.autograd.grad(value.sum(), tuple(real.values()), allow_unused=True, retain_graph=True)
            result.append(frozenset(n for n, gradient in zip(real, found, strict=True) if gradient is not None))
        return tuple(result)


def vjp(
    body: Body, tensors: Typed, constants: dict[str, Any], cotangents: Typed, outputs: Sequence[int], wanted: Sequence[str]
) -> Graph:
    """The gradients of `wanted`. Inputs: the cotangents of `outputs`, each of its output's kind, then `tensors`."""
    kinds = tuple(kind for _, kind in cotangents.values())
    count, names = len(cotangents), tuple(tensors)

    def function(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(names, values[count:], strict=True))
        forward = _chosen(body, given, constants, outputs, kinds, wanted)
        vjp_: Any = torch.func.vjp
        made, pull = vjp_(forward, *(given[name] for name in wanted))
        seeds = tuple(c.to(m.dtype) for c, m in zip(values[:count], made, strict=True))
        gradients: tuple[torch.Tensor, ...] = pull(seeds)
        return gradients

    with rows.deriving():
        return trace_function(function, {**cotangents, **tensors}, mutates=True)


def jvp(
    body: Body, tensors: Typed, constants: dict[str, Any], tangents: dict[str, str], outputs: Sequence[int], kinds: Sequence[str]
) -> Graph:
    """The tangents of `outputs`, which are of these kinds. `tangents` names the tangent of each value that has one; inputs: these, then
    `tensors`.

    Made of two reverse derivatives, of which the outer one is of a function that is linear: PyTorch's forward mode cannot be nested,
    and the call that asks may be in the middle of it.
    """
    count, names, moved = len(tangents), tuple(tensors), tuple(tangents)

    def function(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(names, values[count:], strict=True))
        forward = _chosen(body, given, constants, outputs, kinds, moved)
        vjp_: Any = torch.func.vjp
        made, pull = vjp_(forward, *(given[n] for n in moved))
        push = vjp_(lambda *seeds: pull(seeds), *(torch.zeros_like(m) for m in made))[1]
        tangents_: tuple[torch.Tensor, ...] = push(values[:count])
        return tangents_

    with rows.deriving():
        return trace_function(function, {**{t: tensors[n] for n, t in tangents.items()}, **tensors}, mutates=True)


def _chosen(
    body: Body,
    given: dict[str, torch.Tensor],
    constants: dict[str, Any],
    outputs: Sequence[int],
    kinds: Sequence[str],
    names: Sequence[str],
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The chosen outputs as a function of the named values alone: tiles over the whole domain, or one value a row."""

    def forward(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = run(body, {**given, **dict(zip(names, values, strict=True)), **constants})
        return tuple(_of_kind(made[i], kind) for i, kind in zip(outputs, kinds, strict=True))

    return forward


def _of_kind(value: torch.Tensor, kind: str) -> torch.Tensor:
    """One value a row may come as a row of equal ones: their mean has its derivative."""
    if kind == ROW and value.dim() and value.shape[-1] != 1:
        return rows.row_mean.meaning(value)  # type: ignore[no-any-return]
    return value.expand(SHAPES[kind])
