"""The plans of one op: found by their key, and bounded; what is used lately stays.

Two generations of a dictionary: what is used is in the young one, and when that is full it becomes the old one. So a hit costs one
look-up and no bookkeeping, and what was not used for a generation is dropped. Each step of a change leaves a table that is right (at
worst a plan is made twice), so that a look-up takes no lock.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rafters.engine.family import Family, Open
from rafters.operator.calls import gate

GENERATION = 4096  # keys
CLASSES = 512  # classes of calls whose leading sizes are open
FAMILIES = 16  # kernels in one of them


def never(*_tensors: Any) -> bool:
    return False


class Entry:
    """How one kind of call is run.

    `check` says of a call's tensors alone whether they are of this kind (None: not yet made), `constants` are the compile-time values.
    `free`: no tensor of the kind requires a gradient, so that gradients need not be off. `rules`: how such calls are differentiated,
    by which of their arguments (operator/derivatives/gradient.py).
    """

    __slots__ = ("check", "constants", "free", "rules", "run")

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run
        self.check: Callable[..., bool] | None = None
        self.constants: tuple[Any, ...] = ()
        self.free = True
        self.rules: dict[tuple[bool, ...], Any] = {}


def _nothing() -> Entry:
    entry = Entry(never)
    entry.check = never
    return entry


class Table:
    """Entries by key, and those that the latest call of plain tensors found: `last`, and `last_into` with `out=`."""

    __slots__ = ("_classes", "_lock", "_old", "_young", "candidate", "get", "last", "last_into", "sizes", "state")

    def __init__(self) -> None:
        self._young: dict[Any, Entry] = {}
        self._old: dict[Any, Entry] = {}
        self._classes: dict[Any, list[Family]] = {}
        # the same classes by the key of plain tensors of which the first one's first dimension is left out
        self.sizes: dict[Any, list[Family]] = {}
        self._lock = threading.Lock()
        self.get = self._young.get
        self.last = self.last_into = self.candidate = _nothing()  # candidate: met once by its key; twice running, it is watched
        self.state = 0  # counts the times that all was dropped: what was planned before may not be kept after

    def __len__(self) -> int:
        return len({id(entry) for table in (self._young, self._old) for entry in table.values()})

    def clear(self) -> None:
        with self._lock:
            self.state += 1
            self._young.clear()
            self._old.clear()
            self._classes.clear()
            self.sizes.clear()
            self.last = self.last_into = self.candidate = _nothing()

    def find(self, key: Any) -> Entry | None:
        """The entry, from either generation."""
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.keep(key, found, self.state)
        return found

    def keep(self, key: Any, entry: Entry, state: int) -> None:
        """Remembers an entry that was planned when the table was in `state`."""
        with self._lock:
            if state != self.state:
                return
            if len(self._young) >= GENERATION:
                self._old.clear()
                self._old.update(self._young)
                self._young.clear()
            self._young[key] = entry

    def watch(self, entry: Entry, tensors: Sequence[torch.Tensor], constants: tuple[Any, ...]) -> None:
        """Makes the entry's own check from a call that found it by its key."""
        entry.constants = constants
        entry.free = not any(t.requires_grad for t in tensors)
        entry.check = gate.tensor_check(tensors) or never

    def keep_size(self, key: Any, size: int, family: Family) -> None:
        """Remembers one size of a family."""
        self.keep(key, Entry(family.run((size,))), family.state)

    def leave_open(self, key: Any, call: Open) -> None:
        """Calls of this key, of any size, are of the call's class."""
        with self._lock:
            if len(self.sizes) >= CLASSES:
                self.sizes.clear()
            self.sizes[key] = self._classes.get(call.key, [])

    # -- sizes left open -------------------------------------------------------------------------------------------------------

    def family(self, call: Open) -> Family | None:
        """The plans that reach to the call's leading sizes."""
        return next((family for family in self._classes.get(call.key, ()) if family.reaches(call.size)), None)

    def has_room(self, call: Open) -> bool:
        """Are there few kernels yet in the call's class?"""
        return len(self._classes.get(call.key, ())) < FAMILIES

    def observe(self, call: Open, plan: Any, state: int) -> Family:
        """A plan that was made for such a call widens a family, or begins one."""
        with self._lock:
            families = self._classes.setdefault(call.key, []) if state == self.state else []
            family = next((f for f in families if f.take(call.lead, plan)), None)
            if family is None:
                family = Family(call.lead, plan, state)
                families.append(family)
            while len(self._classes) > CLASSES:
                del self._classes[next(iter(self._classes))]
            return family
