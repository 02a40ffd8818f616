"""In which arguments a body is linear, against the definition: f(sums of parts) = sum of f(parts)."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rafters
from rafters import lang, tl
from rafters.operator.traced import traced_form
from rafters.trace.linear import FREE, LINEAR, ZERO


@rafters.elementwise(name="t_linear::affine")
def affine(x, y):
    return 2.0 * x + y - 1.0


@rafters.elementwise(name="t_linear::chosen")
def chosen(x, y, mask):
    return tl.where(mask > 0, -x, 0.0), tl.where(mask > 0, x, y), tl.where(x > 0, x, 0.0), mask + 1.0


@rafters.elementwise(name="t_linear::quotients")
def quotients(x, y):
    return x / 4.0, x / y, 4.0 / x, lang.div(x, lang.exp(y))


@rafters.elementwise(name="t_linear::lerped")
def lerped(x, y, w):
    return lang.lerp(x, y, w), lang.fma(x, w, y), x.to(tl.float64) * 3.0


@rafters.elementwise(name="t_linear::stepped")
def stepped(x):
    return x.to(tl.int32).to(tl.float32), tl.abs(x), x * x, lang.maximum(x, 0.0)


@rafters.elementwise(name="t_linear::powers")
def powers(x, K: tl.constexpr = 1):
    return x * x if K == 2 else x * 1.5


@rafters.rowwise(name="t_linear::centred")
def centred(x, w):
    return (x - lang.row_mean(x)) * w, lang.row_sum(x * w), lang.row_max(x)


# op, compile-time values: the sets of arguments in which every output is linear or of which it is independent, and which it is
SETS = {
    (rafters.add, ()): {"x y": (LINEAR,)},
    (rafters.sub, ()): {"x y": (LINEAR,)},
    (rafters.mul, ()): {"x": (LINEAR,), "y": (LINEAR,)},
    (rafters.div, ()): {"x": (LINEAR,)},
    (rafters.scale_bias, ()): {"x b": (LINEAR,), "s b": (LINEAR,)},
    (rafters.lerp, ()): {"start end": (LINEAR,)},
    (rafters.where, ()): {"x y": (LINEAR,)},
    (rafters.silu, ()): {},
    (rafters.relu, ()): {},
    (rafters.maximum, ()): {},
    (rafters.silu_mul, ()): {"up": (LINEAR,)},
    (affine, ()): {},
    (powers, (1,)): {"x": (LINEAR,)},
    (powers, (2,)): {},
}
# op, arguments: each output. None is neither linear nor independent.
OUTPUTS = {
    (chosen, "x"): (LINEAR, None, None, FREE),
    (chosen, "x y"): (LINEAR, LINEAR, None, FREE),
    (quotients, "x"): (LINEAR, LINEAR, None, LINEAR),
    (quotients, "y"): (FREE, None, FREE, None),
    (lerped, "x"): (None, None, LINEAR),
    (lerped, "x y"): (LINEAR, LINEAR, LINEAR),
    (lerped, "w"): (None, None, FREE),
    (stepped, "x"): (None, None, None, None),
    (centred, "x"): (LINEAR, LINEAR, None),
    (centred, "w"): (LINEAR, LINEAR, FREE),
}


def arguments(op, constants=(), seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = {}
    for p in op.spec.parameters:
        if p in op.spec.tensors:
            made = torch.randn(4, 6, generator=generator, dtype=torch.float64)
            values[p.name] = made > 0 if op.spec.accepts.get(p.name) == "bool" else made
    return values | dict(zip((p.name for p in op.spec.constexprs), constants, strict=True))


def subsets(names):
    return (set(some) for size in range(1, len(names) + 1) for some in combinations(names, size))


@pytest.mark.parametrize(("op", "constants"), SETS, ids=str)
def test_the_linear_sets_of(op, constants):
    values = arguments(op, constants)
    states = {frozenset(some): op.form.linear_in(values, some) for some in subsets([p.name for p in op.spec.tensors])}
    wanted = {frozenset(names.split()): kinds for names, kinds in SETS[op, constants].items()}
    assert {some: kinds for some, kinds in states.items() if None not in kinds} == wanted


@pytest.mark.parametrize(("op", "names"), OUTPUTS, ids=str)
def test_each_output_of(op, names):
    assert op.form.linear_in(arguments(op), set(names.split())) == OUTPUTS[op, names]


@pytest.mark.parametrize("op", dict.fromkeys([op for op, _ in (*SETS, *OUTPUTS) if op is not powers]), ids=str)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_what_is_called_linear_adds_up(op, seed):
    one, other = arguments(op, seed=seed), arguments(op, seed=seed + 1)
    for some in subsets([name for name, value in one.items() if value.dtype.is_floating_point]):
        apart = [traced_form(op.spec, one | {name: part[name] for name in some}) for part in (one, other)]
        together = traced_form(op.spec, one | {name: one[name] + other[name] for name in some})
        for state, a, b, c in zip(op.form.linear_in(one, some), *apart, together, strict=True):
            if state == LINEAR:
                torch.testing.assert_close(a + b, c, rtol=1e-9, atol=1e-9)
            elif state in (FREE, ZERO):
                assert torch.equal(a, c)


def test_an_untraced_body_is_linear_in_nothing():
    @rafters.elementwise(name="t_linear::untraced", reference=lambda x: x * 2)
    def untraced(x):
        return x * 2.0

    assert untraced.form.linear_in(arguments(untraced), {"x"}) == (None,)
