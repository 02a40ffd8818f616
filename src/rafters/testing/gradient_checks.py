"""Gradients of an op, against finite differences and against PyTorch's derivative of the same maths; in float64, by public calls alone."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from rafters.dtypes import FLOAT8
from rafters.operator.op import Op
from rafters.testing.calls import Call, takes_any_shapes
from rafters.testing.citizen import SkipCheck

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def prepared(op: Op, call: Call, device: str) -> tuple[list[Any], list[int]]:
    """The arguments, and the places of those that get a gradient; raises SkipCheck where the op has none."""
    if any(p.mutated for p in op.spec.parameters):
        raise SkipCheck("the op overwrites an argument, so it has no gradient")
    arguments = list(call.make(device))
    places = [i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor) and a.is_floating_point()]
    if not places:
        raise SkipCheck("no floating-point tensor among its arguments")
    results = _tuple(op(*arguments))
    if not any(differentiable(r) for r in results):
        raise SkipCheck("no result with a gradient")
    for i in places:
        arguments[i] = arguments[i].detach().requires_grad_()
    return arguments, places


def differentiable(result: torch.Tensor) -> bool:
    return result.is_floating_point() and result.dtype not in FLOAT8


def _tuple(made: Any) -> tuple[torch.Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def of_places(op: Op, arguments: Sequence[Any], places: Sequence[int]) -> Callable[..., Any]:
    """The op as a function of some of its arguments, with the results that have a gradient."""

    def function(*inner: torch.Tensor) -> Any:
        filled = list(arguments)
        for i, value in zip(places, inner, strict=True):
            filled[i] = value
        made = tuple(r for r in _tuple(op(*filled)) if differentiable(r))
        return made[0] if len(made) == 1 else made

    return function


def wanted(op: Op, arguments: Sequence[Any], places: Sequence[int], upstream: Sequence[torch.Tensor | None]) -> Sequence[Any]:
    """PyTorch's derivative of the op's maths in PyTorch operations."""
    fresh = [a.detach().requires_grad_() if i in places else a for i, a in enumerate(arguments)]
    passed = _expanded(fresh) if takes_any_shapes(op) and not op.spec.rowwise else fresh
    results = [r for r in _tuple(op.reference(*passed)) if differentiable(r)]
    used = [(r, g) for r, g in zip(results, upstream, strict=True) if g is not None and r.requires_grad]
    return torch.autograd.grad([r for r, _ in used], [fresh[i] for i in places], [g for _, g in used], allow_unused=True)


def _expanded(arguments: Sequence[Any]) -> list[Any]:
    """The tensors in their common shape: some of PyTorch's derivatives (clamp's) fail on arguments that broadcast."""
    shape = torch.broadcast_shapes(*(a.shape for a in arguments if isinstance(a, torch.Tensor)))
    return [a.expand(shape) if isinstance(a, torch.Tensor) else a for a in arguments]


def _got(op: Op, arguments: Sequence[Any], places: Sequence[int], upstream: Sequence[torch.Tensor | None]) -> Sequence[Any]:
    results = [r for r in _tuple(op(*arguments)) if differentiable(r)]
    used = [(r, g) for r, g in zip(results, upstream, strict=True) if g is not None and r.requires_grad]
    return torch.autograd.grad([r for r, _ in used], [arguments[i] for i in places], [g for _, g in used], allow_unused=True)


def _upstream(op: Op, arguments: Sequence[Any]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        results = [r for r in _tuple(op(*arguments)) if differentiable(r)]
    return [torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r) for r in results]


def _differences(op: Op, places: Sequence[int], got: Sequence[Any], want: Sequence[Any], arguments: Sequence[Any]) -> list[str]:
    faults = []
    for i, mine, theirs in zip(places, got, want, strict=True):
        name, argument = op.spec.parameters[i].name, arguments[i]
        if mine is None:
            faults += [] if theirs is None or not theirs.any() else [f"no gradient of {name!r}"]
            continue
        if mine.shape != argument.shape or mine.dtype is not argument.dtype:
            faults.append(
                f"gradient of {name!r}: {tuple(mine.shape)} {mine.dtype}, wanted {tuple(argument.shape)} {argument.dtype}"
            )
            continue
        theirs = torch.zeros_like(mine) if theirs is None else theirs
        if not torch.allclose(mine, theirs, equal_nan=True, **CLOSE):
            worst = (mine - theirs).abs().nan_to_num(float("inf")).max()
            faults.append(f"gradient of {name!r} is off by {float(worst):.3g} (largest value {float(theirs.abs().max()):.3g})")
    return faults


def gradient(op: Op, call: Call, device: str) -> list[str]:
    """Against finite differences (gradcheck), and to the last places against PyTorch's derivative."""
    arguments, places = prepared(op, call, device)
    upstream = _upstream(op, arguments)
    faults = _differences(op, places, _got(op, arguments, places, upstream), wanted(op, arguments, places, upstream), arguments)
    function = of_places(op, arguments, places)
    torch.autograd.gradcheck(function, [arguments[i] for i in places], check_undefined_grad=True)
    return faults


def double(op: Op, call: Call, device: str) -> list[str]:
    """gradgradcheck: the gradient is itself differentiable."""
    arguments, places = prepared(op, call, device)
    torch.autograd.gradgradcheck(of_places(op, arguments, places), [arguments[i] for i in places], fast_mode=True)
    return []


def strided(op: Op, call: Call, device: str) -> list[str]:
    """Upstream gradients as they come: one number expanded with stride 0, expanded rows, transposed, every other element."""
    arguments, places = prepared(op, call, device)
    dense = _upstream(op, arguments)
    faults = []
    for label, change in _COTANGENTS.items():
        upstream = [change(g) for g in dense]
        clones = [g.clone(memory_format=torch.contiguous_format) for g in upstream]
        found = _differences(op, places, _got(op, arguments, places, upstream), wanted(op, arguments, places, clones), arguments)
        faults += [f"upstream gradient {label}: {fault}" for fault in found]
    return faults


def _stepped(g: torch.Tensor) -> torch.Tensor:
    if not g.dim():
        return g
    return torch.stack([g, torch.full_like(g, 77.0)], -1).flatten(-2)[..., ::2]


_COTANGENTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one number, stride 0": lambda g: g.new_tensor(1.25).expand(g.shape),
    "one row repeated, stride 0": lambda g: g[:1].expand(g.shape) if g.dim() else g,
    "transposed": lambda g: g.permute(*reversed(range(g.dim()))).contiguous().permute(*reversed(range(g.dim()))),
    "every other element": _stepped,
}


def subsets(op: Op, call: Call, device: str) -> list[str]:
    """Every subset of the arguments that may want a gradient, and every subset of results that has an upstream one."""
    arguments, places = prepared(op, call, device)
    upstream = _upstream(op, arguments)
    faults = []
    for size in range(1, len(places) + 1):
        for chosen in itertools.combinations(places, size):
            part = [a.detach().requires_grad_(i in chosen) if i in places else a for i, a in enumerate(arguments)]
            found = _differences(op, chosen, _got(op, part, chosen, upstream), wanted(op, part, chosen, upstream), part)
            faults += [f"gradients of {[op.spec.parameters[i].name for i in chosen]}: {f}" for f in found]
    for used in itertools.product((True, False), repeat=len(upstream)):
        if any(used) and not all(used):
            live = [g if use else None for g, use in zip(upstream, used, strict=True)]
            found = _differences(op, places, _got(op, arguments, places, live), wanted(op, arguments, places, live), arguments)
            faults += [f"upstream gradients of results {used}: {f}" for f in found]
    return faults


def forward(op: Op, call: Call, device: str) -> list[str]:
    """Forward mode, by dual tensors and by torch.func.jvp: the directional derivative, never a silent zero."""
    arguments, places = prepared(op, call, device)
    plain = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
    generator = torch.Generator().manual_seed(9)
    directions = [torch.randn(plain[i].shape, generator=generator, dtype=torch.float64).to(plain[i]) for i in places]
    function = of_places(op, plain, places)
    at = [plain[i] for i in places]
    step = 1e-6
    with torch.no_grad():
        after = _tuple(function(*(a + step * d for a, d in zip(at, directions, strict=True))))
        before = _tuple(function(*(a - step * d for a, d in zip(at, directions, strict=True))))
    slopes = [(a - b) / (2 * step) for a, b in zip(after, before, strict=True)]
    faults = []
    with forward_ad.dual_level():
        duals = _tuple(function(*(forward_ad.make_dual(a, d) for a, d in zip(at, directions, strict=True))))
        tangents = [forward_ad.unpack_dual(r).tangent for r in duals]
        faults += _tangents("dual tensors", tangents, slopes)
    faults += _tangents("torch.func.jvp", _tuple(torch.func.jvp(function, tuple(at), tuple(directions))[1]), slopes)
    return faults


def _tangents(label: str, tangents: Sequence[Any], slopes: Sequence[torch.Tensor]) -> list[str]:
    faults = []
    for i, (tangent, slope) in enumerate(zip(tangents, slopes, strict=True)):
        if tangent is None or (slope.abs().max() > 1e-3 and not tangent.any() if slope.numel() else False):
            faults.append(f"{label}: the tangent of result {i} is zero, the directional derivative is not")
        elif not torch.allclose(tangent, slope, rtol=1e-5, atol=1e-6):
            worst = float((tangent - slope).abs().max())
            faults.append(f"{label}: the tangent of result {i} is off the directional derivative by {worst:.3g}")
    return faults


def narrow(op: Op, call: Call, device: str) -> list[str]:
    """bfloat16: gradients in the dtype of their arguments, as near the exact ones as the dtype allows."""
    arguments, places = prepared(op, call, device)
    upstream = _upstream(op, arguments)
    got = _got(op, arguments, places, upstream)
    exact = [a.detach().double() if i in places else a for i, a in enumerate(arguments)]
    for i in places:
        exact[i].requires_grad_()
    want = wanted(op, exact, places, [g.double() for g in upstream])
    faults = []
    for i, mine, theirs in zip(places, got, want, strict=True):
        if mine is None or theirs is None:
            continue
        if mine.dtype is not arguments[i].dtype:
            faults.append(f"gradient of {op.spec.parameters[i].name!r} is {mine.dtype}, its argument {arguments[i].dtype}")
            continue
        limit = 4 * torch.finfo(mine.dtype).eps * float(theirs.abs().max().clamp(min=1e-3)) if theirs.numel() else 0.0
        worst = float((mine.double() - theirs).abs().max()) if theirs.numel() else 0.0
        faults += (
            [f"gradient of {op.spec.parameters[i].name!r} is off by {worst:.3g}, allowed {limit:.3g}"] if worst > limit else []
        )
    return faults
