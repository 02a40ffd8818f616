"""The same values in every layout that views can make."""

import mmap
from collections.abc import Callable, Sequence

import torch


def _inside(values: torch.Tensor, pad: Sequence[tuple[int, int]], step: int = 1, offset: int = 0) -> torch.Tensor:
    """`values` in a larger dense buffer: `pad` elements before and after each dimension, every `step`-th of the last one."""
    sizes = [n * (step if d == values.dim() - 1 else 1) + sum(pad[d]) for d, n in enumerate(values.shape)]
    count = offset
    strides = [1] * len(sizes)
    for d in range(len(sizes) - 2, -1, -1):
        strides[d] = strides[d + 1] * max(sizes[d + 1], 1)
    total = (strides[0] * max(sizes[0], 1) if sizes else 1) + offset
    buffer = torch.zeros(total, dtype=values.dtype, device=values.device)
    start = count + sum(p[0] * s for p, s in zip(pad, strides, strict=True))
    if strides:
        strides[-1] *= step
    view = buffer.as_strided(tuple(values.shape), tuple(strides), start)
    return view.copy_(values)


def contiguous(values: torch.Tensor) -> torch.Tensor:
    return values.clone(memory_format=torch.contiguous_format)


def offset(elements: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Dense, but starting some elements into its buffer."""
    return lambda values: _inside(values, [(0, 0)] * values.dim(), offset=elements)


def pitched(values: torch.Tensor) -> torch.Tensor:
    """Columns cut out of wider rows: odd row pitch, odd start."""
    return _inside(values, [*[(0, 0)] * (values.dim() - 1), (1, 6)]) if values.dim() else contiguous(values)


def aligned_pitch(values: torch.Tensor) -> torch.Tensor:
    """The first columns of rows whose pitch is a multiple of 64 elements."""
    if not values.dim():
        return contiguous(values)
    return _inside(values, [*[(0, 0)] * (values.dim() - 1), (0, -values.shape[-1] % 64 + 64)])


def stepped(values: torch.Tensor) -> torch.Tensor:
    """Every other element of the last dimension."""
    return _inside(values, [(0, 0)] * values.dim(), step=2) if values.dim() else contiguous(values)


def transposed(values: torch.Tensor) -> torch.Tensor:
    """The dimensions in memory in reverse order."""
    order = tuple(reversed(range(values.dim())))
    return values.permute(order).contiguous().permute(order)


def rotated(values: torch.Tensor) -> torch.Tensor:
    """The second dimension fastest, as in channels_last."""
    if values.dim() < 3:
        return transposed(values)
    order = (0, *range(2, values.dim()), 1)
    back = [order.index(d) for d in range(values.dim())]
    return values.permute(order).contiguous().permute(back)


def expanded(values: torch.Tensor) -> torch.Tensor:
    """The first slice of the first dimension, repeated with stride 0."""
    return values[:1].clone().expand(values.shape) if values.dim() and values.shape[0] else contiguous(values)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": contiguous,
    **{f"offset {n}": offset(n) for n in (1, 2, 3, 4, 7)},
    "pitched": pitched,
    "aligned pitch": aligned_pitch,
    "stepped": stepped,
    "transposed": transposed,
    "rotated": rotated,
    "expanded": expanded,
}


FAR = "far rows"


def far(values: torch.Tensor) -> torch.Tensor:
    """Slices of the first dimension 2^30 elements apart: three of them need 64-bit offsets. As much memory lies before them, so that
    an offset that wrapped is seen and not a crash; on the CPU it takes what is written of it."""
    shape = tuple(values.shape)
    if not shape or shape[0] < 2:
        return contiguous(values)
    rest = torch.empty(shape[1:], device="meta")
    strides = (FAR_APART, *rest.contiguous().stride())
    view = reserved((shape[0] - 1) * FAR_APART + max(rest.numel(), 1), values.dtype, values.device)
    return view.as_strided(shape, strides, view.storage_offset()).copy_(values)


FAR_APART = 2**30 + 2**20


def reserved(count: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """So many elements, and 2^31 before them (and 64 after); on the CPU zeros that take no memory until they are written."""
    before = 2**31
    total = before + count + 64
    if torch.device(device).type != "cpu":
        return torch.zeros(total, dtype=dtype, device=device)[before:][:count]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    return torch.frombuffer(mmap.mmap(-1, total * dtype.itemsize, flags=flags), dtype=dtype)[before:][:count]


_NO_RESERVE = 0x4000  # Linux; Python's mmap has no name for it


def place(values: torch.Tensor, layout: str) -> torch.Tensor:
    """A view in the named layout. Its values are `values` (for "expanded": its first slice, repeated)."""
    return far(values) if layout == FAR else LAYOUTS[layout](values)


def like(view: torch.Tensor) -> torch.Tensor:
    """A copy with the same values in the same shape and strides, at the same distance from 16-byte alignment."""
    extent = sum((n - 1) * s for n, s in zip(view.shape, view.stride(), strict=True)) + 1 if view.numel() else 0
    start = view.data_ptr() % 16 // view.element_size()
    buffer = torch.zeros(extent + start, dtype=view.dtype, device=view.device)
    made = buffer.as_strided(tuple(view.shape), view.stride(), start)
    return made.copy_(view) if view.numel() and 0 not in view.stride() else made


def torch_strides(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The strides that PyTorch gives an elementwise result of one to three operands of these shapes and strides."""
    operands = [torch.empty_strided(tuple(t.shape), t.stride(), dtype=torch.float32) for t in tensors]
    made = torch.neg(*operands) if len(operands) == 1 else torch.add(*operands) if len(operands) == 2 else torch.lerp(*operands)
    return tuple(made.stride())
