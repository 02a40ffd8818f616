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


def providers(op: Op, arguments: tuple[Any, ...], compiled: bool) -> tuple[dict[str, Function], list[str]]:
    """Name -> function, rafters first: it is the baseline of the race. And a sentence about each peer that does not run here."""
    ours: Any = op
    found: dict[str, Function] = {"rafters": ours}
    notes: list[str] = []
    own = TORCH.get(op.name) if op.spec.namespace == "rafters" else None
    name = "torch" if own else "traced"
    try:
        eager = own or _traced(op, arguments)
        eager(*arguments)
        found[name] = eager
        if compiled:
            name = "torch.compile"
            # A shape at a time, its sizes known: what Inductor does best.
            torch._dynamo.reset()
            fused = torch.compile(eager, dynamic=False)
            fused(*arguments)
            found[name] = fused
    except Exception as error:  # another library's failure, of any type, is a remark and no failure of ours
        notes.append(f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}")
    return found, notes


def _traced(op: Op, arguments: tuple[Any, ...]) -> Function:
    """The op's reference as a graph of torch operations, without the Python that worked it out."""
    from torch.fx.experimental.proxy_tensor import make_fx

    if any(p.mutated for p in op.spec.parameters):
        return op.reference
    with torch.no_grad():
        return make_fx(op.reference)(*arguments)
