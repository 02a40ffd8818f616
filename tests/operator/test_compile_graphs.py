"""Cases 79 and 80, and calls of every kind under torch.compile: how many graphs, and what a call may look like."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import rafters

VALUES = (50.0, 30.0, 20.0, 10.0, 7.5, 3.25, 0.1)
SIZES = (2, 3, 5, 8, 16, 17, 33, 1000)


@rafters.rowwise(name="t_graphs::rms_norm")
def rms_norm(x, weight, eps: float = 1e-6):
    return x * rafters.lang.rsqrt(rafters.lang.row_mean(x * x) + eps) * weight


@rafters.elementwise(name="t_graphs::powers")
def powers(x, n: int, alpha: float = 2.0, negate: bool = False):
    y = x * alpha * n
    if negate:
        y = -y
    return y


def graphs(function, calls, **options) -> int:
    """How many graphs these calls take; each must give what the eager call gives, bit for bit and in the same memory order."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(function, backend=counter, fullgraph=True, **options)
    for arguments in calls:
        got, wanted = compiled(*arguments), function(*arguments)
        assert got.dtype is wanted.dtype
        assert got.stride() == wanted.stride()
        assert torch.equal(got, wanted)
    return counter.frame_count


SCALARS = {
    "softcap": rafters.softcap,
    "softcap.opaque": rafters.softcap.opaque,
    "add": rafters.add,
    "add.opaque": rafters.add.opaque,
    "keywords": lambda x, v: rafters.softcap(x=x, cap=v),
    "lerp": lambda x, v: rafters.lerp(x, x * 2, v),
    "clamp": lambda x, v: rafters.clamp(x, max=v),
    "rms_norm": lambda x, v: rms_norm(x, x[0], v),
    "registered": lambda x, v: torch.ops.rafters.softcap(x, v),
}


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
def test_case_80_scalars_cost_at_most_one_recompile(name, dynamic):
    """Also s = 0.1: the scalar is rounded once, from double, on every path."""
    x = torch.linspace(-3, 3, 24).view(4, 6)
    assert graphs(SCALARS[name], [(x, v) for v in VALUES], dynamic=dynamic) <= (1 if dynamic else 2)


@pytest.mark.parametrize("function", [powers, powers.opaque], ids=["fuse", "opaque"])
def test_case_80_integers_cost_at_most_one_recompile(function):
    x = torch.linspace(-3, 3, 24).view(4, 6)
    assert graphs(function, [(x, n) for n in (2, 7, 11, 2**20, 5)]) <= 2


LAYOUTS = {
    "contiguous": lambda n: torch.randn(n, 6),
    "transposed": lambda n: torch.randn(6, n).t(),
    "sliced": lambda n: torch.randn(n, 12)[:, ::2],
    "expanded": lambda n: torch.randn(6).expand(n, 6),
}
UNARY = {"fuse": lambda x: rafters.silu(x + 1), "opaque": rafters.silu.opaque, "rowwise": lambda x: rms_norm(x, 1.5)}


@pytest.mark.parametrize("kind", UNARY)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_79_sizes_cost_at_most_one_recompile(kind, layout):
    calls = [(LAYOUTS[layout](n),) for n in SIZES]
    assert graphs(UNARY[kind], calls) <= 2
    assert graphs(UNARY[kind], calls, dynamic=True) <= 2


def test_a_vector_and_a_tensor_of_varying_sizes():
    calls = [(torch.randn(n, 6), torch.randn(6)) for n in SIZES]
    assert graphs(rafters.silu_mul, calls) <= 2
    assert graphs(rafters.silu_mul.opaque, calls) <= 2


def test_sizes_0_and_1_add_one_graph_each_as_for_any_op():
    calls = [(torch.randn(n, 6),) for n in (5, 7, 1, 0, 9)]
    assert graphs(rafters.silu, calls) <= 4


# -- what a call may look like ------------------------------------------------------------------------------------------------------

X = torch.tensor([1.0, 2.0, 3.0])


def both(function, *arguments):
    torch._dynamo.reset()
    got = torch.compile(function, backend="aot_eager", fullgraph=True)(*arguments)
    wanted = function(*arguments)
    assert torch.equal(got, wanted)
    assert got.dtype is wanted.dtype
    return got


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
@pytest.mark.parametrize("number", [2, 0.1, True])
def test_numbers_for_tensors(dtype, number):
    x = X.to(dtype)
    both(lambda x: rafters.add(x, number), x)
    both(lambda x: rafters.add(number, x), x)
    both(lambda x: rafters.mul.opaque(x, y=number), x)
    both(lambda x: rafters.add(x, number), x[0])


def test_keywords_and_defaults():
    both(lambda x: powers(n=3, x=x), X)
    both(lambda x: powers(x, 3, negate=True), X)
    both(lambda x: powers.opaque(x, 3, negate=True), X)
    both(lambda x: rafters.clamp(x, max=2.0), X)
    both(lambda x: rafters.clamp(x), X)


@pytest.mark.parametrize("call", [rafters.add, rafters.add.opaque], ids=["fuse", "opaque"])
def test_out_is_written(call):
    def function(x, out):
        made = call(x, 1.0, out=out)
        assert made is out
        return out * 2

    out = torch.empty(3, dtype=torch.float64)  # a wider one is cast to, as in an eager call
    got = torch.compile(function, backend="aot_eager", fullgraph=True)(X, out)
    assert out.tolist() == [2, 3, 4]
    assert got.tolist() == [4, 6, 8]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: rafters.add(x, 1.0, out=torch.empty(4)), r"add: argument 'out': got shape \(4,\)"),
        (lambda x: rafters.add(x, 1.5, out=torch.empty(3, dtype=torch.int32)), r"add: argument 'out': got dtype torch.int32"),
        (lambda x: rafters.silu(x.int()), r"silu: argument 'x': got dtype torch.int32"),
        (lambda x: rafters.add(x, torch.ones(4)), r"add: argument 'y': got shape \(4,\)"),
        (lambda x: rafters.softcap(x, "2"), r"softcap"),
        (lambda x: rafters.softcap(x), r"cap"),
        (lambda x: powers(x, 3, negat=True), r"negat"),
        (lambda x: powers.opaque(x, 3, negat=True), r"powers: argument 'negat' is unknown"),
        (lambda x: powers(x, 2.5), r"powers"),
    ],
)
def test_bad_calls_name_op_and_argument(call, message):
    torch._dynamo.reset()
    with pytest.raises(Exception, match=message):
        torch.compile(call, backend="aot_eager", fullgraph=True)(X)


def test_an_op_that_takes_the_name_over_is_compiled_anew(tmp_path, monkeypatch):
    """A reload, or an edited notebook cell: the function that was compiled with the old op follows the new one."""
    import importlib

    file = tmp_path / "edited_ops.py"
    monkeypatch.syspath_prepend(tmp_path)
    text = "import rafters\n\n@rafters.elementwise\ndef op(x):\n    return x * {}\n"
    file.write_text(text.format(2.0))
    import edited_ops

    torch._dynamo.reset()
    by_module = torch.compile(lambda x: edited_ops.op(x) + 1, backend="aot_eager")
    by_registry = torch.compile(lambda x: torch.ops.edited_ops.op(x) + 1, backend="aot_eager")
    assert by_module(X).tolist() == by_registry(X).tolist() == [3, 5, 7]
    file.write_text(text.format(100.0))
    importlib.invalidate_caches()
    importlib.reload(edited_ops)
    assert by_module(X).tolist() == by_registry(X).tolist() == [101, 201, 301]


def test_the_declaration_is_checked():
    for wish, message in (("fused", r"t_graphs::bad|bad: compile='fused' is neither None, 'fuse' nor 'opaque'"),):
        with pytest.raises(rafters.BodyError, match=message):

            @rafters.elementwise(name="t_graphs::bad", compile=wish)
            def bad(x):
                return x

    with pytest.raises(rafters.BodyError, match=r"over: compile='fuse' for an op that overwrites an argument"):

        @rafters.elementwise(name="t_graphs::over", compile="fuse", outputs=[rafters.Output(into="x")])
        def over(x):
            return x + 1
