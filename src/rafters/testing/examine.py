"""One call, run into guarded memory, and which promises it broke.

The same for every way to run an op: on the device of its tensors, or its kernel by Triton's interpreter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rafters.errors import ArgumentError
from rafters.testing.calls import Call
from rafters.testing.compare import described, misses, same_bits, ulp_error, widened
from rafters.testing.contract import Sample, allowance
from rafters.testing.guards import PATTERN, Guarded
from rafters.testing.reference import exact

Faults = dict[str, list[str]]  # promise -> what is wrong; an empty list where it was looked at and kept
LAST_BLOCK, WRITTEN, GUARDS, UNCHANGED, SPECIAL = (
    "last block", "every element written", "guard zones", "inputs unchanged", "NaN and infinities",
)  # fmt: skip

# Runs a call whose results are to go where the guarded tensors are.
Execute = Callable[[Call, Sequence[Any], Sequence[torch.Tensor]], None]


class Refused(Exception):  # noqa: N818  (it is no error)
    """The op does not take such a call; nothing follows from it."""


@dataclass(frozen=True)
class Bounds:
    """How far results may be from the truth, in ulp: of 16-bit dtypes, of float32 and float64 (None: the library's own limits); or as a
    share of the largest value of the result (or of 1), where terms cancel."""

    narrow: float | None = None
    wide: float | None = None
    share: float = 0.0

    def limit(self, dtype: torch.dtype) -> float:
        return (self.narrow if dtype.itemsize < 4 else self.wide) or 0.0


def promised(call: Call, arguments: Sequence[Any]) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
    """Shape, strides and dtype of each new result; raises Refused where the op does not take the call."""
    try:
        return list(call.op.form.new_results(call.named(arguments)))
    except (ArgumentError, ValueError, IndexError, RuntimeError) as problem:
        raise Refused(str(problem)) from problem


def examine(call: Call, execute: Execute, device: torch.device | str = "cpu", bounds: Bounds | None = None) -> Faults:
    """Runs the call into poisoned, guarded results and judges the memory it leaves."""
    bounds = bounds or Bounds()
    arguments = call.make(device)
    specs = promised(call, arguments)
    try:
        truth = exact(call.op, arguments)
    except NotImplementedError as problem:  # PyTorch lacks an operation of the author's reference for this dtype
        raise Refused(str(problem)) from problem
    sample = Sample(call.op, call.make(device), call.op.reference)
    guards = [Guarded(shape, strides, dtype, device) for shape, strides, dtype in specs]
    tensors = [(p, a) for p, a in zip(call.op.spec.parameters, arguments, strict=True) if isinstance(a, torch.Tensor)]
    before = [_seen(a).clone() for _, a in tensors]
    peers = _peers(sample)
    execute(call, arguments, [g.tensor for g in guards])
    faults: Faults = {GUARDS: [], WRITTEN: [], UNCHANGED: [], SPECIAL: [], call.subject: []}
    for (p, tensor), old in zip(tensors, before, strict=True):
        if at := _changed(tensor, old, inside=not p.mutated):
            faults[GUARDS if p.mutated else UNCHANGED].append(f"memory of {p.name!r} was written, {at}")
    fresh = iter(guards)
    named = call.named(arguments)
    for i, (group, want) in enumerate(zip(call.op.spec.results, truth, strict=True)):
        if group[0].into is not None:
            got = named[group[0].into]
            _judge(call, faults, f"{group[0].into!r}", got, want, _permitted(sample, i, got, want, peers, bounds), None)
            continue
        guard = next(fresh)
        label = f"result {i}" if len(guards) > 1 else "the result"
        if written := guard.overrun():
            faults[GUARDS].append(f"{label}: written outside, at elements {written} from its start")
        _judge(call, faults, label, guard.tensor, want, _permitted(sample, i, guard.tensor, want, peers, bounds), guard)
    return faults


def _judge(
    call: Call, faults: Faults, label: str, got: torch.Tensor, want: torch.Tensor, permitted: torch.Tensor | None, guard: Any
) -> None:
    """Values of one result, each fault under the promise it breaks."""
    if tuple(got.shape) != tuple(want.shape):
        faults[call.subject].append(f"{label}: shape {tuple(got.shape)}, wanted {tuple(want.shape)}")
        return
    wrong = misses(got, want, permitted)
    missing = torch.zeros_like(wrong) if guard is None else poisoned(got).cpu() & wrong
    if bool(missing.any()):
        at = tuple(int(i) for i in missing.nonzero()[0])
        where = LAST_BLOCK if call.subject == LAST_BLOCK else WRITTEN
        faults[where].append(f"{label}: {int(missing.sum())} of {got.numel()} elements were not written, the first at {at}")
    wrong &= ~missing
    if got.dtype.is_floating_point:
        ends = ~(widened(got).isfinite() & widened(want).isfinite())
        faults[SPECIAL] += [f"{label}: {fault}" for fault in described(wrong & ends, got, want)]
        wrong &= ~ends
    faults[call.subject] += [f"{label}: {fault}" for fault in described(wrong, got, want)]


def _peers(sample: Sample) -> tuple[torch.Tensor, ...]:
    """The same maths in PyTorch operations, in the dtypes of the call."""
    with torch.no_grad():
        made = sample.op.reference(*sample.arguments)
    return made if isinstance(made, tuple) else (made,)


def _permitted(
    sample: Sample, i: int, got: torch.Tensor, truth: torch.Tensor, peers: Sequence[torch.Tensor], bounds: Bounds
) -> torch.Tensor | None:
    """What a result may differ by: twice the error of the same maths in PyTorch operations, and the bounds of whoever asks."""
    peer, permitted = peers[i], None
    if peer.dtype is got.dtype and peer.shape == got.shape:
        permitted = allowance(sample, i, got, peer)
        if permitted is not None and got.dtype.itemsize < 4:
            # of a result that is rounded once: where the same maths in float32 is further off, an intermediate value overflowed
            off = ulp_error(peer, truth)
            permitted = torch.maximum(permitted, torch.where(off.isfinite() & (off > 1), 2 * off, 0.0))
    floor = bounds.limit(got.dtype)
    if not floor or not got.dtype.is_floating_point:
        return permitted
    least = torch.full(got.shape, floor, dtype=torch.float64)
    if bounds.share and got.numel():
        peak = widened(truth).nan_to_num(0.0, 0.0, 0.0).abs().max().clamp(min=1.0)
        near = (widened(got) - widened(truth)).abs() <= bounds.share * peak
        least[near] = float("inf")
    return least if permitted is None else torch.maximum(least, permitted)


def _seen(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes that are watched: all of the memory that a tensor is a view of; of very much memory, the tensor's own."""
    storage = tensor.untyped_storage()
    if storage.nbytes() > _WATCHED:
        return tensor.contiguous().reshape(-1).view(torch.uint8)
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))


_WATCHED = 1 << 26


def _changed(tensor: torch.Tensor, before: torch.Tensor, inside: bool) -> str:
    """Where memory differs from what it was, in words; '' where it does not. Without `inside` the tensor itself may have changed."""
    differs = _seen(tensor) != before
    item, whole = tensor.element_size(), tensor.untyped_storage().nbytes() <= _WATCHED
    if not inside:
        if not whole:
            return ""
        words = differs.view(-1, item).any(1)
        words.as_strided(tuple(tensor.shape), tensor.stride(), tensor.storage_offset()).fill_(False)
        differs = words.repeat_interleave(item)
    at = differs.nonzero().flatten()
    start = tensor.storage_offset() if whole else 0
    return f"first {int(at[0]) // item - start} elements from its start" if at.numel() else ""


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Which elements hold the bytes that guarded memory was filled with."""
    word = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    pattern = torch.full((tensor.dtype.itemsize,), PATTERN, dtype=torch.uint8, device=tensor.device).view(word)[0]
    return tensor.detach().view(word) == pattern


def on_device(call: Call, arguments: Sequence[Any], results: Sequence[torch.Tensor]) -> None:
    """The op as a user calls it."""
    out = None if not results else results[0] if len(results) == 1 else tuple(results)
    call.op(*arguments, out=out)


def same_results(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(same_bits(x, y) for x, y in zip(a, b, strict=True))
