"""PyTorch's own function for each op that it has. An op without one is compared with its float64 truth alone."""

import torch
from torch.nn import functional

# One kernel of PyTorch's: values, dtype and gradient are to be its own.
DIRECT = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "clamp": torch.clamp,
    "where": torch.where,
    "lerp": torch.lerp,
    "relu": torch.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "scale": torch.mul,
}
# Several of PyTorch's kernels. Half types would round in between, so they run in float32 and are rounded once.
COMPOSED = {
    "scale_bias": lambda x, s, b: x * s + b,
    "mul_add": lambda x, a, y: x * a + y,
    "softcap": lambda x, cap: cap * torch.tanh(x / cap),
    "silu_mul": lambda gate, up: functional.silu(gate) * up,
}
# PyTorch's gradient of clamp fails where the bounds broadcast its input.
GRADIENT = {"clamp": lambda *arguments: torch.clamp(*torch.broadcast_tensors(*arguments))}


def rounded_once(function):
    """The composition in float32, its result in the arguments' dtype."""

    def call(*arguments):
        dtype = next(a for a in arguments if isinstance(a, torch.Tensor)).dtype
        if not dtype.is_floating_point or dtype.itemsize > 2:
            return function(*arguments)
        return function(*(a.float() if isinstance(a, torch.Tensor) else a for a in arguments)).to(dtype)

    return call


def peer_of(name):
    """PyTorch's function for the op of this name, or None."""
    return DIRECT.get(name) or (rounded_once(COMPOSED[name]) if name in COMPOSED else None)
