"""Arithmetic as torch has it: the same promotion, broadcasting, NaN and integer rules. The generality test of the core."""

from rafters import lang
from rafters.operator import elementwise


@elementwise
def add(x, y):
    """x + y, as torch.add; bool + bool is logical or."""
    return lang.add(x, y)


@elementwise(accepts="number")
def sub(x, y):
    """x - y, as torch.sub; bool is refused, as there."""
    return x - y


@elementwise
def mul(x, y):
    """x * y, as torch.mul; bool * bool is logical and."""
    return x * y


@elementwise(out_dtype="float")
def div(x, y):
    """x / y, correctly rounded, as torch.div; integers divide in floating point."""
    return lang.div(x, y)


@elementwise
def maximum(x, y):
    """The larger of x and y, as torch.maximum: NaN if either is NaN."""
    return lang.maximum(x, y)


@elementwise
def minimum(x, y):
    """The smaller of x and y, as torch.minimum: NaN if either is NaN."""
    return lang.minimum(x, y)


@elementwise(accepts={"x": "number"})
def clamp(x, min=None, max=None):
    """min(max(x, min), max), as torch.clamp: NaN stays; a bound may be absent, a number or a tensor; max wins where min > max."""
    return lang.clamp(x, min, max)


@elementwise(accepts={"condition": "bool"})
def where(condition, x, y):
    """x where condition, else y, as torch.where."""
    return lang.where(condition, x, y)


@elementwise(accepts="float")
def lerp(start, end, weight):
    """start + weight * (end - start), as torch.lerp: from the other end where |weight| >= 0.5, so that weight = 1 gives end exactly."""
    return lang.lerp(start, end, weight)
