"""`backward=`: a gradient of the author's own, as an op or as a function of torch operations."""

import pytest
import torch

import rafters
from rafters import Output, lang


@rafters.elementwise(name="t_own::swish_backward", outputs=(Output("x", sum_to="x"), Output("gate", sum_to="gate")))
def swish_backward(grad_out, x, gate):
    s = lang.sigmoid(gate)
    return grad_out * gate * s, grad_out * x * (s + gate * s * (1 - s))


@rafters.elementwise(name="t_own::swish", backward=swish_backward)
def swish(x, gate):
    return x * gate * lang.sigmoid(gate)


calls = []


def straight_through(grad_out):
    calls.append(tuple(grad_out.shape))
    return grad_out


@rafters.elementwise(name="t_own::rounded", accepts="float", backward=straight_through)
def rounded(x):
    """x at the nearest integer, with the gradient of x."""
    return lang.rint(x)


def leaf(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def test_an_op_is_the_gradient_of_another():
    assert torch.autograd.gradcheck(swish, (leaf(3, 4), leaf(4)))
    assert torch.autograd.gradgradcheck(swish, (leaf(3, 4), leaf(4)))


@pytest.mark.parametrize("transform", [False, True], ids=["autograd", "torch.func"])
def test_a_function_may_say_what_no_derivative_would(transform):
    x = torch.tensor([0.4, 1.6])
    if transform:
        got = torch.func.grad(lambda v: (rounded(v) * torch.tensor([1.0, 2.0])).sum())(x)
    else:
        got = torch.autograd.grad((rounded(x.requires_grad_()) * torch.tensor([1.0, 2.0])).sum(), x)[0]
    assert got.tolist() == [1.0, 2.0]


def test_under_vmap_and_grad():
    x = torch.randn(5, 3)
    got = torch.func.vmap(torch.func.grad(lambda v: (rounded(v) * v.detach()).sum()))(x)
    assert torch.equal(got, x)


def test_forward_mode_is_an_error_not_zeros():
    x = torch.randn(3)
    with pytest.raises(RuntimeError):
        torch.func.jvp(rounded, (x,), (torch.ones(3),))


def test_inputs_that_it_does_not_take_are_not_saved():
    x = torch.randn(4, requires_grad=True)
    assert all(t is None for t in rounded(x).grad_fn.saved_tensors)


def test_a_result_without_a_gradient_gives_zeros():
    @rafters.elementwise(name="t_own::two", backward=lambda grad_out0, grad_out1: grad_out0 + 10 * grad_out1)
    def two(x):
        return x, x

    x = torch.randn(3, requires_grad=True)
    assert torch.autograd.grad(two(x)[1].sum(), x)[0].tolist() == [10.0] * 3


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        (lambda grad_out, x, y: grad_out, "wrong: backward= returned 1 gradients, wanted 2 .x, y."),
        (
            lambda grad_out, x, y: (grad_out, grad_out),
            "wrong: backward= returned for 'y' a gradient of shape .3, 4., torch.float32; wanted .4,.",
        ),
        (lambda grad_out, x, y: (grad_out.double(), None), "wrong: backward= returned for 'x' .*torch.float64; wanted"),
    ],
    ids=["too few", "a broadcast one not summed", "another dtype"],
)
def test_a_wrong_gradient_is_an_error(backward, message):
    def wrong(x, y):
        return x + y

    op = rafters.elementwise(wrong, name="t_own::wrong", backward=backward)
    with pytest.raises(rafters.RaftersError, match=message):
        op(torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)).sum().backward()


def test_an_unknown_parameter_is_an_error_at_once():
    def wrong_name(x):
        return x

    with pytest.raises(rafters.BodyError, match="backward= has a parameter 'dy'; known are grad_out, x"):
        rafters.elementwise(wrong_name, name="t_own::wrong_name", backward=lambda dy: dy)
