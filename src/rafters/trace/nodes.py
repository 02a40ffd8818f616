"""What a node of a traced graph is: its operation, how its value varies, what it is filled with."""

from typing import Any

import torch

# Sizes that occur nowhere else, so that the kind of a node (tile, column vector, row scalar, scalar) shows in its shape.
SOME_ROWS, SOME_COLS = 5, 7
TILE, COLUMN, ROW, POINT = "tile", "column", "row", "point"
SHAPES: dict[str, tuple[int, ...]] = {TILE: (SOME_ROWS, SOME_COLS), COLUMN: (1, SOME_COLS), ROW: (SOME_ROWS, 1), POINT: ()}
REDUCTIONS = {"sum", "amax", "amin", "mean", "prod"}
FILLED = {"full_like", "zeros_like", "ones_like"}


def name_of(node: torch.fx.Node) -> str:
    """'mul' of aten.mul.Tensor; 'view' of aten.view_copy, which functionalization writes for a view."""
    target = node.target
    name = (
        target._schema.name.split("::")[-1]
        if isinstance(target, torch._ops.OpOverload)
        else getattr(target, "__name__", str(target))
    )
    return name if name == "_to_copy" else name.removesuffix("_copy")


def kind_of(node: torch.fx.Node) -> str:
    """tile, column, row or point, from the shape the node had in the trace."""
    shape = tuple(node.meta["val"].shape)
    if shape[-2:] == (SOME_ROWS, SOME_COLS):
        return TILE
    if shape[-1:] == (SOME_COLS,):
        return COLUMN
    return ROW if shape[-2:] == (SOME_ROWS, 1) else POINT


def filling(node: torch.fx.Node) -> Any:
    """The number that a tensor is filled with."""
    return node.args[1] if name_of(node) == "full_like" else int(name_of(node) == "ones_like")
