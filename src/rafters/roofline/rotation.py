"""Sets of arguments that a timing loop walks through, so that each launch finds its data in memory and not in cache."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rafters.device import DeviceFacts
from rafters.errors import MeasureError

Arguments = tuple[Any, ...]
MakeArguments = Callable[[], Arguments]

# A rotation moves this many times the L2 before it comes back to a set.
CACHE_MULTIPLE = 5
# More sets cost host time and are not needed: with a flush before each pass, 2048 launches amortize its edges.
MAX_SETS = 2048
_MEMORY_SHARE = 0.4


@dataclass
class Rotation:
    """`sets` are used in turn. `flush`, if there is one, must run before each pass: the sets alone do not fill the cache."""

    sets: list[Arguments]
    hot: bool
    flush: Callable[[], None] | None = None
    notes: list[str] = field(default_factory=list)


def build(make: MakeArguments, bytes_per_call: int, facts: DeviceFacts, device: torch.device, *, hot: bool = False) -> Rotation:
    """Enough sets that sets x bytes >= 5 x L2, or as many as are useful together with a flush that reads 2 x L2.

    `bytes_per_call` counts inputs and outputs; `hot` gives one set, which stays in the cache where it fits.
    """
    if hot:
        return Rotation([make()], hot=True)
    wanted = max(2, -(-CACHE_MULTIPLE * facts.l2_bytes // max(bytes_per_call, 1)))
    first = make()
    footprint = max(bytes_per_call, storage_bytes(first), 1)
    affordable = max(1, int(_MEMORY_SHARE * _free_bytes(device, facts)) // footprint)
    count = min(wanted, affordable, MAX_SETS)
    rotation = Rotation([first, *(make() for _ in range(count - 1))], hot=False)
    if count < wanted:
        rotation.flush = read_flush(facts, device)
        if count == affordable and count < MAX_SETS:
            note = f"memory holds {count} of {wanted} argument sets: the cache is flushed by reading between passes"
            rotation.notes.append(note)
    return rotation


def read_flush(facts: DeviceFacts, device: torch.device) -> Callable[[], None]:
    """A function that drives the cache out by reading 2 x L2.

    Never by writing: dirty lines are written back inside the next timed kernel, which makes it look up to 20 % slower.
    """
    buffer = torch.ones(max(2 * facts.l2_bytes // 4, 1), dtype=torch.float32, device=device)
    sink = torch.empty((), dtype=torch.float32, device=device)

    def flush() -> None:
        torch.sum(buffer, dim=0, out=sink)

    return flush


def require_storage(arguments: Sequence[Any]) -> None:
    """Raises MeasureError for tensors without bytes of their own to rotate and count: sparse and meta ones."""
    for t in tensors_in(arguments):
        kind = "meta" if t.is_meta else str(t.layout).removeprefix("torch.") if t.layout != torch.strided else ""
        if kind:
            raise MeasureError(f"measure: a {kind} tensor has no plain storage, so neither its bytes nor its copies are known")


def clones(arguments: Sequence[Any]) -> MakeArguments:
    """A factory of copies of given arguments: same values, strides, offsets and aliasing, new storages."""
    return lambda: clone(arguments)


def clone(arguments: Sequence[Any]) -> Arguments:
    """One copy; tensors that share a storage share one in the copy as well. Raises MeasureError; see `require_storage`."""
    require_storage(arguments)
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(t: torch.Tensor) -> torch.Tensor:
        if type(t) not in (torch.Tensor, torch.nn.Parameter):
            return t.clone()
        old = t.untyped_storage()
        if old.data_ptr() not in storages:
            storages[old.data_ptr()] = old.clone()
        new = torch.empty(0, dtype=t.dtype, device=t.device)
        new.set_(storages[old.data_ptr()], t.storage_offset(), t.shape, t.stride())
        return new.requires_grad_(t.requires_grad)

    with torch.no_grad():
        return tuple(map_tensors(copy, a) for a in arguments)


def fresh(make: MakeArguments, turn: int) -> Arguments:
    """New inputs for a correctness check: a factory's next set, its floating-point values moved around by `turn`.

    Values are permuted, not drawn, so that they stay what the function accepts; indices and masks stay where they are. An output
    kept from an earlier call cannot match them.
    """
    arguments = clone(make())
    with torch.no_grad():
        for t in tensors_in(arguments):
            dense = t.is_contiguous() and t.numel() > 1
            if t.is_floating_point() and dense and t.dtype.itemsize > 1:
                t.copy_(t.detach().flatten().roll(turn).view(t.shape))
    return arguments


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Tensors of a nest of tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return list(itertools.chain.from_iterable(tensors_in(v) for v in value))
    return []


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """The same nest with `function` applied to its tensors; everything else as it is."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {k: map_tensors(function, v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        items = [map_tensors(function, v) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def storage_bytes(value: Any) -> int:
    """Bytes of the distinct storages behind the tensors of `value`."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_in(value)}
    return sum(storages.values())


def _free_bytes(device: torch.device, facts: DeviceFacts) -> int:
    if device.type != "cuda":
        return facts.memory_bytes // 2
    # What the caching allocator holds unused is free to us too.
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached
