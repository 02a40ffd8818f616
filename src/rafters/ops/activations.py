"""Activations, as torch.nn.functional has them, at NaN, infinities and signed zero too."""

from rafters import lang
from rafters.operator import elementwise


@elementwise
def relu(x):
    """max(x, 0); NaN stays NaN."""
    return lang.maximum(x, 0)


@elementwise(accepts="float")
def silu(x):
    """x * sigmoid(x) (https://arxiv.org/abs/1702.03118). silu(-inf) is NaN, as in PyTorch."""
    return x * lang.sigmoid(x)


@elementwise(accepts="float")
def gelu(x):
    """x * (1 + erf(x / sqrt(2))) / 2 (https://arxiv.org/abs/1606.08415)."""
    return x * 0.5 * (1.0 + lang.erf(x * 0.7071067811865476))


@elementwise(accepts="float")
def gelu_tanh(x):
    """x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2: gelu's tanh form."""
    return 0.5 * x * (1.0 + lang.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@elementwise(out_dtype="float")
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return lang.sigmoid(x)


@elementwise(out_dtype="float")
def tanh(x):
    """(exp(2x) - 1) / (exp(2x) + 1)."""
    return lang.tanh(x)
