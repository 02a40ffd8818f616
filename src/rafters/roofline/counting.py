"""Bytes and FLOPs of any function of torch ops, counted by watching one call of it."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rafters.cost import Cost
from rafters.roofline import accesses, touched
from rafters.roofline.accesses import Access
from rafters.roofline.rotation import clone, tensors_in

# Arithmetic operations for each element of the largest operand, where an op is more than one; a transcendental is one.
_PER_ELEMENT = {
    "silu": 2,
    "gelu": 5,
    "addcmul": 2,
    "addcdiv": 2,
    "lerp": 3,
    "_softmax": 5,
    "_log_softmax": 5,
    "native_layer_norm": 8,
    "_fused_rms_norm": 5,
    "var": 3,
    "var_mean": 3,
    "std": 3,
}
# Moves data, computes nothing.
_MOVES = {"clone", "_to_copy", "copy_", "copy", "fill_", "fill", "zero_", "where", "masked_fill", "masked_fill_", "cat", "stack"}
# Overwrites its first argument without looking at it.
_OVERWRITES = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"}
_ALLOCATES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_REDUCES = {"sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "prod", "norm", "linalg_vector_norm", "cumsum"}


@dataclass(frozen=True, slots=True)
class Counted:
    """`minimum` is what the function as a whole must move; `launched` what its kernels moved, one op at a time.

    `launched.total_bytes / minimum.total_bytes` is the headroom of fusion. `hidden` says that a kernel which torch does not
    dispatch (a bare Triton launch, a compiled function) filled a result: then all arguments were taken to be read by it.
    """

    minimum: Cost
    launched: Cost
    kernels: int
    hidden: bool = False


def count(fn: Callable[..., Any], args: Sequence[Any]) -> Counted:
    """Call `fn` once on copies of `args` and count.

    Minimum: each distinct byte of what existed before the call, read once if an op read it before writing it, written once if an
    op wrote it; each distinct byte of a new result, written once. Views and unread arguments are free, a broadcast dimension
    counts once, aliases merge, a gather reads the rows it touches. FLOPs are those of the ops as they ran.
    """
    arguments = clone(args)
    watch = _Watch()
    with watch:
        result = fn(*arguments)
    return watch.conclude(arguments, result)


@dataclass
class _Storage:
    read: list[Access] = field(default_factory=list)
    written: list[Access] = field(default_factory=list)


class _Watch(TorchDispatchMode):
    """Follows every op that reaches the dispatcher."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._external: dict[int, _Storage] = defaultdict(_Storage)
        self._internal: dict[int, bool] = {}  # storage made during the call -> whether an op has filled it
        self._launched = Cost(0, 0)
        self._kernels = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._account(func, args, kwargs or {}, result)
        return result

    def _account(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = func._schema.name.partition("::")[2]
        mutated, read = _roles(func, name, args, kwargs)
        inputs = {_key(t) for t in tensors_in((args, kwargs))}
        made = [t for t in tensors_in(result) if _key(t) not in inputs]
        for t in made:
            self._internal[_key(t)] = name not in _ALLOCATES
        if name in _ALLOCATES or not (made or mutated):
            return  # an allocation or a view: nothing moves
        first, by_index = args[0] if args else None, touched.elements(name, args)

        def access(t: torch.Tensor) -> Access:
            return accesses.of(t, by_index if t is first else None)

        reads, writes = [access(t) for t in read], [access(t) for t in [*mutated, *made]]
        for t, found in zip(read, reads, strict=True):
            storage = self._storage(t)
            if storage and not accesses.covered(found, storage.written):
                storage.read.append(found)
        for t, found in zip(mutated, writes, strict=False):
            if storage := self._storage(t):
                storage.written.append(found)
            else:
                self._internal[_key(t)] = True
        flops = _flops(func, name, args, kwargs, result, [*mutated, *made])
        self._launched += Cost(sum(a.count for a in reads), sum(a.count for a in writes), flops)
        self._kernels += 1

    def _storage(self, t: torch.Tensor) -> _Storage | None:
        return None if _key(t) in self._internal or not t.numel() else self._external[_key(t)]

    def conclude(self, arguments: Sequence[Any], result: Any) -> Counted:
        results = [t for t in tensors_in(result) if t.numel()]
        hidden = any(not self._internal.get(_key(t), _key(t) in self._external) for t in results if self._is_new(t, arguments))
        made: dict[int, list[Access]] = defaultdict(list)
        for t in results:
            if self._is_new(t, arguments):
                made[_key(t)].append(accesses.of(t))
        if hidden:
            for t in tensors_in(arguments):
                self._external[_key(t)].read.append(accesses.of(t))
        read = sum(accesses.distinct_bytes(s.read) for s in self._external.values())
        written = sum(accesses.distinct_bytes(s.written) for s in self._external.values())
        written += sum(accesses.distinct_bytes(a) for a in made.values())
        return Counted(Cost(read, written, self._launched.flops), self._launched, self._kernels, hidden)

    def _is_new(self, t: torch.Tensor, arguments: Sequence[Any]) -> bool:
        return _key(t) not in self._external and _key(t) not in {_key(a) for a in tensors_in(arguments)}


def _key(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr()


def _roles(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors an op writes and tensors it reads, by its schema."""
    mutated: list[torch.Tensor] = []
    read: list[torch.Tensor] = []
    for i, parameter in enumerate(func._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(parameter.name)
        found = tensors_in(value)
        writes = parameter.alias_info is not None and parameter.alias_info.is_write
        if writes:
            mutated += found
        only_written = writes and (parameter.kwarg_only or name in _OVERWRITES or _overwrites_rows(name, args, kwargs))
        if not only_written:
            read += found
    return mutated, read


def _overwrites_rows(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    accumulates = bool(kwargs.get("accumulate", args[3] if name == "index_put_" and len(args) > 3 else False))
    return name in ("index_put_", "index_copy_", "scatter_", "index_fill_") and not accumulates


def _flops(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, outputs: list[torch.Tensor]) -> int:
    from torch.utils.flop_counter import flop_registry  # loads triton: not when Rafters is imported

    packet = getattr(func, "overloadpacket", None)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=result))
    if name in touched.ADDS and len(args) > 3:
        return sum(t.numel() for t in tensors_in(args[3]))
    base = name.removesuffix("_") if name not in _MOVES else name
    if name in _MOVES or not any(t.is_floating_point() or t.is_complex() for t in outputs):
        return 0
    operands = [t.numel() for t in [*tensors_in(args), *outputs]]
    if base in _REDUCES or base in _PER_ELEMENT:
        return _PER_ELEMENT.get(base, 1) * max(operands, default=0)
    return sum(t.numel() for t in outputs) if torch.Tag.pointwise in func.tags else 0
