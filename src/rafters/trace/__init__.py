"""A body -> signature -> torch.fx graph -> derived forms (CPU path, FLOPs, Triton text again)."""
