"""How far a result is from the truth, in units of its last place, and whether that is allowed."""

import math

import torch

from rafters.dtypes import FLOAT8

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
LIMIT_16, LIMIT_32 = 1.0, 4.0


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal shape, dtype and bits; two NaN are equal whatever their payload."""
    if a.shape != b.shape or a.dtype is not b.dtype:
        return False
    word = _WORDS[a.dtype.itemsize]
    equal = a.contiguous().view(word) == b.contiguous().view(word)
    if a.dtype.is_floating_point:
        equal |= a.contiguous().float().isnan() & b.contiguous().float().isnan()
    return bool(equal.all())


def widened(got: torch.Tensor) -> torch.Tensor:
    """The same values in float64 on the CPU; torch converts no float8 directly."""
    return got.detach().cpu().to(torch.float32).double() if got.dtype in FLOAT8 else got.detach().cpu().double()


def ulp_error(got: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """|got - truth| in units in the last place of got's dtype at the truth; inf where one is NaN or infinite and the other not.

    `truth` is float64. An infinity that stands for a finite truth beyond the largest number is no error; subnormal results
    count in units of the smallest subnormal.
    """
    limits = torch.finfo(got.dtype)
    wide, truth = widened(got), truth.detach().cpu().double()
    _, exponent = torch.frexp(truth.abs().clamp(limits.smallest_normal, limits.max))
    unit = torch.ldexp(torch.full_like(truth, limits.eps), exponent - 1)
    # An infinity counts as the number that follows the largest one: rounding to it is right for a truth that lies beyond. (In
    # float64 the truth itself overflows, so nothing is to be forgiven there.)
    if got.dtype is not torch.float64:
        beyond = 2.0 ** math.frexp(limits.max)[1]
        wide = torch.where(wide.isinf() & truth.isfinite(), wide.sign() * beyond, wide)
        truth = torch.where(truth.isinf(), truth, truth.clamp(-beyond, beyond))
    error = (wide - truth).abs() / unit
    error = torch.where(wide == truth, 0.0, error)
    return torch.where(wide.isnan() != truth.isnan(), float("inf"), torch.where(wide.isnan() & truth.isnan(), 0.0, error))


def misses(got: torch.Tensor, truth: torch.Tensor, allowed: torch.Tensor | None = None) -> torch.Tensor:
    """Where a result is further from the truth than allowed, as a mask on the CPU; both have the same shape.

    The limit is 1 ulp of a result of 16 bits or fewer and 4 ulp of a wider one, or `allowed` where that is more.
    """
    if not got.dtype.is_floating_point:
        mine = got.detach().cpu()
        return mine != truth.detach().cpu().to(mine.dtype)
    limit = torch.full(truth.shape, LIMIT_16 if got.dtype.itemsize < 4 else LIMIT_32, dtype=torch.float64)
    return ulp_error(got, truth) > (limit if allowed is None else torch.maximum(limit, allowed))


def wrong_values(got: torch.Tensor, truth: torch.Tensor, allowed: torch.Tensor | None = None) -> list[str]:
    """What is wrong with a result, in words with the first element; [] where every element is within its limit (see `misses`)."""
    if tuple(got.shape) != tuple(truth.shape):
        return [f"shape {tuple(got.shape)}, wanted {tuple(truth.shape)}"]
    return described(misses(got, truth, allowed), got, truth)


def described(wrong: torch.Tensor, got: torch.Tensor, truth: torch.Tensor) -> list[str]:
    """A mask of wrong elements in words: how many, how far off at worst, and the first."""
    if not bool(wrong.any()):
        return []
    text = "differ" if not got.dtype.is_floating_point else f"worst {float(ulp_error(got, truth)[wrong].max()):.3g} ulp"
    at = tuple(int(i) for i in wrong.nonzero()[0])
    mine = widened(got) if got.dtype.is_floating_point else got.detach().cpu()
    first = f"at {at}: got {mine[at].item()!r}, wanted {truth.detach().cpu()[at].item()!r}"
    return [f"{int(wrong.sum())} of {wrong.numel()} values wrong ({text}); {first}"]
