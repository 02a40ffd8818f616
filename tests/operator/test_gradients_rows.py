"""Gradients of row-wise ops: one derived kernel that walks down whole rows, sums of broadcast arguments with it."""

import re
import sys

import pytest
import torch
import torch.nn.functional as F
from fake_gpu import FakeGPU

import rafters
from rafters import Output, lang, tl
from rafters.engine.study.facts import facts
from rafters.engine.variant import compile_recipe
from rafters.testing.kernels import prepare

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@rafters.rowwise(name="t_rows::rms_norm")
def rms_norm(x, weight, eps: float = 1e-6):
    return x * lang.rsqrt(lang.row_mean(x * x) + eps) * weight


@rafters.rowwise(
    name="t_rows::layer_norm",
    outputs=(Output("x"), Output("x", per_row=True), Output("x", per_row=True)),
)
def layer_norm(x, weight, bias, eps: float = 1e-5):
    mean = lang.row_mean(x)
    centred = x - mean
    scale = lang.rsqrt(lang.row_mean(centred * centred) + eps)
    return centred * scale * weight + bias, mean, scale


@rafters.rowwise(name="t_rows::softmax")
def softmax(x, temperature):
    x = x * temperature
    e = lang.exp(x - lang.row_max(x))
    return lang.div(e, lang.row_sum(e))


@rafters.rowwise(name="t_rows::mean", outputs=(Output("float", per_row=True),))
def mean(x):
    return lang.row_mean(x)


@rafters.rowwise(name="t_rows::scaled_mean", outputs=(Output("float", per_row=True),))
def scaled_mean(s, x):
    return lang.row_mean(x) * s


@rafters.rowwise(name="t_rows::of_both")
def of_both(w, x):
    y = x + w
    return x * lang.row_mean(w * x) + y - lang.row_mean(y) * lang.row_max(w)


@rafters.rowwise(name="t_rows::total", outputs=(Output("float", per_row=True),))
def total(x, w):
    return lang.row_sum(x + w)


@rafters.rowwise(name="t_rows::sum_of_means")
def sum_of_means(x):
    return x / lang.row_length(x) + lang.row_mean(x)


def torch_layer_norm(x, weight, bias, eps=1e-5):
    mean_ = x.mean(-1, keepdim=True)
    scale = torch.rsqrt(x.var(-1, correction=0, keepdim=True) + eps)
    return (x - mean_) * scale * weight + bias, mean_, scale


def torch_of_both(w, x):
    x, w = torch.broadcast_tensors(x, w)
    y = x + w
    return x * (w * x).mean(-1, keepdim=True) + y - y.mean(-1, keepdim=True) * w.amax(-1, keepdim=True)


# op, the same in PyTorch, shapes of the arguments for rows and columns
CASES = {
    "rms_norm": (rms_norm, lambda x, w: F.rms_norm(x, x.shape[-1:], None, 1e-6) * w, lambda r, c: ((r, c), (c,))),
    "rms_norm, a weight a row": (rms_norm, lambda x, w: F.rms_norm(x, x.shape[-1:], None, 1e-6) * w, lambda r, c: ((r, c), (r, 1))),
    "rms_norm, one weight": (rms_norm, lambda x, w: F.rms_norm(x, x.shape[-1:], None, 1e-6) * w, lambda r, c: ((r, c), ())),
    "rms_norm, weights in the middle": (
        rms_norm, lambda x, w: F.rms_norm(x, x.shape[-1:], None, 1e-6) * w, lambda r, c: ((r, 3, c), (3, 1)),
    ),
    "rms_norm of one row for many weights": (
        rms_norm, lambda x, w: F.rms_norm(x, x.shape[-1:], None, 1e-6) * w, lambda r, c: ((c,), (r, c)),
    ),
    "layer_norm": (layer_norm, torch_layer_norm, lambda r, c: ((r, c), (c,), (c,))),
    "layer_norm of a batch": (layer_norm, torch_layer_norm, lambda r, c: ((2, r, c), (c,), (2, 1, c))),
    "softmax": (softmax, lambda x, t: torch.softmax(x * t, -1), lambda r, c: ((r, c), ())),
    "mean": (mean, lambda x: x.mean(-1, keepdim=True), lambda r, c: ((r, c),)),
    "of both": (of_both, torch_of_both, lambda r, c: ((r, c), (r, c))),
    "of both, a weight a row": (of_both, torch_of_both, lambda r, c: ((r, 1), (r, c))),
    "of both, one weight": (of_both, torch_of_both, lambda r, c: ((), (r, c))),
    "of both, one weight of one dimension": (of_both, torch_of_both, lambda r, c: ((1,), (r, c))),
    "of both, a value a row": (of_both, torch_of_both, lambda r, c: ((r, c), (r, 1))),
    "scaled mean": (scaled_mean, lambda s, x: x.mean(-1, keepdim=True) * s, lambda r, c: ((r, 1), (r, c))),
    "scaled mean, one factor": (scaled_mean, lambda s, x: x.mean(-1, keepdim=True) * s, lambda r, c: ((), (r, c))),
    "total": (total, lambda x, w: (x + w).sum(-1, keepdim=True), lambda r, c: ((r, c), (r, 1))),
    "total, one term": (total, lambda x, w: (x + w).sum(-1, keepdim=True), lambda r, c: ((r, c), (1,))),
    "sum_of_means": (sum_of_means, lambda x: x / x.shape[-1] + x.mean(-1, keepdim=True), lambda r, c: ((r, c),)),
}  # fmt: skip
VIEWS = {
    "dense": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "pitched": lambda x: torch.cat((x, x), -1)[..., : x.shape[-1]] if x.dim() else x,
    "one element in": lambda x: torch.cat((x.flatten()[:1], x.flatten()))[1:].view(x.shape),
}


def drawn(shapes, dtype, device, view=VIEWS["dense"]):
    generator = torch.Generator().manual_seed(len(shapes))
    made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    return [view(m.to(device, dtype)).requires_grad_() for m in made]


def gradients(function, leaves, cotangents):
    made = function(*leaves)
    made = made if isinstance(made, tuple) else (made,)
    return torch.autograd.grad(made, leaves, cotangents[: len(made)])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_pytorchs(name, view, device):
    """At several widths, which one trace serves, and numbers of rows that one and several programs sum."""
    op, plain, shapes = CASES[name]
    for rows, cols in ((5, 9), (1, 33), (70, 64), *(((9000, 257), (300, 4096)) if device == "cuda" else ())):
        leaves = drawn(shapes(rows, cols), torch.float32, device, VIEWS[view])
        wide = [x.detach().double().requires_grad_() for x in leaves]
        results = plain(*wide)
        results = results if isinstance(results, tuple) else (results,)
        cotangents = [torch.randn_like(r) for r in results]
        cotangents[0] = VIEWS[view](cotangents[0])
        want = gradients(plain, wide, cotangents)
        got = gradients(op, leaves, [c.float() for c in cotangents])
        for mine, theirs, leaf in zip(got, want, leaves, strict=True):
            assert (mine.shape, mine.dtype) == (leaf.shape, leaf.dtype)
            torch.testing.assert_close(mine.double(), theirs, rtol=2e-4, atol=2e-5 * max(1.0, float(theirs.abs().max())))


@pytest.mark.parametrize("name", CASES)
def test_second_derivatives_and_tangents(name):
    """Of arguments that are broadcast along the row as well: each is a row of equal numbers."""
    op, plain, shapes = CASES[name]
    leaves = drawn(shapes(3, 4), torch.float64, "cpu")
    assert torch.autograd.gradcheck(op, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(op, leaves)
    for moved in range(len(leaves)):  # alone: the others may be what spans the row
        alone = [x if i == moved else x.detach() for i, x in enumerate(leaves)]
        assert torch.autograd.gradcheck(op, alone, check_forward_ad=True)
    results, wanted = op(*leaves), plain(*leaves)
    pairs = zip(results, wanted, strict=True) if isinstance(results, tuple) else ((results, wanted),)
    for mine, theirs in pairs:
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=1e-5, atol=1e-6)


@rafters.rowwise(name="t_rows::into_weights", outputs=(Output("w", sum_to="w"), Output("x", sum_to="x")))
def into_weights(x, w):
    return x + w, x * lang.row_sum(x)


def test_gradients_of_sums():
    """The cotangent of a sum spans a part of the call alone."""
    for shape in ((4, 1), (), (6,), (1,), (4, 6)):
        x, w = drawn(((4, 6), shape), torch.float64, "cpu")
        assert torch.autograd.gradcheck(into_weights, (x, w))
        assert torch.autograd.gradgradcheck(into_weights, (x, w))
        assert torch.autograd.gradcheck(lambda w, x=x: into_weights(x.detach(), w), (w,), check_forward_ad=True)


def test_one_row_has_the_kernel_of_many():
    """Rows are reduced in the same order, whether or not there are others to sum with; and one short row alone compiles."""
    triton = pytest.importorskip("triton")
    assert triton
    for cols in (33, 64, 4096, 16384):
        layouts = set()
        for rows in (1, 4, 400):
            x, w = torch.empty(rows, cols), torch.empty(cols)
            op = rms_norm.backward_op(x, w)
            made = prepare(op, [x, x, w, 1e-6])
            found = facts(made.compile(), [n for n, kind in made.recipe.signature if kind != "constexpr"])
            layouts.add((made.layout.constants["ROWS"], made.layout.warps, tuple(found.reduce_layout)))
        assert len(layouts) == 1, layouts


@rafters.rowwise(name="t_rows::nested")
def nested(x):
    return x * lang.row_sum(x - lang.row_max(x)) + lang.row_sum(-x - lang.row_sum(x))


@rafters.rowwise(name="t_rows::named")
def named(out0, y, z):
    return out0 * lang.row_sum(y) * z, lang.exp(y) * out0


@rafters.rowwise(name="t_rows::lse", outputs=(Output(per_row=True),))
def lse(x, target):
    peak = lang.row_max(x)
    return peak + lang.log(lang.row_sum(lang.exp(x - peak))) - target


def test_reductions_of_reductions_and_names_like_results():
    x, y, z = drawn(((3, 4), (3, 4), (4,)), torch.float64, "cpu")
    assert torch.autograd.gradcheck(nested, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(nested, (x,))
    assert torch.autograd.gradcheck(named, (x, y, z), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(named, (x, y, z))
    number = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda b: rms_norm(x.detach(), b), (number,), check_forward_ad=True)


def test_rows_of_one_element_and_of_what_is_made_up():
    x, target = drawn(((5, 1), (5, 1)), torch.float64, "cpu")
    assert torch.autograd.gradcheck(lse, (x, target))

    @rafters.rowwise(name="t_rows::made_up", outputs=(Output(per_row=True), Output(per_row=True)))
    def made_up(x, s: float):
        return lang.row_sum(tl.zeros_like(x) + lang.row_max(x)), lang.row_sum(tl.zeros_like(x) + s)

    for cols in (1, 9):
        a, b = made_up(torch.ones(2, cols), 2.0)
        assert a.flatten().tolist() == [cols, cols]
        assert b.flatten().tolist() == [2 * cols, 2 * cols]


def test_the_first_backward_of_all_is_compiled():
    x, target = drawn(((5, 9), (5, 1)), torch.float32, "cpu")
    lse.spec.memory.clear()
    (compiled,) = torch.autograd.grad(torch.compile(lse, fullgraph=True, backend="aot_eager")(x, target).sum(), x)
    torch.testing.assert_close(compiled, torch.softmax(x, -1))


def test_a_total_narrower_than_its_values_compiles():
    pytest.importorskip("triton")
    x, w = torch.randn(300, 64, dtype=torch.float64), torch.randn(64)
    for op in (rms_norm.backward_op(x, w), rafters.mul.backward_op(x, w)):
        made = prepare(op, [x, x, w, 1e-6][: len(op.spec.parameters)])
        for stage in made.stages:
            compile_recipe(stage.recipe)


def test_a_sum_to_an_argument_in_halves_is_refused():
    with pytest.raises(rafters.BodyError, match="read in halves"):

        @rafters.elementwise(
            name="t_rows::halves",
            views={"p": rafters.View("x", "lo"), "q": rafters.View("x", "hi")},
            outputs=(Output("x", sum_to="x"),),
        )
        def halves(p, q):
            return p * q


def test_a_body_that_varies_has_no_value_a_row():
    @rafters.rowwise(name="t_rows::varies", outputs=(Output(per_row=True),))
    def varies(x):
        return x * lang.row_sum(x)

    with pytest.raises(rafters.BodyError, match="output 0 is declared one value a row"):
        varies(torch.ones(2, 3))


def test_a_row_of_constants_has_a_length():
    @rafters.rowwise(name="t_rows::counted")
    def counted(x):
        return x * lang.row_sum(tl.zeros_like(x) + 1.0) / lang.row_length(x)

    x = torch.randn(3, 5)
    torch.testing.assert_close(counted(x), x)


def test_a_fused_op_has_a_fused_gradient():
    from rafters.operator.pytorch.compiled import fuses

    @rafters.rowwise(name="t_rows::fused", compile="fuse")
    def fused(x, w):
        return x * lang.row_sum(x * w)

    x, w = torch.ones(2, 3), torch.ones(3)
    assert fuses(fused.backward_op(x, w))


def test_bytes_of_what_is_not_read():
    x, g = torch.empty(4, 6), torch.empty(4, 1)
    op = mean.backward_op(x)
    assert op.cost(g, x).read_bytes == 4 * 4  # of x the length alone is used


@pytest.mark.parametrize("device", DEVICES)
def test_an_expanded_gradient_is_taken_as_it_is(device):
    x, w = drawn(((70, 33), (33,)), torch.float32, device)
    (a, b) = torch.autograd.grad(rms_norm(x, w).sum(), (x, w))
    (c, d) = torch.autograd.grad(F.rms_norm(x, (33,), w, 1e-6).sum(), (x, w))
    torch.testing.assert_close(a, c, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(b, d, rtol=1e-4, atol=1e-4)


def test_some_results_and_some_arguments():
    """A gradient of the mean alone, of the first result alone; for the bias alone, which is the cotangent summed."""
    x, w, b = drawn(((7, 12), (12,), (12,)), torch.float64, "cpu")
    for pick in range(3):
        got = torch.autograd.grad(layer_norm(x, w, b)[pick].sum(), (x, w, b), allow_unused=True)
        want = torch.autograd.grad(torch_layer_norm(x, w, b)[pick].sum(), (x, w, b), allow_unused=True)
        for mine, theirs in zip(got, want, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    (only,) = torch.autograd.grad(layer_norm(x.detach(), w.detach(), b)[0].sum(), (b,))
    torch.testing.assert_close(only, torch.full_like(b, 7.0))


def test_the_source_is_an_op_to_keep(tmp_path, monkeypatch):
    x, w = drawn(((7, 12), (12,)), torch.float32, "cpu")
    source = rms_norm.backward_source(x, w)
    assert "@rafters.rowwise(" in source
    assert "lang.row_length(x)" in source
    assert "def rms_norm_backward(grad_out, x, weight, eps: float):" in source
    (tmp_path / "kept.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    import kept

    g = torch.randn(7, 12)
    for mine, theirs in zip(kept.rms_norm_backward(g, x, w, 1e-6), rms_norm.backward_op(x, w)(g, x, w, 1e-6), strict=True):
        assert torch.equal(mine, theirs)
    del sys.modules["kept"]


def test_each_input_is_read_once_by_one_kernel(fake_gpu: FakeGPU):
    """Beside it there is one kernel more that sums what the programs leave of each broadcast argument."""
    x, w, g = torch.empty(300, 64), torch.empty(64), torch.empty(300, 64)
    op = rms_norm.backward_op(x, w)
    fake_gpu.launches.clear()
    op(g, x, w, 1e-6)
    assert len(fake_gpu.launches) == 2
    text = prepare(op, [g, x, w, 1e-6]).recipe.text
    whole, _, ends = text.partition("for i in range(i_full")
    for arm in (whole.partition("for i in tl.range(i_start")[2], ends):
        assert len(re.findall(r"tl\.load\((x|grad_out)_ptr", arm)) == 2
    assert len(re.findall(r"tl\.load\(weight_ptr", text)) == 1
    # beside a gradient for x alone nothing is summed: one kernel
    wanted = layer_norm.backward_op(x, w, w)
    fake_gpu.launches.clear()
    wanted(g, torch.empty(300, 1), torch.empty(300, 1), x, w, w, 1e-5)
    assert len(fake_gpu.launches) == 3


def test_what_is_saved_is_an_input():
    x, w = drawn(((7, 12), (12,)), torch.float32, "cpu")
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        rms_norm(x, w)
        assert set(kept) == {x.data_ptr(), w.data_ptr()}
        kept.clear()
        made = mean(x)
        assert kept == []  # of the row its length is needed, which is no reason to keep it
    torch.testing.assert_close(torch.autograd.grad(made.sum(), x)[0], torch.full_like(x, 1 / 12))


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_gradients_are_the_same(device):
    x, w = drawn(((7, 12), (12,)), torch.float32, device)
    eager = torch.autograd.grad(rms_norm(x, w).square().sum(), (x, w))
    compiled = torch.autograd.grad(torch.compile(lambda a, b: rms_norm(a, b).square().sum(), fullgraph=True)(x, w), (x, w))
    for mine, theirs in zip(compiled, eager, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_sums_have_the_same_bits_in_every_run():
    x, w = drawn(((20_000, 1024), (1024,)), torch.bfloat16, "cuda")
    g = torch.randn_like(x)
    first = torch.autograd.grad(rms_norm(x, w), (x, w), g)
    for _ in range(3):
        again = torch.autograd.grad(rms_norm(x, w), (x, w), g)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("cols", [8192, 16384, 20_000])
def test_long_rows(cols):
    """Rows whose sums need more registers than a thread has."""
    x, w = drawn(((700, cols), (cols,)), torch.float32, "cuda")
    g = torch.randn_like(x)
    got = torch.autograd.grad(rms_norm(x, w), (x, w), g)
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    want = torch.autograd.grad(F.rms_norm(wide[0], (cols,), wide[1], 1e-6), wide, g.double())
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-4, atol=2e-4)
