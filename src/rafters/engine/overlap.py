"""May a tensor that is written share memory with one that is read, other than element by element?"""

from typing import Any

import numpy as np
import torch

from rafters.engine.call import Resolved
from rafters.engine.spec import Spec
from rafters.errors import argument_error

MAX_WORK = 10_000  # of numpy's exact solver; views made by slicing need a few steps


class _Extent:
    """The addresses of a tensor in numpy's terms; nothing is read through it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        item = tensor.element_size()
        self.__array_interface__ = {
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(s * item for s in tensor.stride()),
            "typestr": f"|V{item}",
            "version": 3,
        }


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Exact for all views that slicing and permuting can make; where numpy gives up, the careful answer: yes."""
    if a.numel() == 0 or b.numel() == 0 or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    x, y = np.asarray(_Extent(a)), np.asarray(_Extent(b))
    try:
        return bool(np.shares_memory(x, y, max_work=MAX_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def same_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same element at the same index."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride() and a.dtype is b.dtype


def _element_by_element(spec: Spec, name: str, label: str) -> bool:
    """Is the argument read exactly where it is written, so that every program overwrites only what it alone has read?"""
    read = {(view.part, view.rows) for view in spec.views.values() if view.source == name}
    into = name if label != "out" else None
    if any(output.sum_to for output in spec.outputs):
        return False  # what one program sums, another may still have to read
    written = {(output.part, output.rows) for output in spec.outputs if output.into == into}
    return not read or (read == written and all(rows is None for _, rows in read))


def check_outputs(spec: Spec, arguments: dict[str, Any], resolved: Resolved, given: tuple[torch.Tensor, ...]) -> None:
    """An output may be an input itself; any other overlap would let one program read what another has written."""
    if resolved.shape and 0 in resolved.shape:
        return
    tensors = [(p.name, arguments[p.name]) for p in spec.tensors if isinstance(arguments[p.name], torch.Tensor)]
    written = [("out", t) for t in given] + [(p.name, arguments[p.name]) for p in spec.parameters if p.mutated]
    for label, target in written:
        for name, tensor in tensors:
            if (tensor is target or same_elements(tensor, target)) and _element_by_element(spec, name, label):
                continue
            if share_memory(target, tensor):
                got = f"memory that overlaps {name!r}"
                raise argument_error(spec.name, label, got, f"memory of its own, or exactly {name!r} (same shape and strides)")
    for position, (label, target) in enumerate(written):
        for other_label, other in written[position + 1 :]:
            if other is target or share_memory(target, other):
                raise argument_error(spec.name, label, f"memory that overlaps {other_label!r}", "separate results")
