"""Cases of public reports, group A: shapes, strides, alignment. Named after their number; right values from the reports."""

import os

import pytest
import torch

import rafters
from rafters import View, lang
from rafters.testing import Guarded, ordinary, same_bits
from rafters.testing.contract import same_strides

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
BIG = [pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.big])]
WIDTHS = [1, 2, 31, 33, 127, 257, 320, 352, 640, 768, 1408, 2112, 2816, 3584, 5632, 11008, 18944]


@rafters.elementwise(name="t_cases::silu_and_mul", views={"gate": View("x", "lo"), "up": View("x", "hi")})
def silu_and_mul(gate, up):
    return gate * lang.sigmoid(gate) * up


@pytest.fixture(autouse=True)
def memory_is_given_back(request):
    yield
    if request.node.get_closest_marker("big"):
        torch.cuda.empty_cache()


@pytest.mark.parametrize("device", BIG)
def test_case_1_more_than_2_31_elements(device):
    x = torch.zeros(2**31 + 16, dtype=torch.bfloat16, device=device)
    x[-16:] = torch.arange(1, 17)
    y = rafters.add(x, 1)
    assert y[-16:].tolist() == list(range(2, 18))
    assert y[0].item() == y[2**31 - 1].item() == 1


@pytest.mark.parametrize("device", BIG)
def test_case_3_few_elements_huge_strides(device):
    base = torch.zeros(2**31 + 64, dtype=torch.uint8, device=device)

    def view():
        made = base.as_strided((2, 8), (2**31, 1))
        made[1], made[0] = torch.arange(1, 9), torch.arange(9, 17)
        return made

    wanted = [list(range(10, 18)), list(range(2, 10))]
    assert rafters.add(view(), 1).tolist() == wanted
    assert rafters.add(torch.ones(2, 8, dtype=torch.uint8, device=device), view()).tolist() == wanted
    target = base.as_strided((2, 8), (2**31, 1), 32)
    assert rafters.add(view(), 1, out=target).tolist() == wanted
    x = view()
    rafters.add(x, 1, out=x)
    assert x.tolist() == wanted
    assert int(base.sum(dtype=torch.int64)) == 2 * (8 * 10 + 28 + 8 * 2 + 28)  # nothing else was written


@pytest.mark.parametrize("device", BIG)
@pytest.mark.parametrize("dimension", ["columns", "rows", "stepped"])
def test_case_3_one_dimension_beyond_32_bits(device, dimension):
    n = 2**31 + 8
    x = torch.zeros({"columns": (2, n), "rows": (n, 2), "stepped": (2 * n,)}[dimension], dtype=torch.uint8, device=device)
    x.view(-1)[-4:] = 3
    if dimension == "stepped":
        y = rafters.add(x[::2], 1)
    elif dimension == "columns":
        y = rafters.add(x, torch.ones(n, dtype=torch.uint8, device=device))
    else:
        y = rafters.add(x[:, :1], torch.ones(1, 1, dtype=torch.uint8, device=device))
    assert y.view(-1)[-1].item() == 4
    assert y.view(-1)[0].item() == y.view(-1)[n // 2].item() == 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tokens", [65535, 65536, 65537])
def test_case_5_grid_axes_end_at_65535(tokens, device):
    x = ordinary((tokens, 16), torch.float32).to(device)
    y = ordinary((16,), torch.float32, 1).to(device)
    assert torch.equal(rafters.add(x, y), x + y)
    wide = ordinary((tokens, 24), torch.float32).to(device)
    assert torch.equal(rafters.mul(wide[:, :16], x), wide[:, :16] * x)
    torch.testing.assert_close(silu_and_mul(x), torch.nn.functional.silu(x[:, :8]) * x[:, 8:])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", range(4))
def test_case_5_any_dimension_beyond_65535(place, device):
    x = ordinary((70000, 1, 1, 8), torch.float32).to(device).movedim(0, place)
    y = ordinary(x.shape, torch.float32, 1).to(device)
    assert torch.equal(rafters.add(x, y), x + y)
    assert torch.equal(rafters.add(x, 1), x + 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("d", [1, 3, 4, 5, 1234, 3420, 4097])
def test_case_7_only_half_the_row_is_aligned(d, dtype, device):
    for rows in (1, 7):
        x = torch.full((rows, 2 * d), 3.0, dtype=dtype, device=device)
        for gated in (silu_and_mul(x), rafters.silu_mul(x[:, :d], x[:, d:])):
            assert gated.shape == (rows, d)
            assert gated.dtype is dtype
            assert (gated == torch.tensor(8.5732, dtype=dtype)).all()


@pytest.mark.parametrize("device", DEVICES)
def test_case_7_odd_last_dimension(device):
    with pytest.raises(
        rafters.ArgumentError, match=r"silu_and_mul: argument 'x': got shape \(2, 7\), wanted an even last dimension"
    ):
        silu_and_mul(torch.ones(2, 7, device=device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", ["packed", "two tensors"])
def test_case_8_every_column_is_written(op, device):
    for d in WIDTHS:
        x = ordinary((5, 2 * d), torch.float32, d).to(device)
        guard = Guarded((5, d), (d, 1), torch.float32, device)
        if op == "packed":
            silu_and_mul(x, out=guard.tensor)
        else:
            rafters.silu_mul(x[:, :d], x[:, d:], out=guard.tensor)
        assert guard.untouched() == 0, d
        assert guard.overrun() == [], d
        torch.testing.assert_close(guard.tensor, torch.nn.functional.silu(x[:, :d]) * x[:, d:])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.uint8])
def test_case_9_unaligned_after_aligned(dtype, device):
    base = (torch.arange(1035) % 100).to(dtype).to(device)
    views = [base[k : k + 1024] for k in (0, 1, 2, 3, 7)]
    for order in (views, views[::-1], views):
        for view in order:
            assert same_bits(rafters.add(view, 1), rafters.add(view.clone(), 1))
            assert same_bits(rafters.add(view, view.clone()), view + view)
    rows = (torch.arange(64 * 1187) % 100).to(dtype).to(device).view(64, 1187)[:, 1:1186]
    assert same_bits(rafters.add(rows, 1), rafters.add(rows.clone(), 1))
    if dtype.is_floating_point:
        torch.testing.assert_close(silu_and_mul(rows[:, :-1]), silu_and_mul(rows[:, :-1].clone()), rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_case_13_strides_of_size_1_dimensions_mean_nothing(device):
    base = torch.arange(200.0, device=device)
    x = base.as_strided((3, 1, 4), (4, 77, 1))
    y = rafters.add(x, 1)
    assert y.flatten().tolist() == [float(i + 1) for i in range(12)]
    assert same_strides(y.shape, y.stride(), (4, 12, 1))
    assert rafters.add(base.as_strided((1, 4), (99, 1)), 1).tolist() == [[1.0, 2.0, 3.0, 4.0]]
    column = torch.arange(10.0, device=device).view(5, 2).split(1, 1)[1]
    assert column.stride() == (2, 1)
    made = rafters.add(column, 1)
    assert made.flatten().tolist() == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert made.stride(0) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_case_15_a_target_that_overlaps_itself(device):
    storage = torch.zeros(1, device=device)
    target = storage.expand(4)
    with pytest.raises(
        rafters.ArgumentError, match=r"argument 'out': got strides \(0,\), wanted a tensor that does not overlap itself"
    ):
        rafters.add(target, 1, out=target)
    assert storage.item() == 0
    out = torch.zeros(3, device=device)
    with pytest.raises(rafters.ArgumentError, match=r"argument 'out': got shape \(3,\), wanted shape \(2, 3\)"):
        rafters.add(torch.ones(2, 3, device=device), 1, out=out)
    assert out.tolist() == [0, 0, 0]


@pytest.mark.parametrize("device", DEVICES)
def test_case_15_a_target_that_overlaps_an_input(device):
    base = torch.arange(9.0, device=device)
    for x, out in ((base[:8], base[1:]), (base[1:], base[:8]), (base[:8].view(2, 4), base[:8].view(4, 2).t())):
        with pytest.raises(
            rafters.ArgumentError, match="argument 'out': got memory that overlaps 'x', wanted memory of its own, or exactly"
        ):
            rafters.add(x, 1, out=out)
    assert base.tolist() == list(range(9))
    even, odd = base[0:8:2], base[1:8:2]
    assert rafters.add(even, 1, out=odd).tolist() == [1, 3, 5, 7]  # interleaved, but no element in common
    assert base.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def channels_last():
    return torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (lambda: (channels_last(), 1), (60, 1, 15, 3)),
        (lambda: (torch.zeros(2, 3, 4, 5), channels_last()), (60, 20, 5, 1)),
        (lambda: (torch.zeros(4, 3).t(), 1), (1, 3)),
        (lambda: (torch.zeros(2, 3, 4).permute(2, 0, 1), 1), (1, 12, 4)),
        (lambda: (torch.zeros(8, 6)[::2, ::3], 1), (2, 1)),
        (lambda: (torch.zeros(2, 1, 5).transpose(0, 2), torch.zeros(5, 1, 2)), (1, 5, 5)),
        (lambda: (torch.zeros(100).as_strided((3, 4), (2, 20)), 1), (1, 3)),
    ],
)
def test_case_17_the_layout_of_the_result_follows_the_inputs(make, wanted, device):
    moved = [
        torch.empty_strided(a.shape, a.stride(), device=device).zero_() if isinstance(a, torch.Tensor) else a for a in make()
    ]
    for _ in range(3):
        made = rafters.add(*moved)
        assert same_strides(made.shape, made.stride(), wanted), made.stride()
        assert same_strides(made.shape, torch.add(*moved).stride(), wanted)


def test_case_98_nothing_is_printed_and_no_device_is_asked(run_python):
    program = """
import torch, rafters, rafters.ops
from torch._subclasses.fake_tensor import FakeTensorMode
names = list(rafters.ops.table())
with FakeTensorMode():
    assert rafters.add(torch.ones(3), torch.ones(3)).shape == (3,)
assert rafters.add(torch.ones(3), 1).tolist() == [2.0, 2.0, 2.0]
help(rafters.add)
assert not torch.cuda.is_initialized()
"""
    quiet = run_python(program, CUDA_VISIBLE_DEVICES="", PAGER="cat", PATH=os.environ.get("PATH", ""))
    assert "x + y, as torch.add" in quiet  # the help text
    assert run_python("import torch, rafters, rafters.ops; rafters.add(torch.ones(3), 1)", CUDA_VISIBLE_DEVICES="") == ""


@pytest.mark.gpu
def test_case_98_import_creates_no_context(run_python):
    program = """
import os, torch, rafters, rafters.ops
assert not torch.cuda.is_initialized()
pid = os.fork()
if pid == 0:
    assert rafters.add(torch.ones(3, device="cuda"), 1).tolist() == [2.0, 2.0, 2.0]
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    assert run_python(program) == ""
