"""Cases of public reports, groups H and I: what PyTorch is promised of an op, and what one kind of call leaves for the next."""

import random
import textwrap

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import rafters
from rafters import Output, View, lang

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


# The layouts of cases 13 and 17, and the ends (no element, no dimension): shape and strides.
LAYOUTS = {
    "size 1, any stride": ((3, 1, 4), (4, 77, 1)),
    "one row, any stride": ((1, 4), (99, 1)),
    "one column": ((5, 1), (2, 1)),
    "channels last": ((2, 3, 4, 5), (60, 1, 15, 3)),
    "transposed": ((3, 4), (1, 3)),
    "permuted": ((4, 2, 3), (1, 12, 4)),
    "stepped": ((4, 2), (12, 3)),
    "not dense": ((3, 4), (2, 20)),
    "expanded": ((3, 4), (0, 1)),
    "expanded columns": ((3, 4), (1, 0)),
    "padded rows": ((3, 5), (8, 1)),
    "0-d": ((), ()),
    "empty": ((0,), (1,)),
    "empty rows": ((3, 0, 5), (5, 5, 1)),
    "one element": ((1, 1, 1), (1, 1, 1)),
}


def laid_out(layout, device):
    shape, strides = LAYOUTS[layout]
    extent = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1 if 0 not in shape else 0
    return torch.arange(float(extent), device=device).as_strided(shape, strides)


@rafters.rowwise(name="t_registered::centred", outputs=(Output("x"), Output(torch.float32, per_row=True)))
def centred(x):
    return x - lang.row_mean(x), lang.row_mean(x)


@rafters.elementwise(name="t_registered::halves", views={"a": View("x", part="lo"), "b": View("x", part="hi")})
def halves(a, b):
    return a * b


@rafters.elementwise(name="t_registered::two", out_dtype=(None, "bool"))
def two(x, y):
    return x + y, x > y


def facts(made):
    made = made if isinstance(made, tuple) else (made,)
    return [
        (t.shape, t.dtype, t.device.type, [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1 and t.numel()])
        for t in made
    ]


def promised(op, arguments):
    mode = FakeTensorMode()
    with mode:
        return facts(op(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_77_the_fake_function_promises_the_real_strides(layout, device):
    x = laid_out(layout, device)
    others = [x, x.clone(memory_format=torch.contiguous_format), torch.tensor(2, device=device), 1.5]
    if x.dim() > 1:
        others += [x[0], x[..., :1], x.mT.contiguous().mT]
    for other in others:
        for op in (rafters.add, two):
            assert promised(op, (x, other)) == facts(op(x, other))
        if isinstance(other, torch.Tensor):
            opcheck(rafters.add, x, other)
    calls = [(rafters.silu, (x,)), (rafters.sigmoid, (x.int(),)), (rafters.where, (x > 1, x, 0.0))]
    calls += [(centred, (x,))] if x.dim() and x.numel() else []
    calls += [(halves, (x,))] if x.dim() and x.shape[-1] % 2 == 0 else []
    for op, arguments in calls:
        assert promised(op, arguments) == facts(op(*arguments)), op.name
        opcheck(op, *arguments)


def opcheck(op, *arguments):
    """PyTorch's own checker of registered operators."""
    registered = op._registration
    if all(isinstance(a, torch.Tensor) for a in arguments):
        torch.library.opcheck(registered.overload, arguments, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["transposed", "channels last", "not dense", "size 1, any stride", "padded rows"])
def test_case_77_gradients_too(layout, device):
    """The strides of a gradient are those that the fake function promised."""
    x = laid_out(layout, device)
    real = [x.detach().requires_grad_() for _ in range(2)]
    got = torch.autograd.grad(rafters.silu_mul(*real).sum(), real)
    mode = FakeTensorMode()
    with mode:
        fake = [mode.from_tensor(t).requires_grad_() for t in real]
        wanted = torch.autograd.grad(rafters.silu_mul(*fake).sum(), fake)
    assert facts(tuple(wanted)) == facts(tuple(got))


IN_PLACE = """
import sys, torch, rafters
sys.path.insert(0, sys.argv[1])
from halve import halve_

x = torch.ones(5000, device=sys.argv[2])
halve_(x)
assert x.unique().tolist() == [0.5], x
halve_(x)
assert x.unique().tolist() == [0.25], x
rows = torch.ones(64, 130, device=sys.argv[2])[:, :128]
halve_(rows)
assert rows.unique().tolist() == [0.5]
"""


@pytest.mark.parametrize("device", DEVICES)
def test_case_89_the_first_call_runs_an_in_place_op_once(run_python, tmp_path, device):
    """In a fresh process, where it is compiled (a search among variants would have run it many times)."""
    body = """\
    import rafters


    @rafters.elementwise(outputs=(rafters.Output(into="x"),))
    def halve_(x):
        return x * 0.5
    """
    (tmp_path / "halve.py").write_text(textwrap.dedent(body))
    run_python(IN_PLACE, str(tmp_path), device)


def drawn(rng, dtype, device):
    """A tensor of random shape and layout."""
    rank = rng.randint(0, 4)
    shape = [rng.choice((1, 2, 3, 7, 16, 33)) for _ in range(rank)]
    made = torch.randint(-9, 9, [n + 2 for n in shape], generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    made = (made.abs() if dtype is torch.uint8 else made).to(device, dtype)
    order = rng.sample(range(rank), rank)
    made = made.permute(order)[tuple(slice(rng.randint(0, 2), None) for _ in order)]
    return made[tuple(slice(None, None, rng.choice((1, 1, 2))) for _ in order)]


def partner(rng, x, dtype, device):
    """Something that broadcasts with it."""
    choice = rng.randint(0, 5)
    if choice == 0:
        return rng.choice((2, 1, 3))
    if choice == 1:
        return torch.tensor(3, device=device).to(dtype)
    y = torch.ones_like(x, dtype=dtype) * 2
    if x.dim() and choice == 2:
        return y[(0,) * (x.dim() - 1)]
    if x.dim() and choice == 3:
        return y[..., :1]
    return y.mT if choice == 4 and x.dim() > 1 and x.shape[-1] == x.shape[-2] else y


@pytest.mark.parametrize("device", DEVICES)
def test_case_89_two_hundred_calls_in_random_order(device):
    """No variant serves a call that is not its own: shapes, strides, dtypes and scalars shuffled, each against PyTorch."""
    rng = random.Random(89)
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8)
    few = dtypes if device == "cpu" else (torch.float32, torch.bfloat16, torch.int64)
    for number in range(200):
        x = drawn(rng, rng.choice(few), device)
        y = partner(rng, x, rng.choice(few), device)
        ours, theirs = rng.choice(((rafters.add, torch.add), (rafters.mul, torch.mul), (rafters.sub, torch.sub)))
        got, wanted = ours(x, y), theirs(x, y)
        assert got.dtype is wanted.dtype, number
        assert torch.equal(got, wanted), (number, ours, x.dtype, x.shape, x.stride(), y)
