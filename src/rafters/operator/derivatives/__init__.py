"""Gradients and tangents of an op: derived as ops of their own, given by the author, or PyTorch's of its torch form."""
