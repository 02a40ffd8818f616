"""Measure one callable, or several against each other, by one method (docs/measuring.md)."""

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import Any

import torch

from rafters import device as devices
from rafters.cost import Cost
from rafters.dtypes import dtype_name
from rafters.errors import MeasureError
from rafters.roofline import ceiling_run, choosing, counting, declaring, sampling, sandwich, timers, verdict
from rafters.roofline import check as checking
from rafters.roofline import clocks as clocking
from rafters.roofline import rotation as rotating
from rafters.roofline.ceiling import Ceilings
from rafters.roofline.measurement import Measurement
from rafters.roofline.statistics import summarize

Function = Callable[..., Any]
ArgumentsOrFactory = Sequence[Any] | Callable[[], Sequence[Any]]
TimerFactory = Callable[[Function, rotating.Rotation, torch.device], timers.Timer]


def measure(
    fn: Function,
    args: ArgumentsOrFactory,
    cost: Cost | None = None,
    *,
    reference: Function | None = None,
    name: str | None = None,
    **options: Any,
) -> Measurement:
    """Time of one call of `fn`, in seconds, with its interval, its host cost and a verdict.

    `args` is a sequence of arguments (copied as often as the rotation needs) or a function that makes a new set. Without `cost`
    the one `fn` declares is taken (`measured`), else one call is watched and counted (`count`). `reference` is called with the
    same arguments; without it the result is not checked, and a note says so. Options are those of `race`.
    Raises MeasureError if nothing can be measured; a result that is wrong or impossible is a verdict, not an error.
    """
    label = name or getattr(fn, "__name__", None) or type(fn).__name__
    return race({label: fn}, args, cost, reference=reference, name=label, **options)[label]


def race(
    providers: Mapping[str, Function],
    args: ArgumentsOrFactory,
    cost: Cost | None = None,
    *,
    reference: Function | None = None,
    check: checking.Check = checking.compare,
    name: str = "",
    family: str = "",
    shape: str | None = None,
    dtype: str | None = None,
    hot: bool = False,
    between_products: bool = False,
    min_samples: int = 30,
    min_time_s: float = 0.5,
    time_limit_s: float = 10.0,
    warm_up_s: float = sampling.WARM_UP_S,
    device: torch.device | str | None = None,
    ceilings: Ceilings | None = None,
    clocks: clocking.ClockReader | None = None,
    timer: TimerFactory = choosing.choose,
    now: Callable[[], float] = time.perf_counter,
) -> dict[str, Measurement]:
    """Measure several providers of one operation interleaved: A, B, B, A, ... on the same inputs in one process.

    Blocks of samples alternate in rotated order, so that none always meets the warm clock. The first provider is the baseline:
    every other one carries `ratio`, the median over rounds of its time / the baseline's, with a 95 % interval. `time_limit_s`
    is per provider. A call that stands above `ceilings` makes them measured again at its size before it is called impossible, and
    they keep what that finds. `check(result, expected)` returns None or what is wrong. With `between_products` each is timed inside a chain
    of matrix products as well (`sandwiched_s`; see `sandwiched`). `clocks`, `timer` and `now` are there for tests.
    """
    if not providers:
        raise MeasureError("race: no providers were given")
    make = _factory(args)
    first = make()
    rotating.require_storage(first)
    where = devices.resolve(device if device is not None else _device_of(first))
    facts = devices.facts(where)
    read_clocks = clocks or clocking.reader(where)
    rule = sampling.Rule(min_samples, min_time_s, time_limit_s=time_limit_s * len(providers), warm_up_s=warm_up_s)
    baseline = next(iter(providers))
    common_notes: list[str] = []
    given = cost
    if cost is None:
        cost = next((c for fn in providers.values() if (c := declaring.declared_cost(fn, first))), None)
    if cost is None:
        counted = counting.count(reference or providers[baseline], first)
        cost = counted.minimum
        if counted.hidden:
            common_notes.append("bytes: a kernel torch does not see filled the result; it was taken to read every argument")

    def wrong(fn: Function, turn: int) -> str | None:
        return checking.run(fn, reference, rotating.fresh(make, turn), check) if reference else None

    failures = {p: f"before timing: {text}" for p, fn in providers.items() if (text := wrong(fn, 1))}
    running = {p: fn for p, fn in providers.items() if p not in failures}
    rotation = rotating.build(make, cost.total_bytes, facts, where, hot=hot)
    found = {p: sampling.Samples() for p in providers}
    rounds: dict[str, list[float]] = {p: [] for p in providers}
    notes: dict[str, list[str]] = {p: [*common_notes, *rotation.notes] for p in providers}
    host: dict[str, float | None] = dict.fromkeys(providers)
    names: dict[str, str] = dict.fromkeys(providers, "none")
    with ExitStack() as stack:
        clocked: dict[str, timers.Timer] = {}
        for p, fn in running.items():
            host[p] = choosing.host_seconds(fn, rotation, where)
            clocked[p] = stack.enter_context(closing(timer(fn, rotation, where)))
            names[p] = clocked[p].name
            sampling.warm_up(clocked[p], read_clocks, rule.warm_up_s / (1 if len(running) == 1 else 2), now)
        _interleave(clocked, found, rounds, read_clocks, rule, now)
        for p, t in clocked.items():
            notes[p] += t.notes
    for p, fn in running.items():
        if text := wrong(fn, 2):
            failures[p] = f"after timing: {text}"
    doubt, remark = verdict.doubt(given, providers[baseline], first) if given and baseline not in failures else (None, None)
    if remark:
        notes = {p: [*n, remark] for p, n in notes.items()}
    between = {p: sandwich.sandwiched(fn, first).median for p, fn in running.items() if between_products and p not in failures}
    if reference is None:
        notes = {p: [*n, "not checked: no reference was given"] for p, n in notes.items()}
    named = dtype if dtype is not None else _dtype(first)
    roof = None if hot else ceilings
    limit = None if hot else verdict.limit_of(roof, cost, facts)
    if roof and limit and any(limit.exceeded(found[p]) for p in running):
        ceiling_run.again(roof, cost, where)
        limit = verdict.limit_of(roof, cost, facts)
    common: dict[str, Any] = {
        "shape": shape if shape is not None else _shape(first),
        "dtype": named,
        "cost": cost,
        "state": "hot" if hot else "cold",
        "family": family,
        "environment": _environment_id(where),
        "seed": torch.initial_seed(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "attainable_s": roof.attainable_seconds(cost, named) if roof else None,
        "ceiling": roof.bandwidth(cost.read_fraction, cost.total_bytes) if roof else None,
    }
    del first, rotation
    if where.type == "cuda":
        torch.cuda.empty_cache()  # the memory in use before and after is equal
    return {
        p: verdict.conclude(
            {
                **common,
                "name": name or p,
                "provider": p,
                "timer": names[p],
                "host_us": _microseconds(host[p]),
                "sandwiched_s": between.get(p),
            },
            found[p],
            failures.get(p),
            notes[p],
            limit,
            verdict.pairing(rounds, baseline, p),
            doubt,
        )
        for p in providers
    }


def _interleave(
    clocked: dict[str, timers.Timer],
    found: dict[str, sampling.Samples],
    rounds: dict[str, list[float]],
    read_clocks: clocking.ClockReader,
    rule: sampling.Rule,
    now: Callable[[], float],
) -> None:
    """Rounds of one block each, the order turned by one every round and reversed every other, until all may stop."""
    order, start = list(clocked), now()
    while order:
        for p in order:
            before = len(found[p].kept)
            sampling.take_block(found[p], clocked[p], read_clocks)
            block = found[p].kept[before:]
            rounds[p].append(summarize(block).median if block else math.nan)
        order = list(reversed(order[1:] + order[:1]))
        elapsed = now() - start
        for p in order:
            found[p].stop_reason = found[p].reason_to_stop(rule, elapsed)
        if all(found[p].stop_reason for p in order):
            return


def _factory(args: ArgumentsOrFactory) -> rotating.MakeArguments:
    if callable(args):
        return lambda: tuple(args())
    if isinstance(args, torch.Tensor):
        raise MeasureError("measure: args must be a sequence of arguments, got one tensor: write (x,)")
    return rotating.clones(tuple(args))


def _device_of(arguments: Sequence[Any]) -> torch.device | None:
    found = [t.device for t in rotating.tensors_in(arguments)]
    # A scalar tensor on the CPU beside GPU tensors is an ordinary argument.
    return next((d for d in found if d.type == "cuda"), found[0] if found else None)


def _shape(arguments: Sequence[Any]) -> str:
    largest = max(rotating.tensors_in(arguments), key=lambda t: t.numel(), default=None)
    return "" if largest is None else "x".join(map(str, largest.shape))


def _dtype(arguments: Sequence[Any]) -> str:
    found = rotating.tensors_in(arguments)
    return dtype_name(found[0].dtype) if found else ""


def _microseconds(seconds: float | None) -> float | None:
    return seconds * 1e6 if seconds is not None else None


@functools.lru_cache(maxsize=16)
def _environment_id(device: torch.device) -> str:
    return devices.environment(device).id
