"""Activations, as torch.nn.functional has them, at NaN, infinities and signed zero too."""

from rafters import lang
from rafters.operator import elementwise


@elementwise(accepts="number")
def relu(x):
    """max(x, 0), as torch.relu: NaN and -0 stay."""
    return lang.relu(x)


@elementwise(accepts="float")
def silu(x):
    """x * sigmoid(x) (https://arxiv.org/abs/1702.03118). silu(-inf) is NaN, as in PyTorch."""
    return x * lang.sigmoid(x)


@elementwise(accepts="float")
def gelu(x):
    """x * (1 + erf(x / sqrt(2))) / 2 (https://arxiv.org/abs/1606.08415), right in the negative tail too, where the sum cancels."""
    return x * lang.ndtr(x)


@elementwise(accepts="float")
def gelu_tanh(x):
    """x * (1 + tanh(u)) / 2, u = sqrt(2/pi) * (x + 0.044715 x^3): gelu's tanh form, as x * sigmoid(2u), which does not cancel."""
    return x * lang.sigmoid(x * lang.fma(x * x, 0.07135481627260025, 1.5957691216057308))


@elementwise(out_dtype="float")
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return lang.sigmoid(x)


@elementwise(out_dtype="float")
def tanh(x):
    """(exp(2x) - 1) / (exp(2x) + 1)."""
    return lang.tanh(x)
