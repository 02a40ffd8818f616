"""Functions of torch operations that become ops with a body of their own."""

import linecache

import pytest
import torch
import torch.nn.functional as F

import rafters

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def written(text, name="f"):
    """A function whose source can be read, as if it stood in a file."""
    file = f"<from_torch test {name} {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = {"torch": torch, "F": F, "__name__": "test_from_torch"}
    exec(compile(text, file, "exec"), space)
    return space[name]


def one(expression, parameters="x"):
    return written(f"def f({parameters}):\n    return {expression}\n")


UNARY = [
    "F.silu(x)", "F.gelu(x)", "F.gelu(x, approximate='tanh')", "F.softplus(x)", "F.mish(x)", "F.hardswish(x)", "F.hardsigmoid(x)",
    "F.hardtanh(x)", "F.leaky_relu(x, 0.1)", "F.elu(x)", "F.celu(x)", "F.selu(x)", "F.relu6(x)", "F.logsigmoid(x)", "F.tanhshrink(x)",
    "F.softsign(x)", "x.clamp(-1, 1) ** 3", "x.abs().pow(1.5)", "torch.trunc(x) + torch.frac(x)", "torch.sign(x) * torch.round(x)",
    "torch.isfinite(x)", "x > 0", "torch.nan_to_num(x)", "(x * x).rsqrt()", "1 / (1 + x * x)", "x * 2 + 1",
]  # fmt: skip
BINARY = ["torch.maximum(x, y)", "torch.fmax(x, y)", "torch.logaddexp(x, y)", "torch.where(x > y, x, -y)", "torch.lerp(x, y, 0.3)",
          "torch.floor_divide(x, y)", "F.silu(x) * y", "(x > 0) & (y > 0)", "x.masked_fill(y > 0, 2.0)"]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("expression", UNARY + BINARY)
def test_an_expression_gives_what_torch_gives(expression, device):
    function = one(expression, "x" if expression in UNARY else "x, y")
    op = rafters.from_torch(function, name=f"t_from_torch::f{abs(hash(expression))}")
    generator = torch.Generator().manual_seed(1)
    tensors = [(torch.randn(37, 41, generator=generator) * 3).to(device) for _ in op.spec.tensors]
    got, want = op(*tensors), function(*(t.double() for t in tensors))
    assert got.dtype is function(*tensors).dtype
    torch.testing.assert_close(got.double(), want.double(), rtol=2e-6, atol=1e-6, equal_nan=True)


def test_the_body_can_be_read_kept_and_edited():
    def swiglu(gate, up, alpha: float = 1.0):
        """SwiGLU."""
        return F.silu(alpha * gate) * up

    op = rafters.from_torch(swiglu, name="t_from_torch::swiglu")
    assert op.__doc__ == "SwiGLU."
    text = op.body_source()
    assert "def swiglu(gate, up, alpha: float=1.0):" in text
    assert "lang.sigmoid" in text
    edited = written(text.replace("def swiglu", "def edited").split("\n\n\n", 1)[1], "edited")
    edited.__globals__.update(lang=rafters.lang, tl=rafters.tl)
    again = rafters.elementwise(edited, name="t_from_torch::edited")
    x, y = torch.randn(5, 7), torch.randn(7)
    assert torch.equal(again(x, y, 1.5), op(x, y, 1.5))
    torch.testing.assert_close(op(x, y, 1.5), swiglu(x, y, 1.5))


def test_it_is_differentiable():
    op = rafters.from_torch(one("F.softplus(x) * y", "x, y"), name="t_from_torch::differentiable")
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(op, (x, y))


def test_integers_are_lifted_where_torch_lifts_them():
    op = rafters.from_torch(one("torch.exp(x)"), name="t_from_torch::lifted")
    assert op(torch.tensor([0, 1])).dtype is torch.float32
    same = rafters.from_torch(one("x * 2"), name="t_from_torch::same")
    assert same(torch.tensor([0, 1])).tolist() == [0, 2]
    real = rafters.from_torch(one("F.silu(x)"), name="t_from_torch::real")
    with pytest.raises(rafters.ArgumentError, match=r"argument 'x': got dtype torch\.int64, wanted a floating-point dtype"):
        real(torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("x.sum()", "aten.sum in it is not pointwise"),
        ("x.reshape(-1)", "it returns a tensor of another shape"),
        ("x.t().t()", "aten.permute in it is not pointwise"),
        ("x.add_(1)", "it writes into an argument"),
        ("x if x.sum() > 0 else -x", "it cannot be traced"),
        ("torch.rand_like(x)", "has no Triton form yet"),
        ("torch.atan2(x, x)", "aten.atan2 has no Triton form yet"),
        ("3.0", "it returns something that is no tensor"),
        ("x.flip(0)", "has no Triton form yet"),
    ],
)
def test_what_is_not_pointwise_is_refused_with_its_reason(expression, message):
    with pytest.raises(rafters.BodyError, match=message):
        rafters.from_torch(one(expression), name="t_from_torch::refused")


def test_a_switch_is_refused():
    with pytest.raises(rafters.BodyError, match="parameter 'flag': a trace takes one way only"):
        rafters.from_torch(written("def f(x, flag: bool = True):\n    return x\n"), name="t_from_torch::switch")
