"""Does this call need PyTorch's dispatcher, or may it go straight to its plan?

The dispatcher is needed when a gradient is wanted, a mode or a transform is active, an argument is no plain tensor, or Dynamo is
tracing. What is easily forgotten: dual tensors and functorch wrappers are plain `Tensor`s by type, a tensor may carry the negative
bit over un-negated memory, and `with torch.device(...)` is a function mode.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

PLAIN = (torch.Tensor, torch.nn.Parameter)

# The names that the generated call function uses; see operator/calls/call_text.py.
NAMES: dict[str, Any] = {
    "_is_compiling": torch.compiler.is_dynamo_compiling,  # other tracers are modes
    "_transforms": torch._C._are_functorch_transforms_active,
    "_dispatch_modes": torch._C._len_torch_dispatch_stack,
    "_function_modes": torch._C._len_torch_function_stack,
    "_grad_enabled": torch.is_grad_enabled,
    "_forward_ad": forward_ad,
    "_Tensor": torch.Tensor,
    "_Parameter": torch.nn.Parameter,
    "_type": type,
    "_isinstance": isinstance,
    "_repr": repr,
    "_default_dtype": torch.get_default_dtype,
    "_tuple": tuple,
    "_len": len,
    "_float": float,
    "_int": int,
    "_bool": bool,
    "_numbers": frozenset({bool, int, float}),
}


def tensor_check(tensors: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """`check(*tensors)`: are these of the same type, dtype, shape, strides, device, dispatch keys and `requires_grad` as those?
    PyTorch's own guard answers in a fraction of the time that a key takes. None where it is not to be had.

    It looks at the dispatch keys as they are in force, so that transforms, dispatch modes, inference mode, the negative bit,
    conjugation and autocast all count. It does not see whether gradients are on, function modes, forward-mode levels and addresses.
    """
    if GUARDS is None:
        return None
    shapes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
    check: Callable[..., bool] = GUARDS(*tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides).check
    return check if check(*tensors) else None


def _guards() -> Any:
    """PyTorch's TensorGuards, where it does what is asked of it. Probed, and only in the versions it was tried with: a private class
    in C++ may change without an error."""
    kind = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if kind is None or not GUARDED_VERSIONS[0] <= version <= GUARDED_VERSIONS[1]:
        return None
    try:
        x = torch.empty(4, 2)
        check = kind(x, dynamic_dims_sizes=[[4, 2]], dynamic_dims_strides=[[2, 1]]).check
        others = (torch.empty(3, 2), torch.empty(2, 4).t(), x.double(), torch.nn.Parameter(x), torch.empty(4, 2, device="meta"))
        return kind if check(x) and check(x + 1) and not any(check(t) for t in others) else None
    except Exception:
        return None


GUARDED_VERSIONS = ((2, 11), (2, 14))
GUARDS = _guards()


def without_negative_bit(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with lazily negated tensors negated, as PyTorch does before a kernel runs.

    Not left to the dispatcher: its fallback for the negative bit lies below the Autograd key, where a plain call goes straight to its
    plan and would read the memory as it stands.
    """
    return tuple(a.resolve_neg() if isinstance(a, torch.Tensor) and a.is_neg() else a for a in arguments)


def needs_dispatch(arguments: tuple[Any, ...]) -> bool:
    """The same question for any arguments, one by one; the generated call asks it in one expression."""
    if transforms_or_modes():
        return True
    wanted = torch.is_grad_enabled()
    return any(isinstance(value, torch.Tensor) and _needs_dispatch(value, wanted) for value in arguments)


def _needs_dispatch(tensor: torch.Tensor, gradients: bool) -> bool:
    return type(tensor) not in PLAIN or (gradients and tensor.requires_grad) or tensor.device.type == "meta"


is_compiling = torch.compiler.is_compiling


def needs_composite(arguments: tuple[Any, ...]) -> bool:
    """Is a transform of torch.func or a forward-mode derivative at work? Then the op is its traced form: PyTorch knows every rule of it."""
    if torch._C._are_functorch_transforms_active():
        return True
    if forward_ad._current_level < 0:
        return False
    return any(isinstance(a, torch.Tensor) and forward_ad.unpack_dual(a).tangent is not None for a in arguments)


def forward_only(arguments: tuple[Any, ...]) -> bool:
    """Is forward mode at work, by itself (torch.autograd.forward_ad) and on these arguments?"""
    return not torch._C._are_functorch_transforms_active() and needs_composite(arguments)


def transforms_or_modes() -> bool:
    return bool(
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or forward_ad._current_level >= 0
    )
