"""Candidates for the bandwidth ceilings: streams of every mix of reads and writes, as Triton kernels and as torch calls."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rafters.errors import MeasureError
from rafters.roofline.rotation import Arguments

# Footprints are whole numbers of this many elements, so that no candidate needs a mask.
GRAIN = 2048
SCALE = 1.0
TRIAD_SCALE = 3.0


@dataclass(frozen=True, slots=True)
class Mix:
    """How many arrays a stream reads and how many it writes."""

    name: str
    reads: int
    writes: int
    scale: float = SCALE

    @property
    def read_fraction(self) -> float:
        return self.reads / (self.reads + self.writes)

    def elements(self, footprint: int) -> int:
        """Elements of each float32 array for a total of about `footprint` bytes."""
        return max(1, round(footprint / (4 * (self.reads + self.writes) * GRAIN))) * GRAIN

    def bytes(self, elements: int) -> int:
        return 4 * elements * (self.reads + self.writes)


READ, WRITE, COPY, ADD = Mix("read", 1, 0), Mix("write", 0, 1), Mix("copy", 1, 1), Mix("add", 2, 1)
TRIAD = Mix("triad", 2, 1, TRIAD_SCALE)
THREE_TO_ONE, ONE_TO_TWO = Mix("3:1", 3, 1), Mix("1:2", 1, 2)
# The first four alone in a quick run.
MIXES = (READ, WRITE, COPY, ADD, TRIAD, THREE_TO_ONE, ONE_TO_TWO)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to move the bytes of a mix. It takes the reads, then the outputs; `threads` is for a CPU, None as many as set."""

    name: str
    run: Callable[..., Any]
    threads: int | None = None


def arguments(mix: Mix, elements: int, device: torch.device) -> Arguments:
    """Random inputs and unwritten outputs. A read writes one partial sum for every 256 elements at most."""
    reads = [_random(elements, device) for _ in range(mix.reads)]
    written = [elements] * mix.writes or [max(elements // 256, 1)]
    return (*reads, *(torch.empty(n, device=device) for n in written))


def _random(elements: int, device: torch.device) -> torch.Tensor:
    if device.type == "cuda":
        return torch.randn(elements, device=device)
    # Drawing is much slower than copying on a CPU, whose timing does not depend on values.
    return torch.randn(GRAIN).repeat(elements // GRAIN)


def _thread_counts(quick: bool) -> list[int]:
    """All threads and one; in a full run the powers of two between as well."""
    most = torch.get_num_threads()
    between = [] if quick else [1 << i for i in range(1, 10) if 1 << i < most]
    return sorted({1, *between, most}, reverse=True)


def candidates(mix: Mix, device: torch.device, *, quick: bool = False, pdl: bool = False) -> list[Candidate]:
    """What competes for the ceiling of `mix`: torch's own call where it has one, and on a GPU the Triton streams."""
    found = [] if pdl else _torch_candidates(mix)
    if device.type != "cuda":
        return [Candidate(f"{c.name} x {n}", c.run, n) for c in found for n in _thread_counts(quick)]
    try:
        from rafters.roofline import stream_kernels
    except ImportError:  # no triton: torch's own calls alone
        return found
    shapes = stream_kernels.SHAPES[:3] if quick else stream_kernels.SHAPES

    def candidate(shape: tuple[int, int]) -> Candidate:
        def run(*tensors: torch.Tensor) -> None:
            reads, writes = list(tensors[: mix.reads]), list(tensors[mix.reads :])
            stream_kernels.launch(reads, writes, mix.writes, mix.scale, shape, pdl)

        return Candidate(f"triton {shape[0]}x{shape[1]}{' pdl' if pdl else ''}", run)

    return found + [candidate(s) for s in shapes]


def verify(candidate: Candidate, mix: Mix, device: torch.device) -> None:
    """Run once on poisoned outputs and compare; raises MeasureError: a stream that is wrong may not become a ceiling."""
    tensors = arguments(mix, 4 * GRAIN, device)
    reads, writes = tensors[: mix.reads], tensors[mix.reads :]
    for w in writes:
        w.fill_(float("nan"))
    candidate.run(*tensors)
    want = torch.full((4 * GRAIN,), mix.scale, dtype=torch.float64, device=device)
    if reads:
        want = reads[0].double() + mix.scale * sum((r.double() for r in reads[1:]), torch.zeros_like(want))
    if mix.writes:
        right = all(torch.allclose(w.double(), want, rtol=1e-6, atol=1e-6) for w in writes)
    else:
        total = writes[0].double().nansum()
        right = bool((total - want.sum()).abs() < 1e-2)
    if not right:
        raise MeasureError(f"ceiling {mix.name}: candidate {candidate.name!r} gives wrong results on {device}")


def _torch_candidates(mix: Mix) -> list[Candidate]:
    match mix.name:
        case "read":
            return [Candidate("torch.sum", lambda a, out: torch.sum(a, dim=0, out=out[0]))]
        case "write":
            return [Candidate("torch.fill_", lambda out: out.fill_(mix.scale))]
        case "copy":
            # The second is the "scale" of STREAM.
            scale = Candidate("torch.mul", lambda a, out: torch.mul(a, mix.scale, out=out))
            return [Candidate("torch.copy_", lambda a, out: out.copy_(a)), scale]
        case "add" | "triad":
            return [Candidate("torch.add", lambda a, b, out: torch.add(a, b, alpha=mix.scale, out=out))]
    return []
