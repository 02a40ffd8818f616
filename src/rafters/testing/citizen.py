"""What PyTorch expects of an operator: dtypes, strides, `out=`, fake tensors, torch.compile, threads, CUDA graphs."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from rafters.dtypes import FLOAT8
from rafters.errors import ArgumentError, RaftersError
from rafters.operator.from_kernel import FromKernel
from rafters.operator.op import Op
from rafters.operator.pytorch.compiled import fuses
from rafters.testing import contract
from rafters.testing.calls import Call
from rafters.testing.compare import described, misses, same_bits, widened
from rafters.testing.contract import Sample
from rafters.testing.report import FAILED, PASSED, SKIPPED, Outcome

PYTORCH = "PyTorch"
Check = Callable[[Op, Call, str], list[str]]


class SkipCheck(Exception):  # noqa: N818  (it is no error)
    """Why a check does not apply."""


def judged(name: str, path: str, check: Check, op: Op, calls: Sequence[Call], device: str) -> Outcome:
    """The first call for which a check finds a fault, calls in the order of their size."""
    start, done, reason = time.perf_counter(), 0, "no call could be made up for its arguments"
    for call in sorted(calls, key=lambda c: c.size):
        try:
            faults = check(op, call, device)
        except SkipCheck as skip:
            reason = str(skip)
            continue
        except NotImplementedError as problem:  # PyTorch lacks an operation of the author's reference for this dtype
            reason = str(problem)
            continue
        except Exception as problem:
            text = " ".join(str(problem).split())
            faults = [f"{type(problem).__name__}: {text[:400]}"]
        done += 1
        if faults:
            return Outcome(name, path, FAILED, done, time.perf_counter() - start, "; ".join(faults), call.code(device))
    return Outcome(name, path, PASSED if done else SKIPPED, done, time.perf_counter() - start, "" if done else reason)


def sample_of(op: Op, call: Call, device: str) -> Sample:
    if any(p.mutated for p in op.spec.parameters):
        raise SkipCheck("the op overwrites an argument")
    return Sample(op, call.make(device), zero_signs=False)


def _on_results(check: Callable[..., list[str]]) -> Check:
    def run(op: Op, call: Call, device: str) -> list[str]:
        sample = sample_of(op, call, device)
        return check(sample, sample.call())

    return run


repeated = _on_results(contract.repeated)
fake = _on_results(contract.fake)


def into_out(op: Op, call: Call, device: str) -> list[str]:
    """`out=` of the result's own layout, an unaligned and a strided one; over an argument; of another shape, which is refused."""
    sample = sample_of(op, call, device)
    results = sample.call()
    strict = isinstance(op.form, FromKernel) and op.form.contiguous  # takes contiguous memory only
    faults = contract.into_out(replace(sample, thorough=not strict), results)
    faults += [] if isinstance(op.form, FromKernel) else contract.in_place(sample, results)
    wrong = tuple(r.new_empty((*r.shape, 2)) for r in results)
    try:
        op(*sample.arguments, out=wrong[0] if len(wrong) == 1 else wrong)
    except ArgumentError:
        return faults
    return [*faults, f"out= of shape {tuple(wrong[0].shape)} was taken for a result of {tuple(results[0].shape)}"]


def result_strides(op: Op, call: Call, device: str) -> list[str]:
    """Those of PyTorch, for which there is a function of so many tensors."""
    if isinstance(op.form, FromKernel) or op.spec.results[0][0].sum_to is not None:
        raise SkipCheck("the op chooses the layout of its results itself")
    if any(v.part or v.rows for v in op.spec.views.values()):
        raise SkipCheck("the op reads parts of its arguments, which PyTorch has no function for")
    if len(call.tensors) > 3:
        raise SkipCheck("PyTorch has no elementwise function of so many tensors to compare with")
    sample = sample_of(op, call, device)
    return contract.strides(sample, sample.call())


def overlap(op: Op, call: Call, device: str) -> list[str]:
    """An `out=` that overlaps an argument, or itself, is refused: one program would read what another has written."""
    sample = sample_of(op, call, device)
    results = sample.call()
    position = next(
        (i for i, t in enumerate(sample.arguments) if isinstance(t, torch.Tensor) and t.shape == results[0].shape), -1
    )
    if position < 0 or results[0].numel() < 2 or len(results) > 1:
        raise SkipCheck("no result has the shape of an argument")
    own = sample.arguments[position]
    if own.dtype is not results[0].dtype:
        raise SkipCheck("no result has the dtype of an argument")
    buffer = torch.zeros(own.numel() + 1, dtype=own.dtype, device=own.device)
    shifted = buffer[:-1].view(own.shape).copy_(own)
    arguments = [shifted if i == position else a for i, a in enumerate(sample.arguments)]
    targets = {
        "one element further on": buffer[1:].view(own.shape),
        "with stride 0": buffer[:1].expand(own.numel()).view(own.shape),
    }
    return [f"out= {text} was taken" for text, target in targets.items() if not refuses(op, arguments, target)]


def refuses(op: Op, arguments: Sequence[Any], out: torch.Tensor) -> bool:
    try:
        op(*arguments, out=out)
    except RaftersError:
        return True
    return False


def empty(op: Op, call: Call, device: str) -> list[str]:
    """No elements, no launch: results of the promised shape; and no value for a row that has no elements."""
    sample = sample_of(op, call, device)
    promised = op.form.new_results(call.named(sample.arguments))
    new = [group[0] for group in op.spec.results if group[0].into is None]
    if any(o.per_row and 0 not in shape for o, (shape, _, _) in zip(new, promised, strict=True)):
        try:
            sample.call()
        except ArgumentError as refusal:
            return [] if "rows of length 0" in str(refusal) else [f"ArgumentError: {refusal}"]
        return ["rows without elements were given a value"]
    faults = []
    for i, (result, (shape, _, dtype)) in enumerate(zip(sample.call(), promised, strict=True)):
        got = (tuple(result.shape), result.dtype)
        faults += [f"result {i}: {got}, promised {(shape, dtype)}"] if got != (shape, dtype) else []
    return faults


def opcheck(quick: bool) -> Check:
    """torch.library.opcheck: schema, autograd registration, fake tensors; and AOT dispatch, with static and dynamic shapes."""
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    more = () if quick else ("test_aot_dispatch_static", "test_aot_dispatch_dynamic")

    def run(op: Op, call: Call, device: str) -> list[str]:
        sample = sample_of(op, call, device)
        wanted = [a.requires_grad_() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in sample.arguments]
        torch.library.opcheck(op._registration.overload, tuple(op._registration.tensorized(wanted)), test_utils=(*tests, *more))
        return []

    return run


def in_threads(op: Op, call: Call, device: str) -> list[str]:
    """Eight threads whose first calls come at once: no plan exists yet."""
    sample = sample_of(op, call, device)
    wanted = sample.call()
    op.forget_plans()
    barrier, faults = threading.Barrier(8), []

    def work(number: int) -> None:
        barrier.wait()
        for _ in range(4):
            got = sample.call()
            if device != "cpu":
                torch.cuda.current_stream().synchronize()
            if not all(same_bits(g, w) for g, w in zip(got, wanted, strict=True)):
                faults.append(f"thread {number} got other bits")

    def guarded(number: int) -> None:
        try:
            work(number)
        except Exception as problem:
            faults.append(f"thread {number}: {type(problem).__name__}: {problem}")

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return faults[:3]


def replayed(op: Op, call: Call, device: str) -> list[str]:
    """A captured call gives, replayed on other values, what a call gives."""
    if device == "cpu":
        raise SkipCheck("needs a GPU")
    sample = sample_of(op, call, device)
    sample.call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = sample.call()
    for tensor in sample.tensors:
        if tensor.is_floating_point() and tensor.dtype not in FLOAT8 and 0 not in tensor.stride():
            tensor.mul_(2)
    for result in results:
        result.view(torch.uint8).fill_(0xA5) if result.is_contiguous() and result.dim() else None
    graph.replay()
    torch.cuda.synchronize()
    wanted = sample.call()
    return [f"result {i}: the replay gives other bits"
            for i, (a, b) in enumerate(zip(results, wanted, strict=True)) if not same_bits(a, b)]  # fmt: skip


def _neither(got: torch.Tensor, eager: torch.Tensor, peer: torch.Tensor) -> list[str]:
    """What is neither what the op gives eagerly nor what PyTorch's operations give, of which it is made when it is taken apart."""
    wrong = misses(got, widened(eager) if eager.is_floating_point() else eager)
    if peer.dtype is got.dtype and peer.shape == got.shape:
        wrong &= misses(got, widened(peer) if peer.is_floating_point() else peer)
    return described(wrong, got, widened(eager) if eager.is_floating_point() else eager)


def compiled(backend: str) -> Check:
    """torch.compile(fullgraph=True): the same bits where the op stays one call, within an ulp where it is taken apart."""

    def run(op: Op, call: Call, device: str) -> list[str]:
        sample = sample_of(op, call, device)
        torch._dynamo.reset()
        seen: list[Any] = []

        def counting(graph: Any, inputs: Any) -> Any:
            seen.append(graph)
            return torch._dynamo.lookup_backend(backend)(graph, inputs)

        wanted = sample.call()
        made = op.reference(*sample.arguments)
        peers = made if isinstance(made, tuple) else (made,)
        got = torch.compile(lambda *a: op(*a), fullgraph=True, backend=counting)(*sample.arguments)
        results = got if isinstance(got, tuple) else (got,)
        faults = [] if len(seen) == 1 else [f"{len(seen)} graphs"]
        for i, (a, b) in enumerate(zip(results, wanted, strict=True)):
            if (a.shape, a.dtype, a.stride()) != (b.shape, b.dtype, b.stride()):
                faults.append(f"result {i}: {a.shape} {a.dtype} {a.stride()}, eagerly {b.shape} {b.dtype} {b.stride()}")
            elif not same_bits(a, b) and not fuses(op):
                faults.append(f"result {i}: other bits than eagerly")
            elif not same_bits(a, b):
                faults += [f"result {i}: {w}" for w in _neither(a, b, peers[i])]
        return faults

    return run
