"""Shapes and strides against PyTorch, and against brute force, over thousands of drawn operands."""

import itertools
import random

import numpy as np
import pytest
import torch

from rafters.engine.layouts import geometry
from rafters.engine.overlap import same_elements, share_memory
from rafters.testing import torch_strides
from rafters.testing.contract import same_strides

SEEDS = range(20)


def drawn_view(random_, shape):
    """A view of the given shape as slicing, permuting, stepping and expanding make them."""
    order = list(range(len(shape)))
    random_.shuffle(order)
    sizes = [shape[d] * random_.choice((1, 1, 1, 2)) + random_.choice((0, 0, 0, 1)) for d in order]
    base = torch.empty(sizes, device="meta") if sizes else torch.empty((), device="meta")
    view = base.permute([order.index(d) for d in range(len(shape))])
    for d, n in enumerate(shape):
        step = 2 if view.shape[d] >= 2 * n - 1 and random_.random() < 0.5 else 1
        view = view[(slice(None),) * d + (slice(0, n * step if n else 0, step),)].narrow(d, 0, n)
    return view


def drawn_operand(random_, shape):
    """A view that broadcasts to `shape`: some dimensions of size 1, expanded, or missing."""
    own = [1 if random_.random() < 0.2 else n for n in shape[random_.choice((0, 0, 0, len(shape) // 2)) :]]
    view = drawn_view(random_, own)
    if random_.random() < 0.2:
        view = view.expand(shape)
    return view


@pytest.mark.parametrize("seed", SEEDS)
def test_strides_of_the_result_are_torchs(seed):
    random_ = random.Random(seed)
    for _ in range(250):
        shape = [random_.choice((0, 1, 1, 2, 3, 5)) for _ in range(random_.randint(0, 5))]
        operands = [drawn_operand(random_, shape) for _ in range(random_.randint(1, 3))]
        wanted_shape = tuple(torch.broadcast_shapes(*(o.shape for o in operands)))
        assert geometry.broadcast_shapes([tuple(o.shape) for o in operands]) == wanted_shape
        got = geometry.output_strides(wanted_shape, [(tuple(o.shape), o.stride()) for o in operands])
        wanted = torch_strides(operands)
        told = [(tuple(o.shape), o.stride()) for o in operands]
        assert same_strides(wanted_shape, got, wanted), f"{told} -> {got}, torch {wanted}"


def addresses(shape, strides):
    return [sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*map(range, shape))]


@pytest.mark.parametrize("seed", SEEDS)
def test_merging_keeps_every_tuple_of_addresses(seed):
    """The merged domain visits exactly the tuples (address in operand 0, in operand 1, ...) that the whole domain has."""
    random_ = random.Random(seed)
    for _ in range(60):
        shape = tuple(random_.choice((1, 2, 3, 4)) for _ in range(random_.randint(1, 4)))
        operands = [drawn_operand(random_, shape) for _ in range(random_.randint(1, 3))]
        strides = [geometry.expand_strides(tuple(o.shape), o.stride(), shape) for o in operands]
        keep = random_.random() < 0.3
        order = geometry.iteration_order(shape, strides)
        if keep:
            order = (len(shape) - 1, *(d for d in order if d != len(shape) - 1))
        domain = geometry.merge(shape, strides, order, keep_last=keep)
        whole = sorted(zip(*(addresses(shape, s) for s in strides), strict=True))
        merged = sorted(zip(*(addresses(domain.shape, s) for s in domain.strides), strict=True))
        assert whole == merged, (shape, strides, domain)
        assert len(domain.shape) <= len(shape)
        if keep:
            assert domain.shape[-1] == shape[-1]


@pytest.mark.parametrize(
    ("shape", "operands", "merged"),
    [
        ((4, 5, 6), [(30, 6, 1)], (120,)),
        ((4, 5, 6), [(1, 4, 20)], (120,)),
        ((4, 5, 6), [(30, 6, 1), (0, 0, 1)], (20, 6)),
        ((4, 5, 6), [(30, 6, 1), (5, 1, 0)], (20, 6)),
        ((4, 5, 6), [(30, 6, 1), (6, 0, 1)], (4, 5, 6)),
        ((4, 5, 6), [(60, 12, 2)], (120,)),
        ((4, 5, 6), [(36, 6, 1)], (4, 30)),
        ((4, 1, 6), [(6, 77, 1)], (24,)),
        ((1, 1), [(7, 9)], ()),
        ((), [()], ()),
    ],
)
def test_named_merges(shape, operands, merged):
    order = geometry.iteration_order(shape, operands)
    assert geometry.merge(shape, operands, order).shape == merged


@pytest.mark.parametrize("seed", SEEDS)
def test_self_overlap_of_views(seed):
    """Exact for what slicing, permuting and expanding make; never a missed overlap for any strides at all."""
    random_ = random.Random(seed)
    for _ in range(100):
        shape = tuple(random_.choice((0, 1, 2, 3, 4)) for _ in range(random_.randint(0, 4)))
        view = drawn_view(random_, shape)
        if random_.random() < 0.3:
            wide = tuple(n if n != 1 else 3 for n in shape)
            view = view.expand(wide)
        truth = len(set(addresses(view.shape, view.stride()))) < view.numel()
        assert geometry.overlaps_itself(tuple(view.shape), view.stride()) == truth, (view.shape, view.stride())
        any_strides = tuple(random_.randint(0, 6) for _ in shape)
        if len(set(addresses(shape, any_strides))) < np.prod(shape, dtype=int):
            assert geometry.overlaps_itself(shape, any_strides), (shape, any_strides)


@pytest.mark.parametrize("seed", SEEDS)
def test_shared_memory_of_two_views(seed):
    random_ = random.Random(seed)
    base = torch.zeros(64, dtype=torch.int16)
    for _ in range(60):
        views = []
        for _ in range(2):
            shape = [random_.choice((1, 2, 3)) for _ in range(random_.randint(0, 3))]
            strides = [random_.choice((1, 2, 3, 5, 8)) for _ in shape]
            views.append(base.as_strided(shape, strides, random_.randint(0, 20)))
        sets = [{v.storage_offset() + a for a in addresses(v.shape, v.stride())} for v in views]
        assert share_memory(*views) == bool(sets[0] & sets[1])
    assert not share_memory(base, base.clone())
    assert share_memory(base, base.view(torch.uint8)[3:5])
    assert not share_memory(base[:0], base)
    assert same_elements(base[2:], base[2:])
    assert not same_elements(base[2:], base.view(torch.float16)[2:])


@pytest.mark.parametrize(
    ("shapes", "position", "dimension"),
    [([(3,), (4,)], 1, -1), ([(2, 3), (4, 3)], 1, -2), ([(5, 1), (1, 6), (4, 6)], 2, -2), ([(0,), (2,)], 1, -1)],
)
def test_shapes_that_do_not_broadcast(shapes, position, dimension):
    with pytest.raises(ValueError, match=r"\d") as caught:
        geometry.broadcast_shapes(shapes)
    assert caught.value.args == (position, shapes[position], dimension)


def test_reach_counts_strides_not_elements():
    assert geometry.reach((2, 8), (2**31, 1)) == 2**31 + 7
    assert geometry.reach((0, 8), (2**31, 1)) == 0
    assert geometry.reach((4, 4), (0, 0)) == 0
    assert geometry.reach((), ()) == 0
