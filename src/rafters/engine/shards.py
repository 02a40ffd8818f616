"""Which dimensions of a call's tensors go together: along which of them the call can be cut and computed shard by shard."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rafters.engine.call import Resolved
from rafters.engine.piece import Piece
from rafters.engine.spec import Output, Spec

SUMMED = "summed"
_BLOCKED = -1


@dataclass(frozen=True)
class Cut:
    """A cut through one dimension of the domain.

    `arguments`: for each tensor, its own dimension that is cut, or None where each shard needs it whole. `results`: likewise for
    each new tensor; SUMMED where the results of the shards add up to it.
    """

    arguments: dict[str, int | None]
    results: tuple[int | str | None, ...]


def cuts(spec: Spec, resolved: Resolved, arguments: dict[str, Any]) -> Iterator[Cut]:
    """Every cut under which the op computes each shard from shards.

    Not through the row of a row-wise op, nor the last dimension where halves or one value a row are taken of it; a tensor of which
    rows are selected is whole along its rows.
    """
    rank = len(resolved.shape)
    by_halves = any(v.part for v in spec.views.values()) or any(o.part or o.per_row for o in spec.outputs)
    for d in range(rank - 1 if spec.rowwise or by_halves else rank):
        found: dict[str, set[int | None]] = {}
        for piece in resolved.inputs:
            found.setdefault(piece.argument, set()).add(_of_input(piece, arguments, d, resolved))
        for index in resolved.indices:
            own = d < resolved.index_ranks[index.name] and index.shape[d] == resolved.shape[d]
            found.setdefault(index.argument, set()).add(d if own else None)
        for output in (group[0] for group in spec.results):
            if output.into is not None:
                found.setdefault(output.into, set()).add(_of_target(output, arguments[output.into].dim(), d, resolved))
            if output.sum_to is not None:
                found.setdefault(output.sum_to, set()).add(_along(arguments[output.sum_to].shape, d, resolved))
        if all(len(dims) == 1 and _BLOCKED not in dims for dims in found.values()):
            new = [group[0] for group in spec.results if group[0].into is None]
            yield Cut({name: dims.pop() for name, dims in found.items()}, tuple(_of_new(o, arguments, d, resolved) for o in new))


def _of_input(piece: Piece, arguments: dict[str, Any], d: int, resolved: Resolved) -> int | None:
    """The dimension of the argument that lies along dimension d of the domain; None where it is broadcast or selected there."""
    here = _along(piece.shape, d, resolved)
    if here is None or piece.index is None:
        return here
    if len(piece.shape) != len(resolved.shape):
        return _BLOCKED
    return _behind_rows(arguments[piece.argument].dim(), piece.index, d, resolved)


def _along(shape: Sequence[int], d: int, resolved: Resolved) -> int | None:
    """The dimension of a tensor of that shape that lies along dimension d of the domain, where it is not broadcast."""
    here = d - (len(resolved.shape) - len(shape))
    return here if here >= 0 and shape[here] == resolved.shape[d] else None


def _of_target(output: Output, rank: int, d: int, resolved: Resolved) -> int | None:
    """The same of an argument that is overwritten. Rows that others write would be missing in a tensor that each shard has whole."""
    if output.rows is None:
        return d
    own = _behind_rows(rank, output.rows, d, resolved)
    return _BLOCKED if own is None else own


def _behind_rows(rank: int, index: str, d: int, resolved: Resolved) -> int | None:
    """The dimension of a tensor whose rows are selected: the index stands for its first dimension, the others align with the last."""
    own = d - len(resolved.shape) + rank
    return own if d >= resolved.index_ranks[index] and own >= 1 else None


def _of_new(output: Output, arguments: dict[str, Any], d: int, resolved: Resolved) -> int | str | None:
    if output.sum_to is None:
        return d
    here = _along(arguments[output.sum_to].shape, d, resolved)
    return SUMMED if here is None else here
