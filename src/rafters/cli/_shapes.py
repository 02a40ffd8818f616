"""The shapes a benchmark visits: sizes by default, shapes as typed, or those of a model."""

import math
import re
from dataclasses import dataclass

import torch

from rafters.errors import RaftersError
from rafters.operator import Op

Shape = tuple[int, ...]

# Elements of the default sizes; an odd one beside the even ones, because that is where masks cost.
SIZES = (2**10, 2**14, 2**18, 2**20 + 1, 2**22, 2**24, 2**24 + 1, 2**26, 2**28)
ROW = 4096


@dataclass(frozen=True)
class Model:
    """Widths of a model: of the residual stream, of one half of its gated MLP."""

    hidden: int
    intermediate: int


MODELS = {
    "llama3-8b": Model(4096, 14336),
    "llama3-70b": Model(8192, 28672),
    "mistral-7b": Model(4096, 14336),
    "qwen3-8b": Model(4096, 12288),
    "qwen3-32b": Model(5120, 25600),
    "gemma2-9b": Model(3584, 14336),
}


@dataclass(frozen=True)
class Case:
    """The shapes of the tensor arguments in order; the last one serves all that follow."""

    shapes: tuple[Shape, ...]

    @property
    def label(self) -> str:
        return "+".join("x".join(map(str, s)) for s in self.shapes)

    @property
    def numel(self) -> int:
        return max(math.prod(s) for s in self.shapes)


def parse(text: str) -> list[Case]:
    """'16x4096,1048577,2^20,64x4096+4096': shapes by commas; `+` between the shapes of several tensor arguments."""
    entries = [e.strip() for e in text.split(",") if e.strip()]
    cases = [Case(tuple(_shape(part, entry) for part in entry.split("+"))) for entry in entries]
    if not cases:
        raise RaftersError(f"--shapes {text!r} names no shape; wanted, for example, 16x4096,1048577")
    return cases


def _shape(text: str, entry: str) -> Shape:
    sizes = []
    for size in text.split("x"):
        match = re.fullmatch(r"(\d+)(?:\^(\d+))?", size)
        if not match:
            raise RaftersError(f"--shapes: {entry!r} is no shape; wanted, for example, 16x4096, 1048577, 2^20 or 64x4096+4096")
        sizes.append(int(match[1]) ** int(match[2] or 1))
    return tuple(sizes)


def of_model(name: str, tokens: str, op: Op) -> list[Case]:
    """tokens x hidden, and for an elementwise op tokens x intermediate too."""
    if name not in MODELS:
        raise RaftersError(f"--model {name!r} is not known; known: {', '.join(MODELS)}")
    model = MODELS[name]
    if not re.fullmatch(r"\d+(,\d+)*", tokens):
        raise RaftersError(f"--tokens {tokens!r}: wanted whole numbers, for example 1,16,256")
    widths = (model.hidden,) if op.spec.rowwise else (model.hidden, model.intermediate)
    return [Case(((int(t), width),)) for width in widths for t in tokens.split(",")]


def default(op: Op, dtype: torch.dtype, memory_bytes: int) -> list[Case]:
    """Sizes up to 2^28 elements, or what two sets of arguments and results may take: a quarter of memory."""
    each = len(op.spec.tensors) + len(op.spec.results)
    most = memory_bytes // 4 // (2 * each * dtype.itemsize)
    sizes = [n for n in SIZES if n <= most]
    if most < SIZES[-1] and (largest := 1 << (most.bit_length() - 1)) > max(sizes, default=0):
        sizes.append(largest)
    if not op.spec.rowwise:
        return [Case(((n,),)) for n in sizes]
    return [Case(((max(n // ROW, 1), ROW + n % 2),)) for n in sizes]
