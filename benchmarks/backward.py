"""The speed of derived gradients, measured on a GPU: `python benchmarks/backward.py`.

The backward op of `silu_mul` (one kernel), of `x * w[H]` (each input read once, the weight's gradient summed in two stages), of a value
a row, of a scalar, of a bias; of row-wise ops; beside the same formulas in eager PyTorch and compiled by Inductor. Rows as in
benchmarks/speed.py.
"""

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from speed import DTYPES, SEED, Run, randn, times

from rafters import device as devices
from rafters import lang, ops, rowwise
from rafters.roofline import Ceilings, ceilings

T, H = 16384, 4096


def silu_mul_backward(g: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, ...]:
    s = torch.sigmoid(gate.float())
    g, gate, up = g.float(), gate.float(), up.float()
    return (g * up * s * (1 + gate * (1 - s))).to(torch.bfloat16), (g * gate * s).to(torch.bfloat16)


def eager_silu_mul_backward(g: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.ops.aten.silu_backward(g * up, gate), g * torch.nn.functional.silu(gate)


def mul_backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return g * w, (g.float() * x.float()).sum_to_size(w.shape).to(w.dtype)


def bias_backward(g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return g.float().sum_to_size(y.shape).to(y.dtype)


@rowwise(name="bench_backward::rms_norm")
def rms_norm(x, weight, eps: float = 1e-6):
    return x * lang.rsqrt(lang.row_mean(x * x) + eps) * weight


@rowwise(name="bench_backward::layer_norm")
def layer_norm(x, weight, bias, eps: float = 1e-5):
    centred = x - lang.row_mean(x)
    return centred * lang.rsqrt(lang.row_mean(centred * centred) + eps) * weight + bias


def rms_norm_backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, eps: float) -> tuple[torch.Tensor, ...]:
    dtype, g, x = x.dtype, g.float(), x.float()
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    gw = g * w.float()
    grad_x = scale * (gw - x * scale.square() * (gw * x).mean(-1, keepdim=True))
    return grad_x.to(dtype), (g * x * scale).sum(0).to(dtype)


def layer_norm_backward(
    g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float
) -> tuple[torch.Tensor, ...]:
    dtype, g, x = x.dtype, g.float(), x.float()
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    normed, gw = centred * scale, g * w.float()
    grad_x = scale * (gw - gw.mean(-1, keepdim=True) - normed * (gw * normed).mean(-1, keepdim=True))
    return grad_x.to(dtype), (g * normed).sum(0).to(w.dtype), g.sum(0).to(b.dtype)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder for the file")
    parser.add_argument("--rows-only", action="store_true", help="the row-wise ops alone")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    device = devices.resolve("cuda")
    run = Run(options.out / f"backward-{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl", device)
    roof = ceilings(device, quick=True)
    run.write(roof.to_json())
    for name, dtype in DTYPES.items():

        def full(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
            return randn(*shape, dtype=dtype, device=device)

        of_rows(run, roof, name, full)
        if options.rows_only:
            continue
        x = full(64, H)
        if dtype is torch.bfloat16:
            op = ops.silu_mul.backward_op(x, x)
            case(run, roof, f"silu_mul backward [{T}, {H}] {name}", op, eager_silu_mul_backward, silu_mul_backward,
                 lambda: (full(T, H), full(T, H), full(T, H)), 0.95)  # fmt: skip
        op = ops.mul.backward_op(x, x)
        for shape, wanted in (((H,), 0.85), ((T, 1), 0.85), ((), 0.85)):
            case(run, roof, f"[{T}, {H}] * {list(shape)} backward {name}", op, mul_backward, mul_backward,
                 lambda shape=shape: (full(T, H), full(T, H), full(*shape) if shape else full(1)[0]), wanted)  # fmt: skip
        case(run, roof, f"[2048, {H}] * [{H}] backward {name}", op, mul_backward, mul_backward,
             lambda: (full(2048, H), full(2048, H), full(H)), None)  # fmt: skip
        y = torch.zeros(H, dtype=dtype, device=device)
        total = gradient_of_bias(x, y)
        case(run, roof, f"[{T}, {H}] + [{H}] backward, bias alone {name}", total, bias_backward, bias_backward,
             lambda: (full(T, H), full(H)), 0.85)  # fmt: skip
    print(run.path)
    return 1 if run.wrong else 0


def of_rows(run: Run, roof: Ceilings, name: str, full: Any) -> None:
    """No target was set for these; they are to be faster than what Inductor makes of the formula."""
    for width in (1024, H, 8192):
        x, w = full(64, width), full(width)
        case(run, roof, f"rms_norm backward [{T}, {width}] {name}", rms_norm.backward_op(x, w), rms_norm_backward, rms_norm_backward,
             lambda width=width: (full(T, width), full(T, width), full(width), 1e-6), None)  # fmt: skip
    op = layer_norm.backward_op(x, w, w)
    order = [p.name for p in op.spec.parameters]
    given = {"grad_out": 0, "x": 0, "weight": 1, "bias": 1}
    shapes = ((T, width), (width,))
    case(run, roof, f"layer_norm backward [{T}, {width}] {name}", op, layer_norm_backward, layer_norm_backward,
         lambda: tuple(full(*shapes[given[n]]) if n in given else 1e-5 for n in order), None)  # fmt: skip


def gradient_of_bias(x: torch.Tensor, y: torch.Tensor) -> Any:
    """The backward op of a broadcast bias alone: the other gradient is the cotangent itself."""
    from rafters.operator.derivatives.derive import derivative

    found: Any = derivative(ops.add.spec, {"x": x, "y": y}, ("y",), (0,))
    return found.op(("y",))


def case(run: Run, roof: Ceilings, title: str, op: Any, eager: Any, formula: Any, make: Any, wanted: float | None) -> None:
    providers = {"rafters": op, "torch": eager}
    try:
        compiled = torch.compile(formula, dynamic=False)
        compiled(*make())
        providers["torch.compile"] = compiled
    except Exception as error:  # no compiler on this machine: the row says so by its absence
        print(f"{title}: torch.compile: {type(error).__name__}: {str(error)[:200]}")
    cost = op.cost(*make())
    found = run.race(title, providers, make, cost, roof, op.reference)
    share = found["rafters"].share_of_ceiling if found else None
    if wanted is not None:
        run.require(f"{title}: share of ceiling", f">= {wanted:.2f}", share, share is not None and share >= wanted)
    ratio = times(found, "torch.compile") or times(found, "torch")
    run.require(f"{title}: compiled torch / rafters", ">= 1 (>= 0.995)", ratio, ratio is not None and ratio >= 0.995)


if __name__ == "__main__":
    raise SystemExit(main())
