"""Copies of arguments keep what a kernel can see of them; rotations are large enough to leave the cache."""

import dataclasses

import torch

from rafters import device as devices
from rafters.roofline import rotation as rotating

CPU = torch.device("cpu")
FACTS = dataclasses.replace(devices.facts("cpu"), l2_bytes=1 << 20, memory_bytes=1 << 32)


def test_clones_keep_strides_offsets_aliasing_and_values():
    base = torch.arange(24.0).view(4, 6)
    arguments = (base.t(), base[1:, 2:], base[:, :1].expand(4, 6), [base, 3], {"k": base})
    copies = rotating.clone(arguments)
    for old, new in zip(rotating.tensors_in(arguments), rotating.tensors_in(copies), strict=True):
        assert torch.equal(old, new)
        assert (old.stride(), old.storage_offset()) == (new.stride(), new.storage_offset())
        assert old.data_ptr() != new.data_ptr()
    assert copies[3][1] == 3
    copies[4]["k"][0, 0] = 99.0
    assert copies[0][0, 0] == 99.0
    assert base[0, 0] == 0.0


def test_rotation_moves_five_times_the_cache():
    rotation = rotating.build(rotating.clones((torch.ones(1 << 16),)), 1 << 18, FACTS, CPU)
    assert len(rotation.sets) == 20
    assert rotation.flush is None
    assert len({s[0].data_ptr() for s in rotation.sets}) == 20


def test_tiny_calls_get_a_flush_that_reads():
    rotation = rotating.build(rotating.clones((torch.ones(4),)), 16, FACTS, CPU)
    assert len(rotation.sets) == rotating.MAX_SETS
    rotation.flush()


def test_too_little_memory_is_noted_and_flushed():
    poor = dataclasses.replace(FACTS, memory_bytes=5 << 20)
    rotation = rotating.build(rotating.clones((torch.ones(1 << 17),)), 1 << 19, poor, CPU)
    assert len(rotation.sets) == 2
    assert rotation.flush is not None
    assert "memory holds 2 of 10 argument sets" in rotation.notes[0]


def test_hot_is_one_set():
    assert len(rotating.build(rotating.clones((torch.ones(4),)), 16, FACTS, CPU, hot=True).sets) == 1


def test_fresh_moves_values_but_not_indices():
    x, index = torch.arange(8.0), torch.arange(8)
    first = rotating.fresh(rotating.clones((x, index)), 1)
    assert sorted(first[0].tolist()) == x.tolist()
    assert not torch.equal(first[0], x)
    assert torch.equal(first[1], index)


def test_bytes_count_shared_storage_once():
    base = torch.ones(100)
    assert rotating.storage_bytes((base, base[:10], [base.view(10, 10)], torch.ones(1))) == 404
