"""The kernels of an op, compiled for a target that need not be here, and what their assembly does: `inspect`, the block-size study."""
