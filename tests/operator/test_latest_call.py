"""The latest plan is known by PyTorch's tensor guard: what that sees of a call, and what is asked beside it."""

import pytest
import torch

import rafters
from rafters.operator.calls import gate

X, Y = torch.randn(4, 6), torch.randn(4, 6)


@rafters.elementwise(name="t_latest::power")
def power(x, k: int, scale: float = 1.0):
    return x * k * scale


needs_guards = pytest.mark.skipif(gate.GUARDS is None, reason="this PyTorch has no tensor guards that are known to work")


def settled(op, *arguments):
    """Calls until the op's latest entry is that of such calls."""
    for _ in range(3):
        op(*arguments)
    return op._plans.last


@needs_guards
def test_the_latest_call_is_known_by_its_own_check():
    entry = settled(rafters.sub, X, Y)
    assert entry.check(X, Y)
    assert entry.check(Y, X)
    for others in ((X[:3], Y), (X, Y.double()), (X.t(), Y), (torch.nn.Parameter(X), Y), (X.clone().requires_grad_(), Y)):
        assert not entry.check(*others)


def test_a_parameter_that_was_used_without_gradients_has_one_with_them():
    """The check compares `requires_grad`, not whether gradients are on."""
    weight = torch.nn.Parameter(torch.randn(6))
    with torch.no_grad():
        for _ in range(3):
            assert not rafters.sub(X, weight).requires_grad
    for _ in range(3):
        made = rafters.sub(X, weight)
        assert made.requires_grad
    made.sum().backward()
    assert torch.equal(weight.grad, torch.full((6,), -4.0))
    with torch.inference_mode():
        for _ in range(3):
            assert rafters.sub(X, weight).is_inference()


@needs_guards
def test_the_check_sees_modes_and_transforms():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    entry = settled(rafters.sub, X, Y)
    with Mode():
        assert not entry.check(X, Y)
    answers = []
    torch.func.vmap(lambda a, b: (answers.append(entry.check(a, b)), a)[1])(X.expand(2, 4, 6), Y.expand(2, 4, 6))
    assert answers == [False]
    z = torch.zeros(4, 6, dtype=torch.complex64)
    entry = settled(rafters.sub, z.imag, z.imag)
    assert not entry.check(z.conj().imag, z.imag)


def test_what_the_check_does_not_see_is_asked():
    """Function modes, forward-mode levels, addresses, scalars of another type, calls with out=."""
    from torch.autograd import forward_ad
    from torch.overrides import TorchFunctionMode

    x, y = torch.randn(6), torch.randn(6)
    settled(rafters.mul, x, y)
    with forward_ad.dual_level():
        made = rafters.mul(forward_ad.make_dual(x, torch.ones(6)), y)
        assert torch.equal(forward_ad.unpack_dual(made).tangent, y)

    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        rafters.mul(x, y)
    assert seen
    settled(power, x, 2, 0.5)
    assert torch.equal(power(x, 2**40, 0.5), x * 2**40 * 0.5)
    with pytest.raises(rafters.ArgumentError, match="argument 'k'"):
        power(x, 2.5, 0.5)
    out = torch.empty(6)
    assert rafters.mul(x, y, out=out) is out


def test_without_guards_calls_are_found_by_their_key(run_python):
    run_python("""
import torch
del torch._C._dynamo.guards.TensorGuards
import rafters
from rafters.operator.calls import gate
assert gate.GUARDS is None
x = torch.randn(3, 4)
for _ in range(3):
    assert torch.equal(rafters.add(x, x), x + x)
assert rafters.add._plans.get(rafters.add._key(x, x)) is not None
""")


def test_registered_calls_ask_too():
    """The same through torch.ops, where the dispatcher has not asked yet."""
    from torch.autograd import forward_ad

    op, x = torch.ops.rafters.sub, X.clone()
    for _ in range(3):
        assert torch.equal(op(x, Y), X - Y)
    assert op(x.requires_grad_(), Y).requires_grad
    with torch.no_grad():
        for _ in range(3):
            assert not op(x, Y).requires_grad
    assert op(x, Y).requires_grad
    with forward_ad.dual_level():
        made = op(forward_ad.make_dual(X, torch.ones(4, 6)), Y)
        assert torch.equal(forward_ad.unpack_dual(made).tangent, torch.ones(4, 6))
    assert torch.equal(torch.func.vmap(op)(X, Y), X - Y)
    with torch.inference_mode():
        for _ in range(3):
            assert torch.equal(op(X, Y), X - Y)
    z = torch.zeros(4, 6, dtype=torch.complex64) + 1j
    for _ in range(3):
        assert torch.equal(op(z.imag, z.imag), torch.zeros(4, 6))
        assert torch.equal(op(z.conj().imag, z.imag), torch.full((4, 6), -2.0))


def test_the_latest_call_with_out():
    out = torch.empty(4, 6)
    for _ in range(4):
        assert rafters.sub(X, Y, out=out) is out
    assert torch.equal(out, X - Y)
    turned = torch.empty(6, 4).t()
    assert torch.equal(rafters.sub(X, Y, out=turned), X - Y)
    with pytest.raises(rafters.ArgumentError, match="shape"):
        rafters.sub(X, Y, out=torch.empty(6))
    with pytest.raises(rafters.RaftersError, match="autograd"):
        rafters.sub(X, Y, out=torch.empty(4, 6, requires_grad=True))
    with pytest.raises(rafters.RaftersError, match="autograd"):
        rafters.sub(X.clone().requires_grad_(), Y, out=out)
    base = torch.zeros(100)
    for _ in range(4):
        rafters.sub(base[:24].view(4, 6), Y, out=base[32:56].view(4, 6))
    with pytest.raises(rafters.ArgumentError, match="overlaps"):
        rafters.sub(base[:24].view(4, 6), Y, out=base[4:28].view(4, 6))
