"""PyTorch's own samples (OpInfo) through our ops: values, dtypes, strides, gradients, and what has to be refused."""

from collections import Counter

import pytest
import torch

pytest.importorskip("expecttest", reason="PyTorch's own test module needs it")
from adapters import (
    ADAPTERS,
    ALPHA,
    BOOL,
    COMPLEX,
    INFOS,
    NUMBERS,
    ROUNDING,
    VALUE,
    WITHOUT,
    Call,
    adapted,
    calls,
    dtypes_of,
    error_inputs,
    refused_dtypes,
)

from rafters import ArgumentError, ops
from rafters.testing.compare import same_bits, ulp_error, wrong_values
from rafters.testing.contract import same_class, same_strides
from rafters.testing.layouts import torch_strides

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
EACH = [pytest.param(name, op, id=f"{name}-{op}") for name, op in ADAPTERS]
PRODUCTS = {ops.mul_add, ops.scale_bias}  # several operators of PyTorch: rounded elsewhere, and other operands come first


def kinds(op, dtype, device):
    """On a GPU, where each layout and dtype is a compile, the long list of samples is for float32, and for one op of each arity."""
    return (
        ("sample", "reference") if device == "cpu" or dtype is torch.float32 or op in ("add", "where", "sigmoid") else ("sample",)
    )


def tensors(call):
    return [a for a in call.arguments if isinstance(a, torch.Tensor)]


def faults(call):
    """What is wrong with one sample, in words."""
    got, wanted = call.op(*call.arguments), call.peer()
    if (got.dtype, got.shape, got.device) != (wanted.dtype, wanted.shape, wanted.device):
        return [
            f"{got.dtype} {tuple(got.shape)} on {got.device}, PyTorch: {wanted.dtype} {tuple(wanted.shape)} on {wanted.device}"
        ]
    strides = torch_strides(tensors(call)) if call.op in PRODUCTS else wanted.stride()
    found = [] if same_strides(got.shape, got.stride(), strides) else [f"strides {got.stride()}, PyTorch: {strides}"]
    if torch.equal(got, wanted) or same_bits(got, wanted):
        return found
    if not got.dtype.is_floating_point:
        return [*found, "values differ from PyTorch's"]
    truth = call.wide()
    return found + wrong_values(got, truth, allowed(call, got, wanted, truth))


def allowed(call, got, wanted, truth):
    """Beside the limits of wrong_values: twice PyTorch's own error at the element; where a sum cancels a product, 2 ulp of the product."""
    theirs = 2 * ulp_error(wanted, truth).nan_to_num(0.0, 0.0)
    if call.op in PRODUCTS and got.dtype.itemsize > 2:
        product = (torch.as_tensor(call.arguments[0]).cpu().double() * torch.as_tensor(call.arguments[1]).cpu().double()).abs()
        unit = torch.maximum(truth.abs(), torch.full_like(truth, torch.finfo(got.dtype).smallest_normal))
        theirs = torch.maximum(theirs, 4 + 4 * (product / unit).expand(truth.shape).nan_to_num(0.0, 0.0, 0.0))
    return torch.where(same_class(got, wanted).cpu(), float("inf"), theirs)


# How many samples each rule turns away, over all dtypes, in this PyTorch on the CPU. Another version may draw other samples.
COUNTED_IN = "2.13"
TURNED_AWAY = {
    "add": {NUMBERS: 20, COMPLEX: 6, ALPHA: 3},
    "sub": {NUMBERS: 18, COMPLEX: 6, ALPHA: 3},
    "rsub": {COMPLEX: 4, ALPHA: 3},
    "mul": {NUMBERS: 20, COMPLEX: 6},
    "div.no_rounding_mode": {NUMBERS: 20, COMPLEX: 4},
    "div.trunc_rounding": {NUMBERS: 18, ROUNDING: 1065},
    "div.floor_rounding": {NUMBERS: 18, ROUNDING: 1065},
    "true_divide": {NUMBERS: 20, COMPLEX: 4},
    "clamp_min": {BOOL: 101},
    "clamp_max": {BOOL: 101},
    "where": {COMPLEX: 26},
    "lerp": {COMPLEX: 4},
    "addcmul": {VALUE: 171, COMPLEX: 103},
    "sigmoid": {COMPLEX: 4},
    "tanh": {COMPLEX: 4},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "op"), EACH)
def test_samples(name, op, device):
    wrong, ran, away = [], Counter(), Counter()
    for dtype in dtypes_of(name, device):
        for kind in kinds(op, dtype, device):
            for call in calls(name, op, dtype, device, kind):
                if isinstance(call, Call):
                    ran[dtype] += 1
                    wrong += [f"{call}: {fault}" for fault in faults(call)]
                else:
                    away[call] += 1
    assert not wrong, "\n".join(wrong[:20])
    if device == "cpu" and torch.__version__.startswith(COUNTED_IN + "."):
        assert away == TURNED_AWAY.get(name, {})
    assert set(away) <= set(TURNED_AWAY.get(name, {}))
    if ROUNDING not in away:
        none = {torch.bool} if BOOL in away else set()
        assert set(ran) == {d for d in dtypes_of(name, device) if not d.is_complex} - none, "a dtype of which no sample ran"


def test_every_op_is_covered():
    assert {op for _, op in ADAPTERS} | {"gelu_tanh"} | WITHOUT == set(ops.table())
    assert set(TURNED_AWAY) <= {name for name, _ in ADAPTERS}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "op"), [each for each in EACH if "rounding" not in each.id or "no_" in each.id])
def test_gradients(name, op, device):
    """The gradient of each sample in float64 is PyTorch's own."""
    ran = 0
    for call in calls(name, op, torch.float64, device, "sample", requires_grad=True):
        inputs = [a for a in call.arguments if isinstance(a, torch.Tensor) and a.requires_grad] if isinstance(call, Call) else []
        if not inputs:
            continue
        mine, theirs = call.op(*call.arguments), call.peer()
        upstream = torch.randn(mine.shape, dtype=mine.dtype, generator=torch.Generator().manual_seed(ran)).to(device)
        got = torch.autograd.grad(mine, inputs, upstream, allow_unused=True)
        wanted = torch.autograd.grad(theirs, inputs, upstream, allow_unused=True)
        for mine, theirs in zip(got, wanted, strict=True):
            assert (mine is None) == (theirs is None), str(call)
            if theirs is not None:
                assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype), str(call)
                torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11, msg=lambda text, call=call: f"{call}: {text}")
        ran += 1
    assert ran


NUMBER, NO_NAME = "ours takes a number in a tensor's place", "ours has no such argument"
# PyTorch's error cases: what ours raises, or why it does not.
ERRORS = {
    "rsub": [NUMBER, NUMBERS],
    "maximum": [NUMBER, NUMBER, NUMBERS],
    "minimum": [NUMBER, NUMBER, NUMBERS],
    "max.binary": [NUMBER, NUMBER, NUMBERS],
    "min.binary": [NUMBER, NUMBER, NUMBERS],
    "clamp_min": [NUMBER, NUMBER, NUMBERS],
    "clamp_max": [NUMBER, NUMBER, NUMBERS],
    "nn.functional.gelu": [NO_NAME],
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "op"), EACH)
def test_error_inputs(name, op, device):
    found = []
    for error in error_inputs(name, device):
        call = adapted(INFOS[name], op, error.sample_input)
        if isinstance(call, Call):
            try:
                call.op(*call.arguments)
                numbers = any(not isinstance(a, torch.Tensor | None) for a in call.arguments)
                call = NO_NAME if error.sample_input.kwargs else NUMBER if numbers else f"taken: {call}"
            except ArgumentError:
                call = ArgumentError
        found.append(call)
    wanted = ERRORS.get(name, [])
    if device == "cuda" and name == "where":  # one tensor on another device than the rest, in each place
        wanted = [ArgumentError] * 6
    assert found == wanted


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "op"), [each for each in EACH if refused_dtypes(each.values[0], "cpu")])
def test_dtypes_that_are_refused(name, op, device):
    """Those that PyTorch's op does not take; the error names op, argument and dtype."""
    for dtype in refused_dtypes(name, device):
        if op in ("mul_add", "scale_bias", "div"):
            continue  # x * a + y of bools is PyTorch's own composition; a div without rounding_mode takes them
        call = next(c for c in calls(name, op, torch.float32, device, "sample") if isinstance(c, Call))
        arguments = [a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in call.arguments]
        with pytest.raises(ArgumentError, match=rf"^{call.op.name}: argument '\w+': got dtype {dtype}"):
            call.op(*arguments)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["mul_add", "scale_bias"])
def test_products_and_sums_of_bools(name, device):
    """bool * bool is `and`, bool + bool is `or`, as in PyTorch's operators."""
    x, a, y = torch.tensor([[p, q, r] for p in (0, 1) for q in (0, 1) for r in (0, 1)], dtype=torch.bool, device=device).unbind(1)
    for _ in range(2):
        assert torch.equal(ops.table()[name](x, a, y), x * a + y)
