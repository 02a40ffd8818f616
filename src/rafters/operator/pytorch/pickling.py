"""How an op is pickled: by the name under which its module holds it, as functions are. A body is code, not data."""

import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any


def by_name(op: Any, kind: type[Any]) -> tuple[Callable[[str, str], Any], tuple[str, str]]:
    """What `__reduce__` of an op (a `kind`) returns. PicklingError where no module holds it: it was made in a function, by a factory."""
    held = vars(sys.modules[op.__module__]) if op.__module__ in sys.modules else {}
    for name in (op.spec.body.function.__qualname__, *held):
        found = held.get(name)
        if isinstance(found, kind) and found.qualified_name == op.qualified_name:
            return find, (op.__module__, name)
    raise pickle.PicklingError(
        f"{op.qualified_name}: an op is pickled by its name in a module, and {op.__module__!r} has none for it; make it at the top level"
    )


def find(module: str, name: str) -> Any:
    """The op that `module` holds as `name`."""
    return getattr(importlib.import_module(module), name)
