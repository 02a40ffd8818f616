"""The chart of the README: `python benchmarks/roofline_chart.py --out benchmarks/results`.

Three ops of ours, a softmax and a matrix product of PyTorch's, each at three sizes, under the ceilings measured in the same run.
Writes the raw rows (JSON lines), draws docs/roofline.svg from them, and keeps them as the run that `rafters report --recorded`
replays for this device.
"""

import argparse
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import rafters
from rafters import device as devices
from rafters import ops
from rafters.cost import Cost
from rafters.roofline import Measurement, ceilings, measure, read, write
from rafters.roofline.chart import model, save

RECORDED = Path(__file__).parents[1] / "src" / "rafters" / "roofline" / "recorded"
DTYPE = torch.bfloat16
SIZES = (2**20, 2**24, 2**28)
SIDES = (1024, 4096, 8192)
Make = Callable[[], tuple[Any, ...]]


def cases(device: torch.device) -> Iterator[tuple[str, str, Callable[..., Any], Make, Cost | None]]:
    """(name, family, function, arguments, cost)."""

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=DTYPE)

    for n in SIZES:
        for op, operands in ((ops.add, 2), (ops.silu_mul, 2), (ops.softcap, 1)):
            scalars = (30.0,) if op is ops.softcap else ()

            def arguments(n: int = n, operands: int = operands, scalars: tuple[float, ...] = scalars) -> tuple[Any, ...]:
                return (*(randn(n) for _ in range(operands)), *scalars)

            yield op.name, "rafters", op, arguments, op.cost(*arguments())
        softmax = Cost(2 * n, 2 * n, 5 * n)  # max, subtract, exp, sum, divide
        yield "torch softmax", "torch", lambda x: torch.softmax(x, -1), lambda n=n: (randn(n // 4096, 4096),), softmax
    for side in SIDES:
        product = Cost(4 * side**2, 2 * side**2, 2 * side**3)
        yield "torch matmul", "matmul", torch.matmul, lambda side=side: (randn(side, side), randn(side, side)), product


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the raw rows")
    parser.add_argument("--svg", type=Path, default=Path("docs/roofline.svg"))
    options = parser.parse_args()
    device = devices.resolve(None)
    limits = ceilings(device, refresh=True)
    found: list[Measurement] = []
    for name, family, function, make, cost in cases(device):
        reference = function.reference if isinstance(function, rafters.Op) else function
        m = measure(function, make, cost, reference=reference, name=name, family=family, ceilings=limits, time_limit_s=3.0)
        found.append(m)
        share = f"{m.share_of_attainable:.1%} of attainable" if m.share_of_attainable else "; ".join(m.reasons)
        print(f"{name:15s} {m.shape:>12s} {share}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"roofline-{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl"
    write(path, found, environment=devices.environment(device), ceilings=limits)
    save(model.chart(read(path)), options.svg)
    slug = "-".join(limits.device.name.lower().replace("nvidia", "").split())
    replayed = RECORDED / f"roofline-{slug}.jsonl"
    replayed.write_bytes(path.read_bytes())
    print(path, options.svg, replayed)


if __name__ == "__main__":
    main()
