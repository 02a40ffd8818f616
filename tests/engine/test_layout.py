"""Which layout, arguments and grid named situations get, and the text of one kernel of each layout. No triton needed."""

from pathlib import Path

import pytest
import sample_ops as ops
import torch

from rafters import __version__
from rafters.engine.layouts.layout import MAX_DIMENSIONS, alignment
from rafters.errors import ArgumentError
from rafters.testing.kernels import prepare


def t(*shape, dtype=torch.bfloat16, strides=None):
    if strides is not None:
        return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    return torch.empty(shape, dtype=dtype, device="meta")


def laid(op, *arguments):
    return prepare(op, arguments).layout


@pytest.mark.parametrize(
    ("what", "x", "y", "layout", "walk"),
    [
        ("dense", t(1000, 64), t(1000, 64), "flat", "linear"),
        ("both transposed", t(64, 1000).t(), t(64, 1000).t(), "flat", "linear"),
        ("channels last", t(2, 4, 5, 3).permute(0, 3, 1, 2), t(2, 4, 5, 3).permute(0, 3, 1, 2), "flat", "linear"),
        ("a point", t(1000, 64), t(1, 1), "flat", "linear"),
        ("vector of the last dimension", t(1000, 64), t(64), "rows", "linear"),
        ("odd vector", t(1000, 3421), t(3421), "rows", "linear"),
        ("strided vector", t(1000, 64), t(128)[::2], "rows", "linear"),
        ("vector of a 4-d tensor", t(3, 4, 5, 64), t(64), "rows", "linear"),
        ("one value a row", t(1000, 64), t(1000, 1), "rows", "linear"),
        ("one value a row, strided", t(1000, 64), t(1000, 3)[:, :1], "rows", "linear"),
        ("pitched rows", t(1000, 128)[:, :64], t(1000, 64), "rows", "tiled"),
        ("stepped columns", t(1000, 128)[:, ::2], t(1000, 64), "strided", "tiled"),
        ("transposed beside dense", t(64, 1000).t(), t(1000, 64), "strided", "tiled"),
        ("broadcast in the middle", t(3, 4, 64), t(3, 1, 64), "strided", "tiled"),
    ],
)
def test_layout_of(what, x, y, layout, walk):
    form = laid(ops.muladd, x, y, 1.0).form
    assert (form.layout, form.walk) == (layout, walk)


def test_halves_are_rows():
    assert laid(ops.gated, t(100, 128)).form.layout == "rows"
    assert laid(ops.interleaved, t(100, 128)).form.layout == "strided"


def test_row_wise_is_whole_rows():
    layout = laid(ops.norm, t(100, 4096), t(4096), 1e-6)
    assert (layout.form.layout, layout.form.walk, layout.constants["COLS"]) == ("rows", "whole_rows", 4096)


def test_a_program_takes_16_bytes_a_thread_of_the_narrowest_operand():
    assert laid(ops.muladd, t(4096, dtype=torch.float32), t(4096, dtype=torch.float32), 1.0).constants["BLOCK"] == 4 * 128
    assert laid(ops.muladd, t(4096), t(4096), 1.0).constants["BLOCK"] == 8 * 128
    assert laid(ops.muladd, t(4096), t(4096, dtype=torch.float32), 1.0).constants["BLOCK"] == 8 * 128
    assert laid(ops.muladd, t(4096, dtype=torch.int8), t(4096, dtype=torch.int8), 1.0).constants["BLOCK"] == 16 * 128


@pytest.mark.parametrize(
    ("x", "wide"),
    [
        (t(2**31 - 2**16, dtype=torch.uint8), False),
        (t(2**31, dtype=torch.uint8), True),
        (t(2, 8, strides=(2**31, 1), dtype=torch.uint8), True),
        (t(2, 8, strides=(2**31 - 2**20, 1), dtype=torch.uint8), False),
        (t(2**16, 2**16, strides=(0, 1), dtype=torch.uint8), True),  # the result reaches 2^32
    ],
)
def test_index_width_follows_the_farthest_offset(x, wide):
    assert laid(ops.muladd, x, t(1, 1, dtype=torch.uint8), 2.0).wide is wide


def test_a_wide_operand_makes_wide_arguments():
    layout = laid(ops.muladd, t(4, 8, strides=(2**31, 1)), t(4, 8), 1.0)
    assert layout.arguments["x_s0"].wide
    assert layout.arguments["x_s0"].value == 2**31


@pytest.mark.parametrize(
    ("address", "itemsize", "class_"),
    [(0, 2, 16), (16, 4, 16), (8, 2, 8), (24, 2, 8), (4, 2, 4), (2, 2, 2), (1, 1, 1), (8, 8, 8), (4, 1, 4)],
)
def test_alignment_classes(address, itemsize, class_):
    assert alignment(address, itemsize) == class_


@pytest.mark.parametrize(("pitch", "class_"), [(3424, 16), (3420, 8), (3422, 4), (3421, 2)])
def test_pitch_decides_the_alignment_of_rows(pitch, class_):
    """A row of 3420 bfloat16 is 8-byte aligned: not 16, and not scalar."""
    layout = laid(ops.muladd, t(100, 2000, strides=(pitch, 1)), t(100, 2000), 1.0)
    assert layout.align["x"] == class_


def test_grid_covers_the_domain():
    assert laid(ops.muladd, t(1025), t(1025), 1.0).grid == 2
    assert laid(ops.muladd, t(1024), t(1024), 1.0).grid == 1
    layout = laid(ops.muladd, t(70000, 1, 1, 8).permute(1, 2, 3, 0), t(1, 1, 8, 70000), 1.0)
    blocks = -(-8 // layout.constants["ROWS"]) * -(-70000 // layout.constants["COLS"])
    assert layout.grid in (blocks, -(-70000 // layout.constants["ROWS"]) * -(-8 // layout.constants["COLS"]))


def test_too_many_dimensions_are_refused():
    shape = (2,) * (MAX_DIMENSIONS + 1)
    x = t(*shape, strides=tuple(3 * 4**d for d in range(len(shape))))
    with pytest.raises(
        ArgumentError, match=f"muladd: the operands need {MAX_DIMENSIONS + 1} separate dimensions after merging, at most"
    ):
        laid(ops.muladd, x, t(*shape), 1.0)


def test_row_count_does_not_change_the_kernel():
    """A new number of tokens meets a known variant."""
    for arguments in (
        lambda n: (t(n, 4096), t(4096), 1.0),
        lambda n: (t(n, 4096), t(n, 4096), 1.0),
        lambda n: (t(n, 8192)[:, :4096], t(n, 4096), 1.0),
    ):
        keys = {prepare(ops.muladd, arguments(n)).recipe.key for n in range(200, 1200, 17)}
        assert len(keys) == 1


GOLDEN = {
    "flat": (ops.muladd, (t(64), t(64), 1.0)),
    "rows": (ops.three, (t(100, 64), t(64), t(100, 1))),
    "strided": (ops.muladd, (t(3, 100, 128)[:, :, :64], t(3, 64, 100).transpose(1, 2), 1.0)),
    "whole_rows": (ops.norm, (t(100, 64), t(64), 1e-6)),
    "gathered": (ops.rope_, (t(5, 4, 16), t(6, 16), t(5, dtype=torch.int64))),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_text_of_a_kernel(name):
    """The text is meant to be read: a change of it is to be seen. golden/ holds one of each kind."""
    op, arguments = GOLDEN[name]
    text = op.source(*arguments).replace(op.spec.body.where, "<where>").replace(f"rafters {__version__}", "rafters <version>")
    assert text == (Path(__file__).parent / "golden" / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("what", "x", "y"),
    [
        ("strided row", t(2**31 + 8, strides=(2,), dtype=torch.uint8), t(2**31 + 8, dtype=torch.uint8)),
        ("columns of a dense row layout", t(2, 2**31 + 8, dtype=torch.uint8), t(2**31 + 8, dtype=torch.uint8)),
        ("rows", t(2**31 + 8, 2, strides=(3, 1), dtype=torch.uint8), t(2, dtype=torch.uint8)),
    ],
)
def test_a_single_dimension_beyond_32_bits(what, x, y):
    """A size that an int32 cannot hold is passed as int64."""
    layout = laid(ops.muladd, x, y, 2.0)
    for name, argument in layout.arguments.items():
        assert argument.wide or -(2**31) <= argument.value < 2**31, f"{name} = {argument.value} as int32"


def test_a_written_row_is_not_repeated():
    """One row of x for two slots: refused by name, not left to an IndexError."""
    with pytest.raises(
        ArgumentError, match=r"scatter_: argument 'slots': got shape \(2,\), wanted the first dimensions of the result"
    ):
        ops.scatter_(torch.ones(1, 1), torch.ones(3, 1), torch.tensor([0, 1]))
