"""How an op runs on DTensors (torch.distributed.tensor): its sharding rule, derived from how arguments broadcast and where it is linear.

On one dimension of the mesh a call computes on the local tensors as they lie when
- every argument is replicated; or
- one dimension of the call is cut: sharded in each argument that has it, the others replicated (engine/shards.py). A result that is
  summed over that dimension is a partial sum; or
- some arguments are partial sums, the others are replicated, and the results are linear in those (trace/linear.py).
DTensor moves the arguments to what costs least of these. One that is overwritten is never moved: a copy would be written.

Importing torch.distributed.tensor takes half a second, so a rule waits until it is there: where the op is made, or where the first
argument comes by that is no plain tensor.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NoReturn

import torch

from rafters.engine.shards import SUMMED
from rafters.engine.spec import CONSTEXPR, Spec
from rafters.errors import RaftersError, argument_error
from rafters.trace.linear import FREE, LINEAR, ZERO

_Way = tuple[list[Any], dict[str, Any]]  # placements of the new tensors, and of the tensor arguments by name

_waiting: list[tuple[Any, Any]] = []  # (op, overload) without a rule yet
_lock = threading.Lock()


def declare(op: Any, overload: Any) -> None:
    """Gives an overload of `op` its sharding rule, now or once DTensor is there."""
    _waiting.append((op, overload))
    hand_over()


def hand_over() -> None:
    """Registers the rules that wait; without torch.distributed.tensor no argument can be a DTensor, and they go on waiting."""
    if not _waiting or not hasattr(sys.modules.get("torch.distributed.tensor"), "DTensor"):
        return
    with _lock:
        while _waiting:
            _register(*_waiting[-1])
            _waiting.pop()  # only now: another thread that finds nothing waiting finds the rule


def zero_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """A zero on the mesh of a DTensor, beside which no plain tensor may stand in a call; None for other tensors."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
    return tensor.new_zeros(()) if isinstance(tensor, kind) else None


def _register(op: Any, overload: Any) -> None:
    """Two things that register_sharding is not told, so they are set behind it. What holds for one compile-time value need not hold
    for another: whatever follows the first of them belongs to the key under which DTensor remembers. And an overwritten argument
    stays where it is. Where a PyTorch keeps these elsewhere, an op that needs them is refused rather than wrong.
    """
    from torch.distributed.tensor.experimental import register_sharding

    spec: Spec = op.spec
    overwrites = any(p.mutated for p in spec.parameters)
    first = next((i for i, p in enumerate(spec.parameters) if p.kind == CONSTEXPR), len(spec.parameters))
    try:
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

        strategies = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
        remembered = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    except (ImportError, AttributeError):
        if overwrites or first < len(spec.parameters):
            register_sharding(overload)(lambda *_: _refuse(spec))
        else:
            register_sharding(overload)(lambda *arguments: _rule(op, arguments))
        return
    if overload in strategies:
        return  # a rule of the op's author stands
    register_sharding(overload)(lambda *arguments: _rule(op, arguments))
    remembered[overload] = RuntimeSchemaInfo(static_argnum=first)
    if overwrites:
        derived = strategies[overload]
        strategies[overload] = lambda schema: _unmoved(spec, schema, derived(schema))


def _refuse(spec: Spec) -> NoReturn:
    raise RaftersError(
        f"{spec.name}: this PyTorch's DTensor is not known well enough for an op that overwrites an argument or has compile-time values; "
        "call it on local tensors (to_local, from_local)"
    )


def _rule(op: Any, arguments: Sequence[Any]) -> list[tuple[list[Any], list[Any]]]:
    """(placements of the new tensors, placements of the arguments) on one mesh dimension, for each way to compute.

    A tensor comes as its DTensorSpec, a number as it is; trailing arguments that have their default value may be missing.
    """
    spec: Spec = op.spec
    if spec.name.endswith("_") and any(group[0].into is None for group in spec.results):
        raise RaftersError(
            f"{spec.name}: DTensor takes an op whose name ends in _ to return its first argument; name it otherwise"
        )
    names = [p.name for p in spec.parameters]
    named = {p.name: p.default for p in spec.parameters} | dict(zip(names, arguments, strict=False))
    places = {name: value.placements for name, value in named.items() if hasattr(value, "tensor_meta")}
    for name in places:
        shape, strides, dtype = named[name].tensor_meta
        named[name] = torch.empty_strided(tuple(shape), strides, dtype=dtype, device="meta")
    ways = [*_whole_or_cut(op, named, places), *_partial(op, named, places)]
    return [(results, [where.get(name) for name in names[: len(arguments)]]) for results, where in ways]


def _whole_or_cut(op: Any, named: dict[str, Any], places: dict[str, Any]) -> Iterator[_Way]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    def placement(dim: Any) -> Any:
        return Replicate() if dim is None else Partial() if dim == SUMMED else Shard(dim)

    yield [Replicate() for group in op.spec.results if group[0].into is None], dict.fromkeys(places, Replicate())
    for cut in op.form.cuts(named):
        yield [placement(dim) for dim in cut.results], {name: placement(cut.arguments.get(name)) for name in places}


def _partial(op: Any, named: dict[str, Any], places: dict[str, Any]) -> Iterator[_Way]:
    """The sets of arguments that are partial sums (or averages) already, and may stay so."""
    from torch.distributed.tensor import Partial, Replicate

    for kind in (Partial("sum"), Partial("avg")):
        able = [name for name in places if kind in places[name] and _adds_up(named[name].dtype)]
        for chosen in (set(some) for size in range(1, len(able) + 1) for some in combinations(able, size)):
            results = _partial_results(op, named, chosen)
            if results is not None:
                where = {name: kind if name in chosen else Replicate() for name in places}
                yield [kind if partial else Replicate() for partial in results], where


def _partial_results(op: Any, named: dict[str, Any], chosen: set[str]) -> list[bool] | None:
    """Of each new tensor, whether it is a partial sum where the arguments in `chosen` are. None where a result is neither that nor
    independent of them, or where an overwritten argument would change from one to the other."""
    states = iter(op.form.linear_in(named, chosen))
    dtypes = iter(op.form.new_results(named))
    made = []
    for group in op.spec.results:
        into, parts = group[0].into, {next(states) for _ in group}
        partial = into in chosen if into is not None else LINEAR in parts
        if not parts <= ({LINEAR, ZERO} if partial else {FREE, ZERO}):
            return None
        if into is None:
            made.append(partial)
            if not _adds_up(next(dtypes)[2]) and partial:
                return None
    return made


def _adds_up(dtype: torch.dtype) -> bool:
    """Integers wrap and float8 saturates before parts are added."""
    return dtype.is_floating_point and dtype.itemsize > 1


def _unmoved(spec: Spec, schema: Any, strategy: Any) -> Any:
    """Of the strategies for a call, those that leave each overwritten argument where it is."""
    tensors = [p for p, value in zip(spec.parameters, schema.args_schema, strict=False) if hasattr(value, "strategies")]
    held = {i: schema.args_strategy[i].strategies[0].output_spec.placements for i, p in enumerate(tensors) if p.mutated}
    strategy.strategies = [s for s in strategy.strategies if all(s.input_specs[i].placements == p for i, p in held.items())]
    if not strategy.strategies:
        i, placements = next(iter(held.items()))
        wanted = "placements under which the op can overwrite it where it lies (redistribute it first)"
        raise argument_error(spec.name, tensors[i].name, f"placements {placements}", wanted)
    return strategy
