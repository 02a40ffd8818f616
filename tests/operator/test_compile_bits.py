"""Compiled calls give what eager calls give: bit for bit where the kernel is kept, within the last bits where Inductor fuses."""

import pytest
import torch
from compiling import code_of

import rafters
from rafters.ops import table
from rafters.testing.compare import same_bits

TABLE = table()
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
KERNEL = "async_compile.cpp_pybinding("


def layouts(dtype: torch.dtype, device: str = "cpu") -> dict[str, torch.Tensor]:
    made = torch.randn(6, 40, 18, generator=torch.Generator().manual_seed(0)) * 3
    t = made.to(device, dtype)
    return {
        "contiguous": t[:, :, 0].contiguous(),
        "transposed": t[:, :, 1].t().contiguous().t(),
        "0-d": t[0, 0, 0].clone(),
        "no rows": t[:0, :, 0],
        "every 18th": t[:, :, 2],
        "3 dimensions, permuted": t.permute(2, 0, 1),
        "expanded": t[0, :, 3].expand(6, 40),
        "one row": t[:1, :, 0].contiguous(),
        "one column": t[:, :1, 5],
        "odd strides": t.as_strided((3, 1, 4), (4, 77, 1)),
        "channels last": t[:4, :6, :15].reshape(2, 2, 6, 15).contiguous(memory_format=torch.channels_last),
    }


def arguments(op: rafters.Op, x: torch.Tensor) -> list:
    """x and what is computed from it; a bool where nothing else is taken."""
    made: list = []
    for number, p in enumerate(op.spec.parameters):
        if op.spec.accepts.get(p.name) == "bool":
            made.append(x > 0)
        else:
            made.append((x if number == 0 else x * 0.5 + number) if p.kind == "tensor" else 30.0)
    return made


LAYOUTS = list(layouts(torch.float32))
Calls = list[tuple[str, str, list]]


def calls(names: list[str], each: int, device: str = "cpu") -> Calls:
    """Each op in `each` of these layouts, every time in the next dtype; the next op begins with the next layout."""
    by_dtype = [layouts(dtype, device) for dtype in DTYPES]
    return [
        (op, layout, arguments(TABLE[op], by_dtype[j % len(DTYPES)][layout]))
        for i, op in enumerate(TABLE)
        for j, layout in enumerate((names * 2)[i % len(names) :][:each])
    ]


def compare(made, wanted, drawn, equal) -> None:
    for (op, layout, _), got, expected in zip(drawn, made, wanted, strict=True):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), (op, layout)
        assert got.stride() == expected.stride(), (op, layout, got.stride(), expected.stride())
        assert equal(op, got, expected), (op, layout, got.dtype)


def run_opaque(drawn):
    def function():
        return [TABLE[op].opaque(*a) for op, _, a in drawn]

    torch._dynamo.reset()
    made, code = code_of(torch.compile(function, fullgraph=True))
    compare(made, function(), drawn, lambda _, got, wanted: same_bits(got, wanted))
    return "\n".join(code)


def run_fused(drawn):
    def function():
        return [TABLE[op](*a) for op, _, a in drawn]

    torch._dynamo.reset()
    made, code = code_of(torch.compile(function, fullgraph=True))
    compare(made, function(), drawn, close)
    return "\n".join(code)


def close(op: str, got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """16 bits: 1 ulp. Wider: 3 ulp, since exp and erf are Inductor's; lerp's difference may cancel, so 3 of its terms' ulp.

    Inductor's sigmoid is 0 where e^-x overflows, ours is right down to the last subnormal: x times 2^-126 is forgiven.
    """
    a, b = got.double(), wanted.double()
    size = torch.maximum(b.abs(), torch.tensor(32.0)) if op == "lerp" else b.abs()
    info = torch.finfo(got.dtype)
    unit = torch.ldexp(torch.ones_like(b), torch.frexp(size.clamp(min=info.smallest_normal))[1] - 1) * info.eps
    same = (a == b) | (a.isnan() & b.isnan())  # infinities too
    near = (a - b).abs() <= unit * (1 if got.dtype.itemsize == 2 else 3)
    flushed = (a == 0) & (b.abs() < (2.0**-119 if got.dtype is not torch.float64 else 2.0**-1015))
    return bool((same | near | flushed).all())


def test_an_opaque_op_gives_the_eager_bits_in_every_layout():
    """Inductor asserts the strides of what an opaque call returns: those of the fake function are the real ones."""
    drawn = calls(LAYOUTS, 4)
    code = run_opaque(drawn)
    assert code.count("torch.ops.rafters.") >= len(drawn)
    assert "assert_size_stride" in code


def test_a_decomposed_op_gives_the_eager_values():
    code = run_fused(calls(["contiguous", "transposed", "0-d", "expanded", "no rows"], 4))
    assert "torch.ops.rafters." not in code


@pytest.mark.slow
def test_every_op_in_every_layout():
    run_opaque(calls(LAYOUTS, len(LAYOUTS)))
    run_fused(calls(LAYOUTS, len(LAYOUTS)))


@pytest.mark.gpu
def test_opaque_and_decomposed_on_the_gpu():
    drawn = calls(LAYOUTS, 4, "cuda")
    run_opaque(drawn)

    def function():
        return [TABLE[op](*a) for op, _, a in drawn]

    torch._dynamo.reset()
    made = torch.compile(function, fullgraph=True)()
    # Inductor contracts products with sums there, so float32 is held to the size of the terms.
    compare(made, function(), drawn, near)


def near(_op: str, got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(got, wanted, rtol=1e-2 if got.dtype.itemsize == 2 else 2e-6, atol=5e-5, equal_nan=True)


# -- what fuses ---------------------------------------------------------------------------------------------------------------------


@rafters.rowwise(name="t_bits::row_softmax")
def row_softmax(x):
    y = rafters.lang.exp(x - rafters.lang.row_max(x))
    return y / rafters.lang.row_sum(y)


@rafters.rowwise(name="t_bits::fused_softmax", compile="fuse")
def fused_softmax(x):
    y = rafters.lang.exp(x - rafters.lang.row_max(x))
    return y / rafters.lang.row_sum(y)


@rafters.elementwise(name="t_bits::to_int8", out_dtype=torch.int8)
def to_int8(x, scale: float):
    return rafters.lang.clamp(rafters.lang.rint(x * scale), -128.0, 127.0)


@rafters.elementwise(name="t_bits::twice_rounded")
def twice_rounded(x, y):
    return (x * 1.0078125).to(rafters.tl.bfloat16).to(rafters.tl.float32) * y


@rafters.elementwise(name="t_bits::fused_rounding", compile="fuse")
def fused_rounding(x, y):
    return (x * 1.0078125).to(rafters.tl.bfloat16).to(rafters.tl.float32) * y


@rafters.elementwise(name="t_bits::rounded_last", out_dtype=torch.bfloat16)
def rounded_last(x):
    return (x * 1.0078125).to(rafters.tl.bfloat16)


@rafters.elementwise(name="t_bits::kept_whole", compile="opaque")
def kept_whole(x):
    return x * 2


@rafters.elementwise(name="t_bits::by_reference", reference=lambda x: x * 2)
def by_reference(x):
    return x * 2


def targets(function, *arguments) -> list[str]:
    """The operations in the graph that Inductor gets."""
    seen: list[str] = []

    def backend(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    from torch._dynamo.backends.common import aot_autograd

    torch._dynamo.reset()
    got = torch.compile(function, backend=aot_autograd(fw_compiler=backend), fullgraph=True)(*arguments)
    torch.testing.assert_close(got, function(*arguments))
    return [t for t in seen if not t.startswith("aten")]


X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (lambda x: rafters.silu(x), []),
        (lambda x: fused_softmax(x), []),
        (lambda x: fused_rounding(x, x), []),
        (lambda x: rounded_last(x), []),
        (lambda x: rafters.silu.opaque(x), ["rafters.silu.opaque"]),
        (lambda x: torch.ops.rafters.silu.opaque(x), ["rafters.silu.opaque"]),
        (lambda x: torch.ops.rafters.silu(x), []),
        (lambda x: row_softmax(x), ["t_bits.row_softmax.opaque"]),
        (lambda x: to_int8(x, 10.0), ["t_bits.to_int8.opaque"]),
        (lambda x: twice_rounded(x, x), ["t_bits.twice_rounded.opaque"]),
        (lambda x: kept_whole(x), ["t_bits.kept_whole.opaque"]),
        (lambda x: by_reference(x), ["t_bits.by_reference.opaque"]),
    ],
)
def test_what_is_taken_apart(function, kept):
    assert targets(function, X) == kept


def test_relu_of_an_op_of_a_sum_is_one_kernel():
    torch._dynamo.reset()
    made, code = code_of(torch.compile(lambda x: torch.relu(rafters.silu(x + 1)), fullgraph=True), X)
    assert [text.count(KERNEL) for text in code] == [1]
    assert "torch.ops.rafters" not in code[0]
    torch.testing.assert_close(made, torch.relu(rafters.silu(X + 1)))


def test_a_result_is_never_the_argument_itself():
    """An identity (a scale of 1, a body that returns its argument) is a copy, as in an eager call."""

    @rafters.elementwise(name="t_bits::identity")
    def identity(x):
        return x

    for function in (identity, identity.opaque, lambda x: rafters.scale(x, 1.0), lambda x: rafters.clamp(x)):
        torch._dynamo.reset()
        x = X.clone()
        made = torch.compile(function, backend="aot_eager", fullgraph=True)(x)
        assert made.data_ptr() != x.data_ptr()
        made.add_(1)
        assert torch.equal(x, X)


def test_what_does_not_vary_with_an_argument_is_written_whole():
    @rafters.elementwise(name="t_bits::first_of_two")
    def first_of_two(x, y):
        return x

    drawn = (X[0], X)
    torch._dynamo.reset()
    made = torch.compile(first_of_two, backend="aot_eager", fullgraph=True)(*drawn)
    assert made.stride() == first_of_two(*drawn).stride() == (6, 1)


# -- case 82: ops that overwrite -----------------------------------------------------------------------------------------------------


@rafters.elementwise(name="t_bits::add_into", outputs=[rafters.Output(into="x")])
def add_into(x, y):
    return x + y


def test_case_82_an_overwritten_argument_is_overwritten():
    def direct(x):
        add_into(x, 1.0)
        return x * 2

    def of_a_view(x):
        add_into(x[0], x[1])
        return x.sum()

    def of_a_temporary(x):
        y = x * 1
        add_into(y[:, ::2], y[:, 1::2])
        add_into.opaque(y[0], 1.0)
        return y

    for function in (direct, of_a_view, of_a_temporary):
        torch._dynamo.reset()
        mine, eager = X.clone(), X.clone()
        made = torch.compile(function, fullgraph=True)(mine)
        wanted = function(eager)
        assert torch.equal(mine, eager), function.__name__
        torch.testing.assert_close(made, wanted)
    assert not torch.equal(mine, direct(X.clone()))


# -- gradients -----------------------------------------------------------------------------------------------------------------------


def gradients(function, *drawn):
    """Eager and compiled gradients of a loss, and the code of forward and backward."""

    def step(*leaves):
        leaves = [t.detach().requires_grad_() for t in leaves]
        torch.compile(lambda *a: (torch.relu(function(*a) + 1) ** 2).sum(), fullgraph=True)(*leaves).backward()
        return [t.grad for t in leaves]

    torch._dynamo.reset()
    made, code = code_of(step, *drawn)
    leaves = [t.detach().requires_grad_() for t in drawn]
    wanted = torch.autograd.grad((torch.relu(function(*leaves) + 1) ** 2).sum(), leaves)
    for got, expected in zip(made, wanted, strict=True):
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got, expected, rtol=2e-6, atol=2e-6)
    return code


def test_forward_and_backward_fuse():
    """One kernel each; the vector's gradient is summed in the same one."""
    forward, backward = gradients(rafters.silu_mul, X, X[0] * 2)
    assert forward.count(KERNEL) == backward.count(KERNEL) == 1
    assert "torch.ops.rafters" not in forward + backward


def test_backward_of_an_opaque_op():
    forward, _ = gradients(lambda x, y: rafters.softcap.opaque(rafters.mul.opaque(x, y), 2.0), X, X[0] * 2)
    assert all(f"= torch.ops.rafters.{name}.opaque(" in forward for name in ("mul", "softcap"))


@pytest.mark.parametrize("kind", ["fuse", "opaque"])
def test_gradients_of_every_op(kind):
    """All in one graph, by AOTAutograd alone: what is differentiated is what is traced."""
    x = torch.linspace(-2, 2, 24, dtype=torch.float64).view(4, 6) + 0.01

    def loss(*leaves):
        total = 0
        for name, op in TABLE.items():
            given = arguments(op, leaves[0])
            given = [leaves[1] if i == 1 and name != "where" and isinstance(a, torch.Tensor) else a for i, a in enumerate(given)]
            total = total + ((op if kind == "fuse" else op.opaque)(*given) ** 2).sum()
        return total

    drawn = [x.clone().requires_grad_(), (x[0] * 0.3 + 1).requires_grad_()]
    torch._dynamo.reset()
    got = torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(*drawn), drawn)
    torch.testing.assert_close(got, torch.autograd.grad(loss(*drawn), drawn))


def test_gradients_with_new_scalars_and_sizes_take_two_graphs():
    from torch._dynamo.testing import CompileCounterWithBackend

    for call in (rafters.softcap, rafters.softcap.opaque):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(lambda x, cap, call=call: call(x, cap).sum(), backend=counter, fullgraph=True)
        for cap, size in ((5.0, 4), (3.0, 5), (0.1, 7), (7.5, 16)):
            x = torch.linspace(-9, 9, size).requires_grad_()
            got = torch.autograd.grad(compiled(x, cap), x)
            torch.testing.assert_close(got, torch.autograd.grad(call(x, cap).sum(), x))
        assert counter.frame_count <= 2
