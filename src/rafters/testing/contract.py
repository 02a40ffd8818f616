"""What every op promises, as checks of one call: each returns what is wrong, in words, and nothing where all is well."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rafters.dtypes import FLOAT8
from rafters.engine.layouts import geometry
from rafters.engine.spec import INDEX
from rafters.operator.op import Op
from rafters.testing import layouts
from rafters.testing.compare import same_bits, ulp_error, wrong_values
from rafters.testing.guards import Guarded
from rafters.testing.reference import exact


@dataclass(frozen=True)
class Sample:
    """One call of an op; `peer` is PyTorch's own function for it, if there is one."""

    op: Op
    arguments: tuple[Any, ...]
    peer: Callable[..., Any] | None = None
    zero_signs: bool = True  # compared with the peer's
    thorough: bool = True  # with unaligned and strided `out=` as well, which are kernels of their own

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(a for a in self.arguments if isinstance(a, torch.Tensor))

    def call(self, *arguments: Any, out: Any = None) -> tuple[torch.Tensor, ...]:
        made = self.op(*(arguments or self.arguments), out=out)
        return made if isinstance(made, tuple) else (made,)


def faults_of(sample: Sample) -> list[str]:
    """Every promise on one call."""
    before = [t.clone() for t in sample.tensors]
    results = sample.call()
    faults = [
        *values(sample, results),
        *repeated(sample, results),
        *strides(sample, results),
        *of_clones(sample, results),
        *into_out(sample, results),
        *in_place(sample, results),
        *fake(sample, results),
    ]
    changed = [i for i, (t, b) in enumerate(zip(sample.tensors, before, strict=True)) if not same_bits(t, b)]
    return faults + [f"input {i} was changed" for i in changed]


def values(sample: Sample, results: Sequence[torch.Tensor]) -> list[str]:
    """Within the limits of the float64 truth, and of PyTorch's own dtype and signs of zero."""
    truth = exact(sample.op, sample.arguments)
    peer = peer_results(sample)
    faults = []
    for i, (got, want) in enumerate(zip(results, truth, strict=True)):
        if peer is None:
            faults += [f"result {i}: {fault}" for fault in wrong_values(got, want)]
            continue
        faults += [f"result {i}: {fault}" for fault in wrong_values(got, want, allowance(sample, i, got, peer[i]))]
        if peer[i].dtype is not got.dtype:
            faults.append(f"result {i}: dtype {got.dtype}, PyTorch gives {peer[i].dtype}")
        elif sample.zero_signs and got.is_floating_point() and got.dtype not in FLOAT8 and got.shape == peer[i].shape:
            other = (got == 0) & (peer[i] == 0) & (got.signbit() != peer[i].signbit())
            faults += [f"result {i}: {int(other.sum())} zeros have another sign than PyTorch's"] if bool(other.any()) else []
    return faults


NEIGHBOURS = 40


def allowance(sample: Sample, i: int, got: torch.Tensor, peer: torch.Tensor) -> torch.Tensor | None:
    """What PyTorch's own rounding allows: twice its worst error at the element and at inputs a few ulp away from it (so that no
    element is judged by luck), for float32 and float64; and any NaN or infinity that PyTorch gives there too."""
    if not got.dtype.is_floating_point or got.shape != peer.shape:
        return None
    kept = torch.where(same_class(got, peer), float("inf"), 0.0).cpu()
    if got.dtype.itemsize < 4 or peer.dtype is not got.dtype or not got.numel():
        return kept
    spec = sample.op.spec
    if any(p.kind == INDEX for p in spec.parameters) or any(o.sum_to for o in spec.outputs):
        # rows that are selected, sums over what is broadcast: nothing can be stacked before them
        error = ulp_error(peer, exact(sample.op, sample.arguments)[i])
        return torch.maximum(kept, 2 * torch.where(error.isfinite(), error, 0.0))
    near = [_near(a, got.dim()) if isinstance(a, torch.Tensor) else a for a in sample.arguments]
    order = _orders(sample, got) if spec.rowwise else None
    if order is not None:
        near = [_ordered(a, order) if isinstance(a, torch.Tensor) else a for a in near]
    with torch.no_grad():
        theirs = _tuple(sample.peer(*near))[i] if sample.peer else peer
    error = ulp_error(theirs, exact(sample.op, near)[i])
    if order is not None:  # each number back in its place
        back = order.argsort(-1)
        error, theirs = _ordered(error, back.cpu()), _ordered(theirs, back)
        kept = torch.where(same_class(got, theirs).any(0), float("inf"), 0.0).cpu()
    return torch.maximum(kept, 2 * torch.where(error.isfinite(), error, 0.0).amax(0).expand(got.shape))


def _orders(sample: Sample, got: torch.Tensor) -> torch.Tensor | None:
    """An order of the columns for each neighbour: what float32 loses in a sum depends on it. None where the body reads or writes halves
    of a row, which has an order then."""
    spec = sample.op.spec
    if any(v.part for v in spec.views.values()) or any(o.part for o in spec.outputs):
        return None
    cols = max(t.shape[-1] for t in sample.tensors if t.dim())
    generator = torch.Generator().manual_seed(NEIGHBOURS)
    orders = torch.stack([torch.arange(cols), *(torch.randperm(cols, generator=generator) for _ in range(NEIGHBOURS))])
    return orders.reshape(-1, *(1,) * (got.dim() - 1), cols).to(got.device)


def _ordered(tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return tensor.take_along_dim(order, -1) if tensor.shape[-1] == order.shape[-1] else tensor


def same_class(got: torch.Tensor, peer: torch.Tensor) -> torch.Tensor:
    """Both NaN, or the same infinity."""
    a, b = (t.float() if t.dtype in FLOAT8 else t for t in (got, peer))
    return (a.isnan() & b.isnan()) | (a.isinf() & (a == b))


def _near(argument: torch.Tensor, rank: int) -> torch.Tensor:
    """The argument and copies of it whose values are a few ulp smaller, stacked before its dimensions padded to `rank`."""
    argument = argument[(None,) * (rank - argument.dim())].contiguous()
    if not argument.dtype.is_floating_point:
        return argument.expand(NEIGHBOURS + 1, *argument.shape).contiguous()
    steps = torch.arange(NEIGHBOURS + 1, device=argument.device, dtype=torch.float64)
    generator = torch.Generator().manual_seed(NEIGHBOURS)
    jitter = torch.randint(1, 9, (NEIGHBOURS + 1, *argument.shape), generator=generator).to(argument.device)
    steps = steps.clamp(max=1).reshape(-1, *(1,) * argument.dim()) * jitter * torch.finfo(argument.dtype).eps
    return (argument * (1 - steps).to(argument.dtype)).contiguous()


def _tuple(made: Any) -> tuple[torch.Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def peer_results(sample: Sample) -> tuple[torch.Tensor, ...] | None:
    """What PyTorch's own function gives, on the device of the call; None where it has none for these dtypes."""
    if sample.peer is None:
        return None
    eight = next((t.dtype for t in sample.tensors if t.dtype in FLOAT8), None)
    try:
        if eight is None:
            return _tuple(sample.peer(*sample.arguments))
        wide = [a.float() if isinstance(a, torch.Tensor) and a.dtype in FLOAT8 else a for a in sample.arguments]
        limit = torch.finfo(eight).max
        return tuple(made.clamp(-limit, limit).to(eight) for made in _tuple(sample.peer(*wide)))
    except (NotImplementedError, RuntimeError) as problem:
        if "not implemented for" in str(problem) or "not supported for" in str(problem):
            return None
        raise


def repeated(sample: Sample, results: Sequence[torch.Tensor]) -> list[str]:
    """The second and third call, through the kept plan, give the same bits in memory of their own."""
    faults = []
    for number in (2, 3):
        again = sample.call()
        for i, (first, other) in enumerate(zip(results, again, strict=True)):
            faults += [] if same_bits(first, other) else [f"result {i}: call {number} differs"]
            shared = first.numel() and first.data_ptr() == other.data_ptr()
            faults += [f"result {i}: call {number} shares memory with the first"] if shared else []
    return faults


def strides(sample: Sample, results: Sequence[torch.Tensor]) -> list[str]:
    """The layout that PyTorch would choose (row-wise: dense); strides of dimensions of size 1 mean nothing."""
    faults = []
    for i, (got, group) in enumerate(zip(results, sample.op.spec.results, strict=True)):
        plain = not sample.op.spec.rowwise and group[0].part is None and not group[0].per_row and group[0].into is None
        if not plain or len(sample.tensors) > 3:
            wanted = geometry.contiguous_strides(tuple(got.shape))
        else:
            wanted = layouts.torch_strides(sample.tensors)
        if not same_strides(got.shape, got.stride(), wanted):
            faults.append(f"result {i}: strides {got.stride()}, wanted {wanted} for shape {tuple(got.shape)}")
    return faults


def same_strides(shape: Sequence[int], a: Sequence[int], b: Sequence[int]) -> bool:
    return 0 in shape or all(s == t for n, s, t in zip(shape, a, b, strict=True) if n > 1)


def of_clones(sample: Sample, results: Sequence[torch.Tensor]) -> list[str]:
    """op(view) == op(view.clone()), bit for bit. On the CPU, where PyTorch's vector and scalar loops differ, the limits hold."""
    cloned = [a.clone(memory_format=torch.contiguous_format) if isinstance(a, torch.Tensor) else a for a in sample.arguments]
    made = sample.call(*cloned)
    if sample.tensors[0].device.type == "cpu":
        return [f"of clones: {fault}" for fault in values(replace(sample, arguments=tuple(cloned)), made)]
    return [f"result {i}: differs from that of contiguous clones"
            for i, (a, b) in enumerate(zip(results, made, strict=True)) if not same_bits(a, b)]  # fmt: skip


def into_out(sample: Sample, results: Sequence[torch.Tensor]) -> list[str]:
    """`out=` of the result's layout, of an unaligned one and of a strided one: same bits, nothing written around it."""
    faults = []
    targets = (("out=", 0, 1), ("out= 1 element in", 1, 1), ("out= every other element", 0, 2))
    for label, start, spread in targets if sample.thorough else targets[:1]:
        guards = [Guarded(r.shape, [s * spread for s in r.stride()], r.dtype, r.device, start) for r in results]
        given = tuple(g.tensor for g in guards)
        made = sample.call(out=given[0] if len(given) == 1 else given)
        for i, (guard, result, got) in enumerate(zip(guards, results, made, strict=True)):
            if got is not guard.tensor:
                faults.append(f"result {i}: {label} is not what was returned")
            if not _equal(sample, guard.tensor, result):
                faults.append(f"result {i}: {label} differs ({guard.untouched()} elements not written)")
            if written := guard.overrun():
                faults.append(f"result {i}: {label} wrote outside, at elements {written}")
    return faults


def in_place(sample: Sample, results: Sequence[torch.Tensor]) -> list[str]:
    """The result over the first argument that can hold it."""
    if len(results) != 1 or not results[0].numel():
        return []
    for position, argument in enumerate(sample.arguments):
        fits = isinstance(argument, torch.Tensor) and argument.shape == results[0].shape and argument.dtype is results[0].dtype
        if fits and not geometry.overlaps_itself(tuple(argument.shape), argument.stride()):
            target = layouts.like(argument)
            arguments = [target if i == position else a for i, a in enumerate(sample.arguments)]
            sample.call(*arguments, out=target)
            return [] if _equal(sample, target, results[0]) else [f"in place over argument {position}: differs"]
    return []


def fake(sample: Sample, results: Sequence[torch.Tensor]) -> list[str]:
    """The fake function promises the shapes, strides, dtypes and device that the call gives."""
    mode = FakeTensorMode()
    arguments = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in sample.arguments]
    with mode:
        promised = sample.call(*arguments)
    faults = []
    for i, (got, want) in enumerate(zip(promised, results, strict=True)):
        facts = [(t.shape, t.stride(), t.dtype, t.device.type) for t in (got, want)]
        faults += [f"result {i}: fake {facts[0]}, real {facts[1]}"] if facts[0] != facts[1] else []
    return faults


def _equal(sample: Sample, a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same bits; on the CPU, where PyTorch's loops differ by layout, both within the limits."""
    if same_bits(a, b) or a.device.type != "cpu":
        return same_bits(a, b)
    return len(sample.op.spec.results) == 1 and not values(sample, [a])
