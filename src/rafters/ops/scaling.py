"""Scales, biases and caps. The second operand is a number, a 0-d tensor, a vector of the last dimension, or one value a row."""

from rafters import lang
from rafters.operator import elementwise


@elementwise
def scale(x, s):
    """x * s."""
    return x * s


@elementwise
def scale_bias(x, s, b):
    """x * s + b, rounded after the product and after the sum (no contraction)."""
    return lang.add(x * s, b)


@elementwise
def mul_add(x, a, y):
    """x * a + y, rounded after the product and after the sum (no contraction)."""
    return lang.add(x * a, y)


@elementwise(accepts="float")
def softcap(x, cap: float):
    """cap * tanh(x / cap): |result| <= cap without overflow at any x (Gemma 2, https://arxiv.org/abs/2408.00118)."""
    return cap * lang.tanh(x * lang.div(1.0, cap))
