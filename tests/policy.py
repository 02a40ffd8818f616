"""Choices that CASES.md leaves open, in one place: a change of policy is one edit here."""

# Follow PyTorch where PyTorch has the op: x * sigmoid(x) at -inf is -inf * 0.
SILU_OF_MINUS_INF = float("nan")
GELU_OF_MINUS_INF = float("nan")
# maximum, minimum, clamp, and absmax give NaN if either operand is NaN; `tl.maximum` in a body drops it, as in Triton.
EXTREMA_OF_NAN = float("nan")
TL_MAXIMUM_DROPS_NAN = True
# max(-0, 0) may be either zero: PyTorch's own vector and scalar loops disagree.
# relu(-0) is -0 on PyTorch's CPU and +0 on its CUDA; lerp's sign of a zero depends on which of its roundings a compiler fused.
ZERO_SIGN_OPEN = {"maximum", "minimum", "clamp", "relu", "lerp"}
# gelu's relative error at x = -4 (erf and tanh form, float32); PyTorch's own is 4.5e-4 there.
GELU_TAIL = 1e-2
# `out=` of another shape is refused; PyTorch resizes it with a warning.
RESIZES_OUT = False
# The same function decorated again replaces the op; another function of that name is an error.
SAME_FUNCTION_REPLACES = True
