"""What autograd, torch.func and forward mode ask of an op beside the numbers: who gets a gradient, when, and what has to raise."""

import contextlib
import itertools

import pytest
import torch
from torch.autograd import forward_ad, functional
from torch.nn.functional import silu
from torch.utils.checkpoint import checkpoint

import rafters
from rafters import Output, View, lang, tl

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def drawn(shape, seed=0, dtype=torch.float64, device="cpu"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device, dtype)


def leaf(shape, seed=0, dtype=torch.float64, device="cpu"):
    return drawn(shape, seed, dtype, device).requires_grad_()


@rafters.elementwise(name="t_protocol::two")
def two(x, y):
    return x * y, lang.tanh(x) + y


def theirs_two(x, y):
    return x * y, torch.tanh(x) + y


@rafters.elementwise(name="t_protocol::signs", out_dtype=(None, "bool", torch.int32))
def signs(x):
    return x * x, x > 0, tl.where(x > 0, 1, -1)


@rafters.elementwise(name="t_protocol::cut")
def cut(x):
    """The integer in between has no derivative."""
    return x.to(tl.int32).to(tl.float32)


@rafters.elementwise(name="t_protocol::bits")
def bits(x):
    return (x.to(tl.int32, bitcast=True) & 0x7FFFFFFF).to(tl.float32, bitcast=True)


@rafters.elementwise(name="t_protocol::partly")
def partly(x, y):
    return x.to(tl.int32).to(tl.float32) + y


@rafters.elementwise(name="t_protocol::into", outputs=(Output(into="y"),))
def into(x, y):
    return x + y


# -- who gets a gradient -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wanted", [s for n in (1, 2, 3) for s in itertools.combinations(range(3), n)], ids=str)
def test_subsets_of_the_inputs(wanted, device):
    values = [drawn(shape, i, device=device) for i, shape in enumerate(((2, 3), (3,), (2, 1)))]
    full = [v.clone().requires_grad_() for v in values]
    every = torch.autograd.grad(rafters.mul_add(*full).sin().sum(), full)
    some = [v.clone().requires_grad_(i in wanted) for i, v in enumerate(values)]
    rafters.mul_add(*some).sin().sum().backward()
    for i, (value, expected) in enumerate(zip(some, every, strict=True)):
        assert (value.grad is None) == (i not in wanted)
        if i in wanted:
            torch.testing.assert_close(value.grad, expected, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=str)
def test_outputs_without_an_upstream_gradient(used, device):
    x, y = leaf((3, 4), 1, device=device), leaf((4,), 2, device=device)
    got = torch.autograd.grad([two(x, y)[i].sin().sum() for i in used], [x, y])
    wanted = torch.autograd.grad([theirs_two(x, y)[i].sin().sum() for i in used], [x, y])
    torch.testing.assert_close(got, wanted)


def test_a_gradient_of_nothing():
    """Zeros with a gradient graph and an undefined cotangent are not the same: an output that is not used asks for no work."""
    x, y = leaf((3,), 1), leaf((3,), 2)
    unused, _ = two(x, y)
    assert torch.autograd.grad(y.sum(), [x, y], allow_unused=True)[0] is None
    assert unused.requires_grad


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_that_are_not_differentiable(device):
    x = leaf((5,), device=device)
    square, positive, sign = signs(x)
    assert (square.requires_grad, positive.requires_grad, sign.requires_grad) == (True, False, False)
    (got,) = torch.autograd.grad((square * sign).sum(), x)
    torch.testing.assert_close(got, 2 * x.detach().abs())


@pytest.mark.parametrize("device", DEVICES)
def test_integer_inputs(device):
    x, n = leaf((4,), device=device), torch.arange(4, device=device)
    (got,) = torch.autograd.grad(rafters.mul(n, x).sum(), x)
    assert got.tolist() == [0, 1, 2, 3]


def test_numbers_and_parameters():
    p = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    for number in (2, 2.5, True, torch.tensor(2.5)):
        p.grad = None
        rafters.mul(p, number).sum().backward()
        assert p.grad.tolist() == [float(number)] * 3
    rafters.mul(p, 1.0).sum().backward()
    assert p.grad.tolist() == [3.5] * 3, "accumulated"


@pytest.mark.parametrize("device", DEVICES)
def test_kinds_of_call_do_not_meet(device):
    """A number first, then a tensor, an integer, and each the other way round: no derived op serves a call that is not its own."""
    x, y = leaf((3,), 1, device=device), leaf((3,), 2, device=device)
    n = torch.arange(3, device=device)

    def gradients(f, *values):
        inputs = [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]
        return torch.autograd.grad(f(*values).sum(), inputs)

    for _ in range(2):
        for a, b in (
            (x, 2),
            (x, y),
            (2.5, x),
            (x, n),
            (n, y),
            (x.float(), y),
            (x, y.detach()),
            (x.detach(), y),
            (x, x),
            (x, y[:1]),
        ):
            for mine, theirs in (
                (rafters.mul, torch.mul),
                (rafters.add, torch.add),
                (rafters.sub, torch.sub),
                (rafters.div, torch.div),
            ):
                torch.testing.assert_close(gradients(mine, a, b), gradients(theirs, a, b))


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_tensor_twice(device):
    x = leaf((3,), device=device)
    (got,) = torch.autograd.grad(rafters.mul_add(x, x, x).sum(), x)
    torch.testing.assert_close(got, 2 * x.detach() + 1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shapes", [((0,), (0,)), ((0, 3), (3,)), ((2, 0, 3), (3,)), ((3, 0), (3, 1)), ((0,), ())], ids=str)
def test_empty(shapes, device):
    inputs = [leaf(shape, i, device=device) for i, shape in enumerate(shapes)]
    got = torch.autograd.grad(rafters.silu_mul(*inputs).sum(), inputs)
    assert [tuple(g.shape) for g in got] == list(shapes)
    assert all((g == 0).all() for g in got)


@pytest.mark.parametrize("device", DEVICES)
def test_dtypes_of_gradients(device):
    """Each its input's; half types computed in float32 and rounded once."""
    for dtypes in itertools.product((torch.float16, torch.bfloat16, torch.float32, torch.float64), repeat=2):
        gate, up = (leaf((64,), i, d, device) for i, d in enumerate(dtypes))
        out = rafters.silu_mul(gate, up)
        got = torch.autograd.grad(out, (gate, up), torch.ones_like(out))
        assert tuple(g.dtype for g in got) == dtypes
        wide = [v.detach().double().requires_grad_() for v in (gate, up)]
        truth = torch.autograd.grad((silu(wide[0]) * wide[1]).sum(), wide)
        for mine, exact in zip(got, truth, strict=True):
            assert ((mine.double() - exact).abs() <= 8 * torch.finfo(mine.dtype).eps * exact.abs().clamp(1)).all(), dtypes


@pytest.mark.parametrize("device", DEVICES)
def test_half_types_round_once(device):
    gate, up, upstream = (drawn((4096,), i, torch.bfloat16, device).requires_grad_(i < 2) for i in range(3))
    got = torch.autograd.grad(rafters.silu_mul(gate, up), (gate, up), upstream)
    wide = [v.detach().double().requires_grad_() for v in (gate, up)]
    truth = torch.autograd.grad(silu(wide[0]) * wide[1], wide, upstream.double())
    for mine, exact in zip(got, truth, strict=True):
        unit = torch.finfo(torch.bfloat16).eps * torch.exp2(torch.floor(torch.log2(exact.abs())))
        assert ((mine.double() - exact).abs() <= 0.51 * unit + 1e-7).all()


# -- when --------------------------------------------------------------------------------------------------------------------------


def test_only_inputs_are_saved():
    """What lives until the backward is what the caller has already."""
    gate, up, saved = leaf((64,), 1), leaf((64,), 2), []

    def keep(tensor):
        saved.append(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = rafters.silu_mul(gate, up)
    assert saved
    assert set(saved) <= {gate.data_ptr(), up.data_ptr()}
    out.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_checkpoint_and_hooks(device):
    gate, up = leaf((8,), 1, device=device), leaf((8,), 2, device=device)
    wanted = torch.autograd.grad(rafters.silu_mul(gate, up).sum(), (gate, up))
    again = torch.autograd.grad(checkpoint(rafters.silu_mul, gate, up, use_reentrant=False).sum(), (gate, up))
    assert all(map(torch.equal, again, wanted))
    seen = []
    hooked = rafters.silu_mul(gate, up)
    hooked.register_hook(lambda g: seen.append(g.shape) or 2 * g)
    assert torch.equal(torch.autograd.grad(hooked.sum(), gate)[0], 2 * wanted[0])
    assert seen == [(8,)]
    with torch.autograd.detect_anomaly(check_nan=True):
        assert torch.equal(torch.autograd.grad(rafters.silu_mul(gate, up).sum(), up)[0], wanted[1])


def test_the_first_call_of_all_is_checkpointed():
    """Its derivatives are traced under the hooks of checkpointing, which torch.func refuses to work under."""

    @rafters.elementwise(name="t_protocol::first_checkpointed")
    def first_checkpointed(x, y):
        return x * y + lang.exp(x)

    x, y = leaf((8,), 1), leaf((8,), 2)
    got = torch.autograd.grad(checkpoint(first_checkpointed, x, y, use_reentrant=False).sum(), (x, y))
    want = torch.autograd.grad((x * y + torch.exp(x)).sum(), (x, y))
    assert all(map(torch.allclose, got, want))
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t.shape), t)[1], lambda t: t):
        first_checkpointed.forget_plans()
        first_checkpointed.spec.memory.clear()
        first_checkpointed(x, y)
        assert packed == [(8,), (8,)]  # the hooks are there again, and saw what is saved
        first_checkpointed.forget_plans()
        first_checkpointed.spec.memory.clear()
        compiled = torch.compile(lambda a, b: first_checkpointed(a, b).sum(), backend="aot_eager", fullgraph=True)
        assert torch.allclose(torch.autograd.grad(compiled(x, y), x)[0], want[0])


def test_graphs_are_made_where_they_are_asked_for():
    x = leaf((3,))
    (plain,) = torch.autograd.grad(rafters.tanh(x).sum(), x)
    assert not plain.requires_grad
    y = rafters.tanh(x)
    for _ in range(3):
        y = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
    z = torch.tanh(x)
    for _ in range(3):
        z = torch.autograd.grad(z.sum(), x, create_graph=True)[0]
    torch.testing.assert_close(y, z)
    once = rafters.tanh(x).sum()
    once.backward()
    with pytest.raises(RuntimeError, match="second time"):
        once.backward()


def test_no_gradient_is_recorded_where_none_is_wanted():
    x = leaf((3,))
    with torch.no_grad():
        assert rafters.silu(x).grad_fn is None
    with torch.inference_mode():
        assert rafters.silu(x).is_inference()
    assert rafters.silu(x.detach()).grad_fn is None
    with torch.no_grad(), torch.enable_grad():
        assert rafters.silu(x).requires_grad


@pytest.mark.parametrize("place", range(3))
def test_a_saved_input_that_was_overwritten(place):
    inputs = [leaf((3,), i) * 1 for i in range(3)]
    out = rafters.lerp(*inputs)
    with torch.no_grad():
        inputs[place].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_autocast(device):
    """Elementwise ops have no rule of their own, like torch.mul: they take what comes."""
    x, w = leaf((4, 8), 1, torch.float32, device), leaf((8, 8), 2, torch.float32, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert rafters.silu(x).dtype is torch.float32
        hidden = x @ w
        out = rafters.silu_mul(hidden, hidden)
        assert (hidden.dtype, out.dtype) == (torch.bfloat16, torch.bfloat16)
        theirs = silu(hidden.float()) * hidden.float()
        mixed = rafters.mul_add(hidden, x, x)
        assert mixed.dtype is torch.float32
    got = torch.autograd.grad(out.float().sum(), (x, w), retain_graph=True)
    wanted = torch.autograd.grad(theirs.sum(), (x, w), retain_graph=True)
    assert all(g.dtype is torch.float32 for g in got)
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
    assert torch.autograd.grad(mixed.sum(), w)[0].dtype is torch.float32


# -- what has to raise ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", [cut, bits], ids=lambda op: op.name)
def test_a_body_without_a_derivative(op, device):
    """The value is there without a gradient; with one wanted there is an error, or no gradient is promised: never zeros."""
    x = torch.tensor([1.75, -2.5], device=device)
    assert op(x).tolist() == op.reference(x).tolist()
    leaf = x.clone().requires_grad_()
    with pytest.raises((rafters.RaftersError, RuntimeError), match=rf"{op.name}|does not require grad"):
        op(leaf).sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_an_argument_without_a_derivative_beside_one_that_has_one(device):
    x, y = leaf((3,), 1, torch.float32, device), leaf((3,), 2, torch.float32, device)
    assert torch.autograd.grad(partly(x.detach(), y).sum(), y)[0].tolist() == [1.0] * 3
    with contextlib.suppress(rafters.RaftersError):
        got = torch.autograd.grad(partly(x, y).sum(), (x, y), allow_unused=True)
        assert got[0] is None, "as in PyTorch: not connected"
        assert got[1].tolist() == [1.0] * 3


def test_an_op_that_overwrites():
    x, y = leaf((3,)), drawn((3,), 1)
    with pytest.raises(rafters.RaftersError, match="into: it overwrites an argument and has no gradient"):
        into(x, y)
    with torch.no_grad():
        into(x, y)
    with forward_ad.dual_level(), pytest.raises(rafters.RaftersError, match="overwrites"):
        into(forward_ad.make_dual(drawn((3,)), torch.ones(3, dtype=torch.float64)), y)


def test_out_takes_no_part():
    x = leaf((3,))
    with pytest.raises(rafters.RaftersError, match=r"out= takes no part in autograd"):
        rafters.add(x, 1, out=torch.empty(3, dtype=torch.float64))


# -- torch.func and forward mode -----------------------------------------------------------------------------------------------------


def mine(x, w):
    return rafters.silu_mul(rafters.mul(x, w), x)


def theirs(x, w):
    return silu(x * w) * x


@pytest.mark.parametrize("device", DEVICES)
def test_func(device):
    from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

    x, w, t = drawn((4, 3), 1, device=device), drawn((3,), 2, device=device), drawn((4, 3), 3, device=device)

    def total(f):
        return lambda x, w: f(x, w).sum()

    transformed = {
        "grad": lambda f: grad(total(f), (0, 1))(x, w),
        "grad of grad": lambda f: grad(lambda x: grad(total(f), 1)(x, w).sin().sum())(x),
        "vjp": lambda f: vjp(f, x, w)[1](t),
        "jvp": lambda f: jvp(f, (x, w), (t, w)),
        "jvp of grad": lambda f: jvp(grad(total(f), (0, 1)), (x, w), (t, w)),
        "grad of jvp": lambda f: grad(lambda x: jvp(f, (x, w), (t, w))[1].sum())(x),
        "jacfwd": lambda f: jacfwd(f, (0, 1))(x, w),
        "jacrev": lambda f: jacrev(f, (0, 1))(x, w),
        "hessian": lambda f: hessian(total(f), (0, 1))(x, w),
        "vmap": lambda f: vmap(f, (0, None))(x, w),
        "vmap over columns": lambda f: vmap(f, (1, 0), 1)(x, w),
        "vmap of vmap": lambda f: vmap(vmap(f, (0, 0)), (0, None))(x, w),
        "gradient of each sample": lambda f: vmap(grad(total(f), (0, 1)), (0, None))(x, w),
        "vmap of jvp": lambda f: vmap(lambda x, t: jvp(lambda x: f(x, w), (x,), (t,)))(x, t),
        "functional.jacobian": lambda f: functional.jacobian(f, (x, w), vectorize=True),
        "functional.hvp": lambda f: functional.hvp(total(f), (x, w), (t, w)),
    }
    for name, transform in transformed.items():
        torch.testing.assert_close(transform(mine), transform(theirs), msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("device", DEVICES)
def test_forward_mode(device):
    x, w = drawn((4, 3), 1, device=device), drawn((3,), 2, device=device)
    t, u = drawn((4, 3), 3, device=device), drawn((3,), 4, device=device)
    for tangents in ((t, None), (None, u), (t, u)):
        with forward_ad.dual_level():
            duals = [v if d is None else forward_ad.make_dual(v, d) for v, d in zip((x, w), tangents, strict=True)]
            got, wanted = (forward_ad.unpack_dual(f(*duals)) for f in (mine, theirs))
            assert got.tangent is not None
            torch.testing.assert_close(got.tangent, wanted.tangent)
            several = [forward_ad.unpack_dual(made).tangent for made in two(*duals)]
            torch.testing.assert_close(several, [forward_ad.unpack_dual(made).tangent for made in theirs_two(*duals)])
    with forward_ad.dual_level():
        assert forward_ad.unpack_dual(mine(x, w)).tangent is None


def test_forward_over_reverse():
    x, t = leaf((5,), 1), drawn((5,), 2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, t)
        (got,) = torch.autograd.grad(rafters.tanh(dual).sum(), dual, create_graph=True)
        (wanted,) = torch.autograd.grad(torch.tanh(dual).sum(), dual, create_graph=True)
        torch.testing.assert_close(forward_ad.unpack_dual(got).tangent, forward_ad.unpack_dual(wanted).tangent)


def test_gathered_rows_are_right_or_loud():
    @rafters.elementwise(name="t_protocol::rows", views={"row": View("table", rows="index")})
    def rows(x, row, index):
        return x * row

    x, table = leaf((3, 4), 1), leaf((5, 4), 2)
    index = torch.tensor([4, 0, 4])
    try:
        got = torch.autograd.grad(rows(x, table, index).sum(), (x, table))
    except rafters.RaftersError:
        return
    torch.testing.assert_close(got, torch.autograd.grad((x * table[index]).sum(), (x, table)))
