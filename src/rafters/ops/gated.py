"""Gated activations on two tensors; the packed forms (`..._and_mul`) read the halves of one."""

from rafters import lang
from rafters.operator import elementwise


@elementwise(accepts="float")
def silu_mul(gate, up):
    """silu(gate) * up, rounded once (SwiGLU, https://arxiv.org/abs/2002.05202)."""
    return gate * lang.sigmoid(gate) * up
