"""What a call costs between matrix products, as in a model: programmatic dependent launch earns its gain there or nowhere."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rafters import device as devices
from rafters.errors import MeasureError
from rafters.roofline import choosing, sampling, timers
from rafters.roofline import clocks as clocking
from rafters.roofline import rotation as rotating
from rafters.roofline.statistics import Summary, summarize


def sandwiched(
    fn: Callable[..., Any],
    args: Sequence[Any],
    *,
    inner: int = 4096,
    layers: int = 24,
    min_rounds: int = 15,
    time_limit_s: float = 5.0,
    device: torch.device | str | None = None,
) -> Summary:
    """Seconds per call of `fn` inside a chain: (chain of product, fn) minus (chain of products), divided by `layers`.

    The product [rows, inner] x [inner, columns] writes into the first argument, a floating-point matrix; its weights come
    from memory, not from cache. The two chains alternate in one process; the summary is over the differences of rounds of four
    blocks (A, B, B, A), so it may be negative where the product hides the call or the noise is larger than the call.
    Raises MeasureError if the first argument is no matrix that a product can write.
    """
    target = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if target is None or target.dim() != 2 or not target.is_floating_point() or not target.is_contiguous():
        raise MeasureError("sandwiched: the first argument must be a contiguous floating-point matrix, for the product to write")
    where = devices.resolve(device if device is not None else target.device)
    facts = devices.facts(where)
    rows, columns = target.shape
    left = torch.randn(rows, inner, device=where, dtype=target.dtype) / inner**0.5
    weight_bytes = inner * columns * target.element_size()
    distinct = min(layers, 1 + rotating.CACHE_MULTIPLE * facts.l2_bytes // weight_bytes)
    weights = [torch.randn(inner, columns, device=where, dtype=target.dtype) for _ in range(distinct)]
    sets = [rotating.clone(args) for _ in range(distinct)]

    def products() -> None:
        for i in range(layers):
            torch.mm(left, weights[i % distinct], out=sets[i % distinct][0])

    def chain() -> Any:
        results = []
        for i in range(layers):
            torch.mm(left, weights[i % distinct], out=sets[i % distinct][0])
            results.append(fn(*sets[i % distinct]))
        return results

    with torch.no_grad():
        # One argument-less set: the chains rotate by themselves.
        rotation = rotating.Rotation([()], hot=False)
        chains = [choosing.choose(f, rotation, where, graph_below_s=float("inf")) for f in (chain, products)]
        try:
            return _differences(chains, layers, min_rounds, time_limit_s, clocking.reader(where))
        finally:
            for timer in chains:
                timer.close()


def _differences(
    chains: list[timers.Timer],
    layers: int,
    min_rounds: int,
    time_limit_s: float,
    read_clocks: clocking.ClockReader,
    now: Callable[[], float] = time.perf_counter,
) -> Summary:
    for timer in chains:
        sampling.warm_up(timer, read_clocks, sampling.WARM_UP_S / 2, now)
    found: list[float] = []
    start = now()
    while True:
        twice = [0.0, 0.0]
        for i in (0, 1, 1, 0):  # a drift over the round falls on both chains alike
            chains[i].enqueue()
            twice[i] += summarize(chains[i].collect()).median
        found.append((twice[0] - twice[1]) / 2 / layers)
        summary = summarize(found)
        narrow = summary.ci_high - summary.ci_low <= 0.02 * abs(summary.median)
        if (len(found) >= min_rounds and narrow) or now() - start >= time_limit_s:
            return summary
