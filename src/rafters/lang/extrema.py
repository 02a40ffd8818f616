"""Maximum, minimum and clamp as PyTorch means them: a NaN on either side comes out as NaN (`tl.maximum` drops it)."""

import torch

from rafters.lang._define import define, tl
from rafters.lang.arithmetic import _beside, _tensors


def _clamp_meaning(x, min=None, max=None):
    if min is None and max is None:
        return x
    if isinstance(min, torch.Tensor) or isinstance(max, torch.Tensor):
        given = iter(_tensors(*(v for v in (x, min, max) if v is not None)))
        x, min, max = (None if v is None else next(given) for v in (x, min, max))
    return torch.clamp(x, min, max)


@define(lambda x, y: torch.maximum(*_tensors(x, y)))
def maximum(x, y):
    """The larger of x and y, bools and integers included; NaN if either is."""
    a, b = _beside(x, y), _beside(y, x)
    if (a.dtype == tl.int1) and (b.dtype == tl.int1):
        z = a | b  # to Triton a bool is a signed bit: true is -1
    else:
        z = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    return z


@define(lambda x, y: torch.minimum(*_tensors(x, y)))
def minimum(x, y):
    """The smaller of x and y, bools and integers included; NaN if either is."""
    a, b = _beside(x, y), _beside(y, x)
    if (a.dtype == tl.int1) and (b.dtype == tl.int1):
        z = a & b
    else:
        z = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    return z


@define(_clamp_meaning)
def clamp(x, min=None, max=None):
    """min(max(x, min), max): `max` where the bounds cross. A bound of None is absent; NaN in x or in a bound comes out."""
    y = x
    if min is not None:
        y = maximum(y, min)
    if max is not None:
        y = minimum(y, max)
    return y


@define(torch.relu)
def relu(x):
    """x where it is not negative, else 0; NaN and -0 stay, and so does the dtype. The derivative at 0 is 0."""
    return tl.where(x < 0, 0, x)
