"""What an op is timed beside: PyTorch's own function or else the op's traced form; and torch.compile of the same."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from rafters.operator import Op

Function = Callable[..., Any]

# PyTorch's own function for an op of the library, with the op's own arguments.
TORCH: dict[str, Function] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "clamp": torch.clamp,
    "where": torch.where,
    "lerp": torch.lerp,
    "scale": torch.mul,
    "scale_bias": lambda x, s, b: x * s + b,
    "mul_add": lambda x, a, y: x * a + y,
    "softcap": lambda x, cap: cap * torch.tanh(x / cap),
    "relu": torch.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu_mul": lambda gate, up: functional.silu(gate) * up,
}


def providers(op: Op, compiled: bool) -> dict[str, Function]:
    """Name -> function, rafters first: it is the baseline of the race."""
    own = TORCH.get(op.name) if op.spec.namespace == "rafters" else None
    ours: Any = op
    found: dict[str, Function] = {"rafters": ours, "torch" if own else "traced": own or op.reference}
    if compiled:
        # A shape at a time, its sizes known: what Inductor does best.
        torch._dynamo.reset()
        found["torch.compile"] = torch.compile(own or op.reference, dynamic=False)
    return found


def usable(found: dict[str, Function], arguments: tuple[Any, ...]) -> tuple[dict[str, Function], list[str]]:
    """Those that run at all on these arguments, and a sentence about each that does not. The op itself is not tried."""
    kept, notes = dict(found), []
    for name, function in list(found.items())[1:]:
        try:
            function(*arguments)
        except Exception as error:  # another library's failure, of any type, is a remark and no failure of ours
            del kept[name]
            notes.append(f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}")
    return kept, notes
