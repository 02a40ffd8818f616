"""Maximum, minimum and clamp as PyTorch means them: a NaN on either side comes out as NaN (`tl.maximum` drops it)."""

import torch

from rafters.lang._define import define, tl


def _clamp_meaning(x, min=None, max=None):
    if isinstance(min, torch.Tensor) or isinstance(max, torch.Tensor):
        min = None if min is None else torch.as_tensor(min, device=x.device)
        max = None if max is None else torch.as_tensor(max, device=x.device)
    return torch.clamp(x, min, max)


@define(torch.maximum)
def maximum(x, y):
    """The larger of x and y; NaN if either is."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@define(torch.minimum)
def minimum(x, y):
    """The smaller of x and y; NaN if either is."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@define(_clamp_meaning)
def clamp(x, min=None, max=None):
    """min(max(x, min), max); a bound of None is absent; NaN in x or a bound comes out as NaN."""
    y = x
    if min is not None:
        y = maximum(y, min)
    if max is not None:
        y = minimum(y, max)
    return y
