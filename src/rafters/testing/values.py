"""Values that break kernels: infinities, NaN, both zeros, subnormals, the largest, and numbers of every magnitude."""

import math
from collections.abc import Sequence

import torch

from rafters.dtypes import FLOAT8


def specials(dtype: torch.dtype) -> torch.Tensor:
    """The values at the ends of a dtype, as a 1-d tensor."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        whole = [0, 1, 2, 7, info.max, info.max - 1, info.min, info.min + 1, *([-1, -2, -7] if info.min < 0 else [])]
        return torch.tensor(whole, dtype=dtype)
    limits = torch.finfo(dtype)
    # The smallest subnormal, a larger one, and both sides of the smallest normal number.
    small = [limits.smallest_normal * factor for factor in (limits.eps, 0.75, 1.0, 1.5)]
    values = [0.0, 1.0, 0.5, 1.0 + limits.eps, 3.0, 11.0, 88.8, limits.max, limits.max / 2, *small]
    signed = [v for value in values for v in (value, -value)]
    ends = [float("nan")] if dtype is torch.float8_e4m3fn else [float("nan"), float("inf"), float("-inf")]
    return torch.tensor([*signed, *ends], dtype=torch.float64).to(dtype)


def ordinary(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random values of moderate size, all finite."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.rand(tuple(shape), generator=generator) > 0.5
    if not dtype.is_floating_point:
        low = -100 if torch.iinfo(dtype).min < 0 else 0
        return torch.randint(low, 100, tuple(shape), generator=generator).to(dtype)
    made = torch.randn(tuple(shape), generator=generator, dtype=torch.float64) * 2
    return made.to(torch.float32).to(dtype) if dtype in FLOAT8 else made.to(dtype)


def counting(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """1, 2, 3 ... 97, 1, 2 ..., from another start for another seed: where a value came from shows. No two neighbours are equal."""
    flat = (torch.arange(math.prod(shape)) + 7 * seed) % 97 + 1
    made = flat % 3 == 0 if dtype is torch.bool else flat.to(torch.float32).to(dtype) if dtype in FLOAT8 else flat.to(dtype)
    return made.reshape(tuple(shape))


def smooth(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Ordinary values none of which is near zero, where many functions have a kink that finite differences would straddle."""
    made = ordinary(shape, dtype, seed)
    return made + made.sign() * 0.1 if dtype.is_floating_point and dtype not in FLOAT8 else made


def awkward(shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Random values with the special ones of the dtype among them; another seed puts them at other places."""
    made = ordinary(shape, dtype, seed)
    if dtype.is_floating_point:
        wide = torch.randn(made.shape, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64) * 3
        # One in four has another magnitude, kept where products and exponentials of it are still finite.
        scaled = made.double() * torch.exp2(wide)
        quarter = torch.rand(made.shape, generator=torch.Generator().manual_seed(seed + 2)) < 0.25
        made = torch.where(quarter, scaled, made.double()).to(torch.float32 if dtype in FLOAT8 else dtype).to(dtype)
    ends = specials(dtype)
    flat = made.reshape(-1)
    where = torch.randperm(flat.numel(), generator=torch.Generator().manual_seed(seed + 3))[: max(flat.numel() // 3, 1)]
    order = torch.randperm(ends.numel(), generator=torch.Generator().manual_seed(seed + 4))
    chosen = ends[order].repeat(-(-where.numel() // ends.numel()))[: where.numel()]
    if flat.numel():
        _raw(flat)[where] = _raw(chosen)
    return flat.reshape(tuple(shape))


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, for dtypes that have no indexed assignment."""
    return tensor.view(torch.uint8) if tensor.dtype in FLOAT8 else tensor
