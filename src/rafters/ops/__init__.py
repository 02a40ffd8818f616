"""The library. One op, or one family of one-line variants, a file; a line of the table names each op and its file."""

import importlib
from typing import Any

# op -> file (its reference in torch, where PyTorch has the op, stands in tests/ops)
OPS: dict[str, str] = {
    "add": "arithmetic",
    "sub": "arithmetic",
    "mul": "arithmetic",
    "div": "arithmetic",
    "maximum": "arithmetic",
    "minimum": "arithmetic",
    "clamp": "arithmetic",
    "where": "arithmetic",
    "lerp": "arithmetic",
    "scale": "scaling",
    "scale_bias": "scaling",
    "mul_add": "scaling",
    "softcap": "scaling",
    "relu": "activations",
    "silu": "activations",
    "gelu": "activations",
    "gelu_tanh": "activations",
    "sigmoid": "activations",
    "tanh": "activations",
    "silu_mul": "gated",
}

# Importing this package registers every op, so that torch.ops.rafters.<name> is there.
_FILES = {file: importlib.import_module(f"rafters.ops.{file}") for file in dict.fromkeys(OPS.values())}
for _name, _file in OPS.items():
    globals()[_name] = getattr(_FILES[_file], _name)


def table() -> dict[str, Any]:
    """Every op of the library by name."""
    return {name: globals()[name] for name in OPS}


__all__ = [*OPS, "table"]  # noqa: PLE0604
