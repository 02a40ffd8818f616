"""What a call costs the host, beside PyTorch's own: `python benchmarks/host_cost.py --out DIR`.

Small tensors, so that the GPU never holds the host up; both sides in one process, in short rounds of alternating order; medians of the
rounds' ratios. Then the pieces of a call, one by one, and calls whose number of rows is new each time. Rows go to
DIR/host_cost.jsonl (the environment first). Without a GPU only the pieces that need none are timed. What the pieces are and where each
microsecond goes: docs/host_cost.md. Takes about a minute.
"""

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import rafters
from rafters import device as devices
from rafters import tl
from rafters.operator.calls import gate

Call = Callable[[], Any]
ROUNDS, CALLS = 151, 200  # a round stays far below the depth of the launch queue
NEW_SIZES = 20_000
# ratios to PyTorch's own call that are asked for
WANTED = {"add(x, y)": 1.25, "three inputs and a scalar": 1.35, "torch.ops.rafters.add": 1.6, "a gradient is wanted": 2.0}


@rafters.elementwise(name="host_cost::addcmul")
def addcmul(x, y, z, value: float = 1.0):
    return x + value * y * z


@rafters.elementwise(name="host_cost::add_", outputs=(rafters.Output(into="x"),))
def add_(x, y):
    return x + y


def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # noqa: N803
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(out_ptr + o, tl.load(x_ptr + o, mask=m) + tl.load(y_ptr + o, mask=m), mask=m)


@rafters.kernel(add_kernel, reference=torch.add, name="host_cost::written_add")
def written_add(x, y):  # noqa: ARG001  (the kernel reads it)
    return rafters.Launch(out=torch.empty_like(x), grid=-(-x.numel() // 1024), n=x.numel(), BLOCK=1024)


class Rows:
    """Records, written as they come."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.device = folder / "host_cost.jsonl", device
        self.path.write_text(json.dumps(devices.environment(device).to_json(), sort_keys=True) + "\n", encoding="utf-8")

    def write(self, **record: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, sort_keys=True) + "\n")

    def settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@contextmanager
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def per_call(rows: Rows, call: Call, calls: int) -> float:
    """Nanoseconds a call, of one round."""
    rows.settle()
    start = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - start) / calls


def pair(rows: Rows, name: str, ours: Call, theirs: Call, rounds: int = ROUNDS) -> None:
    sides = {"rafters": ours, "torch": theirs}
    for call in sides.values():
        for _ in range(500):
            call()
    found: dict[str, list[float]] = {side: [] for side in sides}
    with no_collection():
        for i in range(rounds):
            for side in sorted(sides, reverse=bool(i % 2)):
                found[side].append(per_call(rows, sides[side], CALLS))
    ratio = statistics.median(a / b for a, b in zip(found["rafters"], found["torch"], strict=True))
    us = {side: round(statistics.median(v) / 1e3, 3) for side, v in found.items()}
    spread = {side: [round(q / 1e3, 3) for q in statistics.quantiles(v, n=20)[::18]] for side, v in found.items()}
    wanted = WANTED.get(name)
    rows.write(
        type="host_cost", name=name, us=us, p5_p95=spread, ratio=round(ratio, 4), wanted=wanted, rounds=rounds, calls=CALLS
    )
    met = "" if wanted is None else f"  wanted <= {wanted}: {'met' if ratio <= wanted else 'MISSED'}"
    print(f"{name:44} rafters {us['rafters']:7.2f} us  torch {us['torch']:7.2f} us  {ratio:5.2f}x{met}", flush=True)


def pairs(rows: Rows) -> None:
    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=rows.device).bfloat16()

    x, y, z, o, vector = randn(16, 64), randn(16, 64), randn(16, 64), randn(16, 64), randn(64)
    bias = torch.nn.Parameter(randn(64))
    wanting = randn(16, 64).requires_grad_()
    others = [(randn(n, 64), randn(n, 64)) for n in (16, 17)]
    turn = {"rafters": 0, "torch": 0}

    def alternate(side: str, call: Callable[..., Any]) -> None:
        turn[side] ^= 1
        call(*others[turn[side]])

    def without_gradients(call: Callable[..., Any]) -> None:
        with torch.no_grad():
            call(x, bias)

    pair(rows, "add(x, y)", lambda: rafters.add(x, y), lambda: torch.add(x, y))
    pair(rows, "three inputs and a scalar", lambda: addcmul(x, y, z, 0.5), lambda: torch.addcmul(x, y, z, value=0.5))
    pair(rows, "add(x, vector)", lambda: rafters.add(x, vector), lambda: torch.add(x, vector))
    pair(rows, "add(x, x)", lambda: rafters.add(x, x), lambda: torch.add(x, x))
    pair(rows, "add(x, parameter) under no_grad", lambda: without_gradients(rafters.add), lambda: without_gradients(torch.add))
    pair(rows, "add(x, 2.0)", lambda: rafters.add(x, 2.0), lambda: torch.add(x, 2.0))
    pair(rows, "add(x, y, out=o)", lambda: rafters.add(x, y, out=o), lambda: torch.add(x, y, out=o))
    pair(rows, "in place", lambda: add_(o, y), lambda: o.add_(y))
    pair(rows, "two sizes in turn", lambda: alternate("rafters", rafters.add), lambda: alternate("torch", torch.add))
    pair(rows, "@rafters.kernel", lambda: written_add(x, y), lambda: torch.add(x, y))
    pair(rows, "torch.ops.rafters.add", lambda: torch.ops.rafters.add(x, y), lambda: torch.add(x, y))
    pair(rows, "a gradient is wanted", lambda: rafters.mul(wanting, y), lambda: torch.mul(wanting, y))

    def back(call: Callable[..., Any]) -> None:
        torch.autograd.grad(call(wanting, y), wanting, z)

    pair(rows, "forward and backward", lambda: back(rafters.mul), lambda: back(torch.mul), rounds=51)


def compiled(rows: Rows) -> None:
    x, y = (torch.randn(16, 64, device=rows.device).bfloat16() for _ in range(2))
    kept = torch.compile(lambda a, b: rafters.add.opaque(a, b), fullgraph=True)
    fused = torch.compile(lambda a, b: rafters.add(a, b), fullgraph=True)
    theirs = torch.compile(lambda a, b: torch.add(a, b), fullgraph=True)
    pair(rows, "torch.compile, fused", lambda: fused(x, y), lambda: theirs(x, y), rounds=51)
    pair(rows, "torch.compile, opaque", lambda: kept(x, y), lambda: theirs(x, y), rounds=51)


def new_sizes(rows: Rows) -> None:
    """Every call has a number of rows that was not seen before, or not lately."""
    room = torch.randn(2**17, 16, device=rows.device).bfloat16()
    rafters.add.warm(dtypes=[torch.bfloat16], widths=[16])
    drawn = random.Random(7)
    counts = drawn.sample(range(1, len(room)), NEW_SIZES)
    for side, call in (("rafters", rafters.add), ("torch", torch.add)):
        for n in range(1, 200):
            call(room[:n], room[:n])
        before, times = len(rafters.add.variants()), []
        with no_collection():
            for i, n in enumerate(counts):
                x = room[:n]
                start = time.perf_counter_ns()
                call(x, x)
                times.append(time.perf_counter_ns() - start)
                if i % 200 == 0:
                    rows.settle()
        times.sort()
        us = {f"p{p}": round(times[len(times) * p // 1000] / 1e3, 2) for p in (500, 990, 999)}
        us = {"p50": us["p500"], "p99": us["p990"], "p99.9": us["p999"], "max": round(times[-1] / 1e3, 1)}
        made = len(rafters.add.variants()) - before
        rows.write(type="new_sizes", name=side, us=us, calls=len(counts), new_variants=made)
        print(f"a new number of rows each call, {side:8} {us} us, {made} new variants", flush=True)


def pieces(rows: Rows) -> None:
    """Each step of a call on its own. A loop's own cost, that of an empty call, is taken off."""
    x, y = (torch.randn(16, 64, device=rows.device).bfloat16() for _ in range(2))
    names = gate.NAMES
    op = rafters.add
    for _ in range(3):
        op(x, y)
    plans, entry = op._plans, op._plans.last
    key = op._key(x, y)
    forward_ad = names["_forward_ad"]
    steps: dict[str, Call] = {
        "is Dynamo tracing? (torch.compiler.is_compiling)": torch.compiler.is_compiling,
        "is Dynamo tracing? (is_dynamo_compiling)": names["_is_compiling"],
        "torch.func transforms?": names["_transforms"],
        "dispatch modes?": names["_dispatch_modes"],
        "function modes?": names["_function_modes"],
        "forward-mode level?": lambda: forward_ad._current_level < 0,
        "gradients on?": names["_grad_enabled"],
        "types of two tensors": lambda: type(x) is torch.Tensor and type(y) is torch.Tensor,
        "requires_grad of two tensors": lambda: x.requires_grad or y.requires_grad,
        "two addresses": lambda: (x.data_ptr() | y.data_ptr()) & 15,
        "dtype": lambda: x.dtype,
        "shape": lambda: x.shape,
        "strides": lambda: x.stride(),
        "device": lambda: x.device,
        "the key of two tensors": lambda: op._key(x, y),
        "look-up of a key": lambda: plans.get(key),
        "default dtype": torch.get_default_dtype,
    }
    if gate.GUARDS is not None:
        steps["PyTorch's guard on two tensors"] = lambda: entry.check(x, y)
    if rows.device.type == "cuda":
        from rafters.engine.launch import allocator

        empty, shape, strides, dtype = allocator(), (16, 64), (64, 1), torch.bfloat16
        stream, index = torch._C._cuda_getCurrentRawStream, rows.device.index or 0
        steps |= {
            "allocation (torch.empty_strided)": lambda: torch.empty_strided(shape, strides, dtype=dtype, device=rows.device),
            "allocation (as used)": lambda: empty(shape, strides, dtype),
            "current stream": lambda: stream(index),
            "run: allocation, addresses, stream, launch": lambda: entry.run(x, y),
        }
    steps |= {"a whole call": lambda: op(x, y), "torch.add": lambda: torch.add(x, y)}
    calls = 2000 if rows.device.type == "cpu" else 500
    with no_collection():
        base = min(per_call(rows, lambda: None, calls) for _ in range(50))
        for name, call in steps.items():
            ns = statistics.median(sorted(per_call(rows, call, calls) for _ in range(40))[:20]) - base
            rows.write(type="piece", name=name, ns=round(ns, 1))
            print(f"{ns:9.0f} ns  {name}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for host_cost.jsonl")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    rows = Rows(options.out, device)
    if device.type == "cuda":
        pairs(rows)
        new_sizes(rows)
    pieces(rows)
    if device.type == "cuda" and not options.no_compile:
        compiled(rows)


if __name__ == "__main__":
    main()
