"""How much of its first operand an op touches that goes there by index: rows and elements that come twice count once."""

from collections.abc import Sequence
from typing import Any

import torch

# Where the index of an op stands, for ops that index whole slices along one dimension: (dimension, index).
_SLICES = {"index_select": (1, 2), "index_copy_": (1, 2), "index_add_": (1, 2), "index_fill_": (1, 2)}
_EMBEDDINGS = {"embedding", "_embedding_bag", "_embedding_bag_forward_only"}
# One element for every element of the index.
_ELEMENTS = {"gather", "scatter_", "scatter_add_", "scatter_reduce_"}
# Operations an element of the source takes that is added on.
ADDS = {"index_add_", "scatter_add_", "scatter_reduce_", "index_add", "scatter_add", "scatter_reduce"}


def elements(name: str, args: Sequence[Any]) -> int | None:
    """Distinct elements of `args[0]` that the ATen op `name` reads or writes by index; None if it does not go by index."""
    if name in _EMBEDDINGS:
        return _slices(args[0], {0: args[1]})
    if name in _SLICES and len(args) > 2:
        dim, index = (args[i] for i in _SLICES[name])
        return _slices(args[0], {dim % max(args[0].dim(), 1): index})
    if name in ("index", "index_put_"):
        return _slices(args[0], _by_dimension(args[1]))
    if name in _ELEMENTS and len(args) > 2:
        return _at_each(args[0], args[1] % max(args[0].dim(), 1), args[2])
    return _slices(args[0].reshape(-1), {0: args[1]}) if name == "take" else None


def _by_dimension(indices: Sequence[torch.Tensor | None]) -> dict[int, torch.Tensor]:
    """Dimension -> index; a mask stands for the indices of its true elements, one for each of its dimensions."""
    found: dict[int, torch.Tensor] = {}
    dim = 0
    for index in indices:
        spread: Sequence[torch.Tensor | None] = [index]
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            spread = index.nonzero(as_tuple=True)
        found |= {dim + i: part for i, part in enumerate(spread) if part is not None}
        dim += len(spread)
    return found


def _slices(t: torch.Tensor, indices: dict[int, torch.Tensor]) -> int:
    """Distinct places among the indexed dimensions x the size of all others."""
    others = 1
    for dim, size in enumerate(t.shape):
        others *= 1 if dim in indices else size
    return others * _distinct([(index, t.shape[dim]) for dim, index in indices.items()])


def _at_each(t: torch.Tensor, along: int, index: torch.Tensor) -> int:
    """Distinct elements where one dimension goes by the index and every other by its position in it."""
    places = []
    for dim, size in enumerate(index.shape):
        shape = [size if d == dim else 1 for d in range(index.dim())]
        positions = index if dim == along else torch.arange(size, device=index.device).view(shape)
        places.append((positions, t.shape[dim]))
    return _distinct(places)


def _distinct(places: Sequence[tuple[torch.Tensor, int]]) -> int:
    """How many different combinations of indices there are; negative ones count from the end."""
    combined = torch.zeros((), dtype=torch.int64)
    for index, size in places:
        combined = combined.to(index.device) * size + index.long() % max(size, 1)
    return int(torch.unique(combined).numel())
