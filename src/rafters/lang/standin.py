"""`rafters.tl` where triton is not installed: the names of triton.language without their code.

A body only has to *mention* `tl.where` or `tl.float32`; the trace knows what the names mean.
"""

import sys
import types
from typing import Any


class constexpr:  # noqa: N801  (Triton's own spelling)
    """Annotation of a compile-time parameter; holds a value as Triton's does."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Name:
    """One name of triton.language. It carries no code: a body that uses it is traced, not compiled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"tl.{self.name}"

    def __getattr__(self, name: str) -> "Name":
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(f"{self.name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"tl.{self.name} can only be called inside the body of an op")


class _StandIn(types.ModuleType):
    constexpr = constexpr

    def __getattr__(self, name: str) -> Name:
        if name.startswith("__"):
            raise AttributeError(name)
        value = Name(name)
        setattr(self, name, value)
        return value


tl = _StandIn(f"{__name__}.tl", "Stand-in for triton.language.")
sys.modules[tl.__name__] = tl
