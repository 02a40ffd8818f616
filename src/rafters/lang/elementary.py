"""Elementary functions."""

import torch

from rafters.lang._define import define, tl
from rafters.lang.arithmetic import _real


@define(torch.exp)
def exp(x):
    """e^x."""
    return tl.exp(_real(x))


@define(torch.exp2)
def exp2(x):
    """2^x."""
    return tl.exp2(_real(x))


@define(torch.expm1)
def expm1(x):
    """e^x - 1."""
    return tl.exp(_real(x)) - 1.0


@define(torch.log)
def log(x):
    """Natural logarithm."""
    return tl.log(_real(x))


@define(torch.log2)
def log2(x):
    """Logarithm to base 2."""
    return tl.log2(_real(x))


@define(torch.log1p)
def log1p(x):
    """log(1 + x)."""
    return tl.log(1.0 + _real(x))


@define(torch.erf)
def erf(x):
    """Error function."""
    return tl.erf(_real(x))


@define(torch.sigmoid)
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return tl.div_rn(1.0, 1.0 + exp(-x))


@define(torch.tanh)
def tanh(x):
    """Hyperbolic tangent."""
    return 2.0 * sigmoid(2.0 * x) - 1.0


@define(torch.sin)
def sin(x):
    """Sine."""
    return tl.sin(_real(x))


@define(torch.cos)
def cos(x):
    """Cosine."""
    return tl.cos(_real(x))
