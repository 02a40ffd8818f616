"""Every op of the library keeps every promise of rafters.testing.contract. A new op is found by itself: it costs no line here."""

import pytest
import torch
from policy import ZERO_SIGN_OPEN
from references import DIRECT, GRADIENT, peer_of

from rafters import ops
from rafters.testing import CASES, Sample, arguments_for, dtypes_of, faults_of, ordinary
from rafters.testing.cases import SHAPES, STRIDES

TABLE = ops.table()
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TYPED = [pytest.param(name, dtype, id=f"{name}-{str(dtype)[6:]}") for name, op in TABLE.items() for dtype in dtypes_of(op)]
FLOATS = [name for name, op in TABLE.items() if torch.float64 in dtypes_of(op)]


# No kernel text depends on the op, so on a GPU, where each variant is a compile, all layouts run for one op of each arity.
REPRESENTATIVES = {len(op.spec.tensors): name for name, op in reversed(TABLE.items())}
FEW = ("start 1 element in", "pitched rows", "transposed beside contiguous", "one value a row", "0-d first")


def sample(name, case, dtype, device, thorough=True, **options):
    op = TABLE[name]
    return Sample(op, arguments_for(op, case, dtype, device, **options), peer_of(name), name not in ZERO_SIGN_OPEN, thorough)


def in_full(name, device):
    return device == "cpu" or name in REPRESENTATIVES.values()


def faults(name, cases, dtype, device, thorough=True):
    return [f"{case.name}: {fault}" for case in cases for fault in faults_of(sample(name, case, dtype, device, thorough))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "dtype"), TYPED)
def test_dtypes(name, dtype, device):
    """Special values of every dtype, in whole blocks, in a last block, and with a value a row."""
    cases = ("4099", "one value a row") if in_full(name, device) else ("4099",)
    assert not faults(name, [CASES[c] for c in cases], dtype, device, device == "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TABLE)
def test_shapes(name, device):
    assert not faults(name, SHAPES, torch.float32, device, device == "cpu")
    assert not faults(name, [CASES["17x129"]], torch.float32, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TABLE)
def test_strides(name, device):
    chosen = STRIDES if in_full(name, device) else [CASES[c] for c in FEW]
    assert not faults(name, chosen, torch.float32, device, device == "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TABLE)
def test_narrow_strides(name, device):
    """Two bytes an element: 8 a vector, so that other pitches and starts are unaligned."""
    chosen = ("start 1 element in", "8-byte starts", "pitched rows", "rows of 8-byte pitch", "transposed beside contiguous")
    chosen = chosen if in_full(name, device) else chosen[:1]
    assert not faults(name, [CASES[c] for c in chosen], torch.bfloat16, device, device == "cpu")


@pytest.mark.parametrize("case", ["7", "vector of the last dimension", "broadcast both ways", "0-d first", "all transposed"])
@pytest.mark.parametrize("name", FLOATS)
def test_gradients(name, case):
    """Against PyTorch's own function where it has one, else against finite differences; in float64, summed over broadcasts."""
    drawn = sample(name, CASES[case], torch.float64, "cpu", make=small)
    arguments = [a.detach().requires_grad_() if differentiable(a) else a for a in drawn.arguments]
    inputs = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
    mine = TABLE[name](*arguments)
    upstream = torch.randn(mine.shape, dtype=mine.dtype, generator=torch.Generator().manual_seed(5))
    got = torch.autograd.grad(mine, inputs, upstream)
    assert all(g.shape == i.shape and g.dtype is i.dtype for g, i in zip(got, inputs, strict=True))
    if drawn.peer is not None:
        wanted = torch.autograd.grad(GRADIENT.get(name, drawn.peer)(*arguments), inputs, upstream)
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    if case in ("7", "broadcast both ways"):
        assert torch.autograd.gradcheck(lambda *inner: TABLE[name](*filled(arguments, inner)), inputs)


def differentiable(argument):
    return isinstance(argument, torch.Tensor) and argument.is_floating_point()


def small(shape, dtype, seed):
    """At most 40 values, none near a kink: finite differences straddle it."""
    shape = tuple(min(n, 4) for n in shape)
    made = ordinary(shape, dtype, seed)
    return made + made.sign() * 0.1 if dtype.is_floating_point else made


def filled(arguments, inner):
    inner = iter(inner)
    return [next(inner) if isinstance(a, torch.Tensor) and a.requires_grad else a for a in arguments]


@pytest.mark.parametrize("name", [n for n in FLOATS if n in DIRECT])
def test_gradients_at_ends(name):
    """At zeros, ties, infinities and NaN the gradient is PyTorch's as well."""
    values = torch.tensor([0.0, -0.0, 1.0, float("inf"), float("-inf"), float("nan"), 1.0], dtype=torch.float64)
    op, arguments = TABLE[name], []
    for number, parameter in enumerate(op.spec.parameters):
        moved = values if number < 2 else values.roll(number).nan_to_num(0.25, 2.0, -2.0)
        arguments.append(moved > 0 if op.spec.accepts.get(parameter.name) == "bool" else moved.clone().requires_grad_())
    inputs = [a for a in arguments if a.requires_grad]
    got = torch.autograd.grad(op(*arguments).sum(), inputs)
    wanted = torch.autograd.grad(peer_of(name)(*arguments).sum(), inputs)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TABLE)
def test_opcheck(name, device):
    drawn = sample(name, CASES["broadcast both ways"], dtypes_of(TABLE[name])[-2], device, make=ordinary)
    arguments = [a.requires_grad_() if differentiable(a) else a for a in drawn.arguments]
    torch.library.opcheck(TABLE[name]._registration.overload, tuple(arguments))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", [n for n, op in TABLE.items() if len(op.spec.tensors) > 1])
def test_numbers(name, device):
    """A Python number, or a 0-d tensor on the CPU, in the place of the last tensor, three times each."""
    op, peer = TABLE[name], peer_of(name)
    accept = op.spec.accepts.get(op.spec.tensors[-1].name)
    dtypes = [d for d in dtypes_of(op) if d.itemsize > 1 or not d.is_floating_point]
    for dtype in dtypes if device == "cpu" else {torch.float32, torch.bfloat16, torch.int32} & set(dtypes):
        first = arguments_for(op, CASES["17x129"], dtype, device)[: len(op.spec.tensors) - 1]
        first = first if name != "clamp" else (first[0], None)
        numbers = [*([] if accept == "float" else [3, 1, 0]), *([0.5, 1e-3] if dtype.is_floating_point else [])]
        for number in [*numbers, *numbers, *numbers]:
            for last in (number, torch.tensor(number)):
                if name == "clamp" and isinstance(last, torch.Tensor):
                    continue  # PyTorch takes two numbers or two tensors
                got = op(*first, last)
                beside = zero_dim(last, dtype) if name in TENSORS_ONLY else number if name == "lerp" else last
                wanted = peer(*first, beside)
                assert got.dtype is wanted.dtype, (dtype, last)
                torch.testing.assert_close(got, wanted, equal_nan=True)


TENSORS_ONLY = ("maximum", "minimum", "silu_mul")  # PyTorch's take no number


def zero_dim(number, dtype):
    """The 0-d tensor that stands for a number beside tensors of `dtype`."""
    return torch.as_tensor(number).to(torch.result_type(torch.empty(1, dtype=dtype), number))
