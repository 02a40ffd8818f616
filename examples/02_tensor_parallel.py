"""A gated MLP whose weights lie on several devices, with a Rafters op in the middle.

    torchrun --nproc-per-node 2 examples/02_tensor_parallel.py

y = down(silu(gate(x)) * up(x)). With tensor parallelism each process holds some columns of `gate` and `up` and the same rows of `down`:

    x             every process has all of it                              Replicate
    gate(x)       each computes its own columns, nothing is sent           Shard(-1)
    silu_mul      element by element: each on its columns, nothing sent    Shard(-1)
    down(...)     each multiplies its rows: a part of the sum              Partial
    y             the parts are added up: the only communication           Replicate

DTensor keeps that book. Of an op that it does not know it would only say that it has no sharding strategy; a Rafters op brings its
own, derived from its body: elementwise, so any sharding that its arguments share is kept.

On a machine with a GPU for each process they talk through NCCL, else through gloo on the CPU.
"""

import os

import torch
from torch import nn
from torch.distributed import destroy_process_group
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import rafters

HIDDEN, INNER, TOKENS = 64, 192, 10


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), without biases (https://arxiv.org/abs/2002.05202)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(HIDDEN, INNER, bias=False)
        self.up = nn.Linear(HIDDEN, INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(rafters.silu_mul(self.gate(x), self.up(x)))


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = "cuda" if torch.cuda.device_count() >= world else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    mesh = init_device_mesh(device, (world,))

    torch.manual_seed(0)  # the same weights and tokens in every process
    whole, split = GatedMLP().to(device), GatedMLP().to(device)
    split.load_state_dict(whole.state_dict())
    plan = {
        "gate": ColwiseParallel(use_local_output=False),  # hand on DTensors, so that silu_mul sees how they lie
        "up": ColwiseParallel(use_local_output=False),
        "down": RowwiseParallel(),
    }
    parallelize_module(split, mesh, plan)
    x = torch.randn(TOKENS, HIDDEN, device=device)

    with CommDebugMode() as traffic:
        made = split(x)
    made.square().sum().backward()
    wanted = whole(x)
    wanted.square().sum().backward()
    torch.testing.assert_close(made, wanted, rtol=1e-5, atol=1e-5)
    for (name, ours), theirs in zip(split.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")

    a, b = (distribute_tensor(torch.randn(TOKENS, INNER, device=device), mesh, [Shard(1)]) for _ in range(2))
    scale = distribute_tensor(torch.rand(INNER, device=device), mesh, [Replicate()])
    mixed = rafters.mul(rafters.silu_mul(a, b), scale)
    if rank == 0:
        print(f"{world} processes on {device}: output and gradients are those of the whole MLP")
        print(f"collectives of the forward pass: {traffic.get_total_counts()} (the sum of the parts behind `down`)")
        print(f"columns sharded, times a vector that every process has: {mixed.placements[0]}")
    destroy_process_group()


if __name__ == "__main__":
    main()
