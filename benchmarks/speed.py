"""The speed that the elementwise ops must reach, measured: `python benchmarks/speed.py`.

On a GPU: `rafters.add` beside torch.add and the textbook Triton add; broadcast rows, a value a row, strided rows, a transposed
operand; the host's cost of a call. On every machine: the CPU path beside eager torch. Rows go to a file of JSON lines (the
environment first), then what was required and what was found. Method: docs/measuring.md. Exit status 1 if a result was wrong.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import rafters
from rafters import device as devices
from rafters import lang, ops
from rafters.cost import Cost
from rafters.roofline import Ceilings, Measurement, ceilings, race

SEED = 20261129
CASE = {"min_samples": 30, "min_time_s": 0.3, "time_limit_s": 2.0}
# A ratio this close to 1 is the same speed: the method's own resolution.
SAME = 0.995
SIZES = (2**26, 2**26 + 1, 2**28, 2**28 + 1, 2**29 + 1)
FOOTPRINT = 2**29  # bytes of a dense [T, 4096] read and written

Function = Callable[..., Any]
MakeArguments = Callable[[], tuple[Any, ...]]
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@rafters.elementwise(name="speed::addcmul")
def addcmul(x, y, z, value: float = 1.0):
    """x + value * y * z, as torch.addcmul."""
    return x + value * y * z


@rafters.elementwise(name="speed::half_silu_mul")
def half_silu_mul(x, y):
    """silu(x) * y * 0.5."""
    return x * lang.sigmoid(x) * y * 0.5


class Run:
    """Rows and requirements, written as they come: a run that is cut short leaves what it found."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self.path, self.device, self.wrong, self.start = path, device, 0, time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.write(devices.environment(device).to_json())
        self.write({"type": "run", "seed": SEED, "threads": torch.get_num_threads(), "case": CASE})

    def write(self, record: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, sort_keys=True) + "\n")

    def race(
        self,
        title: str,
        providers: dict[str, Function],
        make: MakeArguments,
        cost: Cost,
        roof: Ceilings | None,
        reference: Function | None,
        **options: Any,
    ) -> dict[str, Measurement]:
        try:
            found = race(
                providers,
                make,
                cost,
                reference=reference,
                name=title,
                ceilings=roof,
                **{"device": self.device, **CASE, **options},
            )
        except Exception as error:  # the other figures are worth having, whatever happened to this one
            self.wrong += 1
            self.write({"type": "error", "name": title, "error": f"{type(error).__name__}: {error}"})
            print(f"{title}: {type(error).__name__}: {error}", flush=True)
            return {}
        for p, m in found.items():
            self.wrong += m.verdict == "WRONG"
            self.write(m.to_json())
            us = f"{m.seconds.median * 1e6:10.2f} us" if m.seconds else f"{m.verdict} {'; '.join(m.reasons)}"
            share = f"{m.share_of_ceiling:7.1%} of ceiling" if m.share_of_ceiling else ""
            ratio = f"{m.ratio:7.3f} x {m.ratio_to}" if m.ratio else ""
            notes = "".join(f"  [{n}]" for n in (*m.reasons, *m.notes) if m.seconds)
            print(f"{time.perf_counter() - self.start:6.1f} s  {title:44} {p:16} {us} {share} {ratio}{notes}", flush=True)
        return found

    def require(self, what: str, wanted: str, got: float | None, met: bool) -> None:
        self.write({"type": "requirement", "name": what, "wanted": wanted, "got": got, "met": met})
        print(f"{'MET   ' if met else 'MISSED'} {what}: wanted {wanted}, got {got if got is None else round(got, 4)}", flush=True)


def times(found: dict[str, Measurement], peer: str) -> float | None:
    """How many times as long the peer takes as rafters."""
    return found[peer].ratio if peer in found else None


def randn(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, device=device)


def adds(run: Run, roof: Ceilings | None) -> None:
    """One dense add by size: a multiple of 16 and one more."""
    from plain_add import masked, textbook

    for name, dtype in DTYPES.items():
        for n in SIZES:
            providers = {"rafters": ops.add, "torch": torch.add, "triton": textbook}
            if n % 16 == 0:
                providers["triton masked"] = masked
            make = pair_of(run, dtype, (n,), (n,))
            title = f"add {n} {name}"
            found = run.race(title, providers, make, cost_of(ops.add, make), roof, torch.add)
            if n >= 2**28:
                ratios = [r for p in ("torch", "triton") if (r := times(found, p))]
                best = min(ratios) if len(ratios) == 2 else None
                run.require(f"{title}: best of torch and Triton / rafters", ">= 0.99", best, best is not None and best >= 0.99)
        odd_beside_even(run, roof, name, dtype)


def odd_beside_even(run: Run, roof: Ceilings | None, name: str, dtype: torch.dtype) -> None:
    """2^26 + 1 interleaved with 2^26, each on its own tensors."""
    n = SIZES[0]
    even, odd = pair_of(run, dtype, (n,), (n,)), pair_of(run, dtype, (n + 1,), (n + 1,))
    both = {"2^26": lambda x, y, _a, _b: ops.add(x, y), "2^26 + 1": lambda _x, _y, a, b: ops.add(a, b)}
    title = f"add 2^26 beside 2^26 + 1 {name}"
    found = run.race(title, both, lambda: (*even(), *odd()), cost_of(ops.add, even), roof, None, shape="2^26, 2^26 + 1")
    ratio = times(found, "2^26 + 1")
    run.require(f"{title}: time of 2^26 + 1 / 2^26", "<= 1.02", ratio, ratio is not None and ratio <= 1.02)


def layouts(run: Run, roof: Ceilings | None) -> None:
    """What a model meets beside dense tensors."""
    for name, dtype in DTYPES.items():
        t = FOOTPRINT // (2 * 4096 * dtype.itemsize)
        for h in (4096, 3420, 4097):
            make = pair_of(run, dtype, (t, h), (h,))
            layout(run, roof, f"[{t}, {h}] + [{h}] {name}", ops.add, torch.add, make, 0.90)
        make = pair_of(run, dtype, (t, 4096), (t, 1))
        layout(run, roof, f"[{t}, 4096] * [{t}, 1] {name}", ops.mul, torch.mul, make, 0.90)
        wide = pair_of(run, dtype, (t, 4160), (t, 4160))
        layout(run, roof, f"strided rows, [{t}, 4096] of pitch 4160 {name}", ops.add, torch.add, rows_of(wide), 0.90)
        turned = pair_of(run, dtype, (t, 4096), (4096, t))
        layout(run, roof, f"transposed operand, [{t}, 4096] {name}", ops.add, torch.add, turn(turned), 0.80)


def pair_of(run: Run, dtype: torch.dtype, first: tuple[int, ...], second: tuple[int, ...]) -> MakeArguments:
    return lambda: (randn(*first, dtype=dtype, device=run.device), randn(*second, dtype=dtype, device=run.device))


def rows_of(make: MakeArguments) -> MakeArguments:
    """Rows of 4096 out of longer ones, whose own last stride is one."""

    def strided() -> tuple[Any, ...]:
        x, y = make()
        return x[:, :4096], y[:, 64:]

    return strided


def turn(make: MakeArguments) -> MakeArguments:
    def transposed() -> tuple[Any, ...]:
        x, y = make()
        return x, y.t()

    return transposed


def layout(run: Run, roof: Ceilings | None, title: str, ours: Any, theirs: Any, make: MakeArguments, share: float) -> None:
    found = run.race(title, {"rafters": ours, "torch": theirs}, make, cost_of(ours, make), roof, theirs)
    ratio, of_ceiling = times(found, "torch"), found["rafters"].share_of_ceiling if found else None
    run.require(f"{title}: torch / rafters", f">= 1 (>= {SAME})", ratio, ratio is not None and ratio >= SAME)
    run.require(f"{title}: share of ceiling", f">= {share:.2f}", of_ceiling, of_ceiling is not None and of_ceiling >= share)


def host_costs(run: Run) -> None:
    """Host time of a call on small tensors, interleaved in one process."""
    x, y, z = (randn(1024, dtype=torch.bfloat16, device=run.device) for _ in range(3))
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "add(x, y)": (lambda: ops.add(x, y), lambda: torch.add(x, y)),
        "addcmul(x, y, z, 0.5)": (lambda: addcmul(x, y, z, 0.5), lambda: torch.addcmul(x, y, z, value=0.5)),
    }
    for title, (ours, theirs) in pairs.items():
        host_cost(run, f"host cost of {title}", ours, theirs)


def host_cost(
    run: Run, title: str, ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int = 101, calls: int = 300
) -> None:
    """Microseconds a call: rounds of `calls` calls, far below the depth of the launch queue, in alternating order."""
    found: dict[str, list[float]] = {"rafters": [], "torch": []}
    for function in (ours, theirs):  # both warm before either is timed
        for _ in range(1000):
            function()
    gc.collect()
    gc.disable()
    try:
        for i in range(rounds):
            for p, function in (("rafters", ours), ("torch", theirs))[:: 1 if i % 2 else -1]:
                torch.cuda.synchronize(run.device)
                start = time.perf_counter()
                for _ in range(calls):
                    function()
                found[p].append((time.perf_counter() - start) / calls * 1e6)
    finally:
        gc.enable()
    medians = {p: statistics.median(v) for p, v in found.items()}
    ratio = statistics.median(a / b for a, b in zip(found["rafters"], found["torch"], strict=True))
    spread = {p: statistics.quantiles(v, n=20)[::18] for p, v in found.items()}
    conditions = {"dtype": "bfloat16", "shape": "1024", "rounds": rounds, "calls": calls, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    run.write({"type": "host_cost", "name": title, "us": medians, "p5_p95": spread, "ratio": ratio, **conditions})
    print(f"{title}: rafters {medians['rafters']:.2f} us, torch {medians['torch']:.2f} us", flush=True)
    run.require(f"{title}: rafters / torch", "<= 1.4", ratio, ratio <= 1.4)


def cpu(run: Run) -> None:
    """silu(x) * y * 0.5 at 2^24 in float32; both allocate their result."""
    where = torch.device("cpu")

    def make() -> tuple[torch.Tensor, ...]:
        return tuple(randn(2**24, dtype=torch.float32, device=where) for _ in range(2))

    def eager(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x) * y * 0.5

    providers = {"rafters": half_silu_mul, "torch": eager}
    cost = cost_of(half_silu_mul, make)
    found = run.race("CPU silu(x) * y * 0.5", providers, make, cost, None, eager, device=where, time_limit_s=5.0)
    ratio = times(found, "torch")
    run.require("CPU silu(x) * y * 0.5: torch / rafters", f">= 1 (>= {SAME})", ratio, ratio is not None and ratio >= SAME)


def cost_of(op: Any, make: MakeArguments) -> Cost:
    return op.cost(*make())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder for the file")
    parser.add_argument("--only", choices=("adds", "layouts", "host", "cpu"), nargs="*", help="parts to run (default: all)")
    parser.add_argument("--full-ceilings", action="store_true", help="measure the ceilings in full: two minutes more")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    gpu = torch.cuda.is_available()
    device = devices.resolve("cuda" if gpu else "cpu")
    only = options.only or (("adds", "layouts", "host", "cpu") if gpu else ("cpu",))
    run = Run(options.out / f"speed-{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl", device)
    roof = None
    if gpu and {"adds", "layouts"} & set(only):
        roof = ceilings(device, quick=not options.full_ceilings, progress=lambda text: print(f"ceilings: {text}", flush=True))
        run.write(roof.to_json())
    parts: dict[str, Callable[[], None]] = {
        "host": lambda: host_costs(run),
        "adds": lambda: adds(run, roof),
        "layouts": lambda: layouts(run, roof),
        "cpu": lambda: cpu(run),
    }
    for name, part in parts.items():
        if name in only and (gpu or name == "cpu"):
            part()
    print(f"\n{run.path}  ({time.perf_counter() - run.start:.0f} s)")
    return 1 if run.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
