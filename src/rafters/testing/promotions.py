"""The dtype of a result for every pair of dtypes, with and without dimensions, as tensors and as numbers: PyTorch's own."""

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from rafters.dtypes import FLOAT8
from rafters.engine.promotion import ACCEPTS, lifted
from rafters.engine.spec import TENSOR
from rafters.errors import RaftersError
from rafters.operator.from_kernel import FromKernel
from rafters.operator.op import Op
from rafters.testing.calls import Tensor, listed_call, takes_any_shapes
from rafters.testing.cases import argument_dtype, dtypes_of
from rafters.testing.report import FAILED, PASSED, SKIPPED, Outcome


def promotions(op: Op) -> Outcome:
    """Every pair of dtypes, as tensors with and without dimensions and as numbers: the result's dtype is PyTorch's."""
    start, done = time.perf_counter(), 0
    tensors = [p.name for p in op.spec.parameters if p.kind == TENSOR]
    if isinstance(op.form, FromKernel) or not takes_any_shapes(op):
        return Outcome("promotion", "PyTorch", SKIPPED, reason="results have the dtypes that the op names")
    for values in _typed(op, tensors):
        arguments = list(listed_call(op, [((2, 3), "contiguous")], torch.float32, "counting").arguments)
        named = {p.name: a for p, a in zip(op.spec.parameters, arguments, strict=True)} | values
        named = {n: a.make("meta") if isinstance(a, Tensor) else a for n, a in named.items()}
        wanted = [_wanted(output, op, tensors, named) for output, *_ in op.spec.results]
        if None in wanted:
            continue
        done += 1
        try:
            got = [dtype for _, _, dtype in op.form.new_results(named)]
        except RaftersError as problem:
            got = [problem]
        if got != wanted:
            reason = f"({', '.join(map(_shown, values.values()))}): {got}, PyTorch gives {wanted}"
            return Outcome("promotion", "PyTorch", FAILED, done, time.perf_counter() - start, reason)
    return Outcome("promotion", "PyTorch", PASSED, done, time.perf_counter() - start)


def _typed(op: Op, tensors: Sequence[str]) -> Iterator[dict[str, Any]]:
    kinds: list[tuple[tuple[int, ...], bool]] = [((2, 3), False), ((), False), ((), True)]
    if op.spec.rowwise:
        kinds = kinds[:1]
    numbers = {torch.bool: True, torch.int64: 2, torch.get_default_dtype(): 2.0}
    for (first, second), (kind, other) in itertools.product(
        itertools.product(dtypes_of(op), repeat=2), itertools.product(kinds[:2], kinds)
    ):
        values: dict[str, Any] = {name: Tensor(kind[0], argument_dtype(op, name, first), values="counting") for name in tensors}
        own = argument_dtype(op, tensors[-1], second)
        values[tensors[-1]] = Tensor(other[0], own, values="counting")
        if other[1]:
            if own not in numbers or len(tensors) == 1 or op.spec.accepts.get(tensors[-1]) == "bool":
                continue
            values[tensors[-1]] = numbers[own]
        taken = (op.spec.accepts.get(n) for n, v in values.items() if isinstance(v, int | float))
        if all(a is None or ACCEPTS[a][0](own) for a in taken):
            yield values


def _wanted(output: Any, op: Op, tensors: Sequence[str], named: dict[str, Any]) -> torch.dtype | None:
    """What PyTorch's rules give; None where it has none. All tensors but the last are alike, so two of them decide."""
    if isinstance(output.dtype, torch.dtype):
        return output.dtype
    if output.dtype == "bool":
        return torch.bool
    if isinstance(output.dtype, str) and output.dtype != "float":
        return getattr(named[output.dtype], "dtype", None)
    first = next((t for t in tensors if op.spec.accepts.get(t) != "bool"), tensors[0])
    pair = [torch.ones(a.shape, dtype=a.dtype) if isinstance(a, torch.Tensor) else a for a in (named[first], named[tensors[-1]])]
    if any(isinstance(a, torch.Tensor) and a.dtype in FLOAT8 for a in pair):
        return None
    common = torch.result_type(*pair)
    rank = max(a.dim() for a in pair if isinstance(a, torch.Tensor))
    for p in op.spec.scalars:  # a declared number promotes as one
        common = torch.result_type(torch.ones((1,) * rank, dtype=common), 1.5 if p.type is float else 2)
    return lifted(common) if output.dtype == "float" else common


def _shown(value: Any) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, Tensor) else repr(value)
