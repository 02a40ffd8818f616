"""First, second, forward-mode and batched derivatives of every op and every word of the language, against finite differences."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import rafters
from rafters import Output, View, lang, ops, tl
from rafters.testing import dtypes_of

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
TABLE = {name: op for name, op in ops.table().items() if torch.float64 in dtypes_of(op)}
# Shapes of the arguments in turn; an op with more arguments goes on with the last, one with fewer stops.
PATTERNS = {
    "same": ((2, 3), (2, 3), (2, 3)),
    "0-d second": ((2, 3), (), (2, 3)),
    "0-d first": ((), (2, 3), ()),
    "vector of the last dimension": ((2, 3), (3,), (3,)),
    "vector first": ((3,), (2, 3), (3,)),
    "one value a row": ((2, 3), (2, 1), (2, 3)),
    "leading dimension": ((2, 2, 3), (2, 1, 1), (1, 2, 1)),
    "one row": ((1, 3), (2, 3), (1, 3)),
    "both ways": ((3, 1), (2, 1, 4), (3, 4)),
    "no dimension twice": ((2, 1, 1), (3, 1), (4,)),
    "0-d": ((), (), ()),
    "one element": ((1,), (1, 1), ()),
}
ON_A_GPU = ("same", "vector of the last dimension", "one value a row", "both ways", "0-d second")
STRIDED = {
    "transposed": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "every other": lambda x: torch.stack((x, x), -1)[..., 0],
    "expanded": lambda x: x[..., :1].expand(x.shape) if x.dim() else x,
    "offset": lambda x: torch.cat((x.flatten()[:1], x.flatten()))[1:].view(x.shape),
}


def value(shape, seed, device="cpu"):
    """From 0.5 to 1.5 with either sign: no zero divisor, and no two close to each other where an op has a kink."""
    generator = torch.Generator().manual_seed(seed)
    magnitude = 0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)
    made = torch.where(torch.rand(shape, generator=generator) < 0.5, -magnitude, magnitude)
    return made.to(device)


def arguments(op, shapes, device="cpu", view=lambda x: x):
    """Leaves of float64 for the tensors, a mask for a condition, numbers for scalars."""
    made, shapes = [], itertools.chain(shapes, itertools.repeat(shapes[-1]))
    for number, parameter in enumerate(op.spec.parameters):
        if parameter.kind != "tensor":
            made.append(1.5 if parameter.default is ... else parameter.default)
            continue
        drawn = value(next(shapes), number + 1, device)
        mask = op.spec.accepts.get(parameter.name) == "bool"
        made.append(drawn > 0 if mask else view(drawn).detach().requires_grad_())
    return made


def of_inputs(op, values):
    """The op as a function of its differentiable arguments alone, and those."""
    places = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor) and v.requires_grad]

    def call(*inputs):
        given = list(values)
        for i, new in zip(places, inputs, strict=True):
            given[i] = new
        return op(*given)

    return call, [values[i] for i in places]


def first(op, values, **options):
    call, inputs = of_inputs(op, values)
    return gradcheck(call, inputs, **options)


def second(op, values):
    call, inputs = of_inputs(op, values)
    return gradgradcheck(call, inputs, fast_mode=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TABLE)
def test_every_broadcast(name, device):
    for pattern, shapes in PATTERNS.items():
        if device == "cpu" or pattern in ON_A_GPU:
            assert first(TABLE[name], arguments(TABLE[name], shapes, device)), pattern


@pytest.mark.parametrize("name", TABLE)
def test_forward_mode_and_batched(name):
    """Under vmap the cotangents come in a batch; gradcheck compares with one at a time."""
    for pattern in ("same", "both ways"):
        values = arguments(TABLE[name], PATTERNS[pattern])
        assert first(TABLE[name], values, check_forward_ad=True, check_backward_ad=False), pattern
        assert first(TABLE[name], values, check_batched_grad=True, fast_mode=True), pattern


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TABLE)
def test_second_derivatives(name, device):
    for pattern in ("same", "vector of the last dimension", "both ways", "0-d second"):
        assert second(TABLE[name], arguments(TABLE[name], PATTERNS[pattern], device)), pattern


COTANGENTS = {
    "of a sum": lambda shape, device: torch.full((), 0.7, dtype=torch.float64, device=device).expand(shape),
    "of a concatenation": lambda shape, device: value((*shape, 3), 9, device)[..., 1],
    "transposed": lambda shape, device: value(shape[::-1], 9, device).permute(*reversed(range(len(shape)))),
    "one value a row": lambda shape, device: value((*shape[:-1], 1), 9, device).expand(shape),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TABLE)
def test_strides(name, device):
    """Strided and stride-0 inputs and cotangents give what contiguous ones give."""
    for view, pattern, cotangent in itertools.product(STRIDED, ("same", "one value a row"), COTANGENTS):
        if device == "cuda" and (view, cotangent) not in zip(STRIDED, COTANGENTS, strict=True):
            continue
        values = arguments(TABLE[name], PATTERNS[pattern], device, STRIDED[view])
        dense = [
            v.detach().clone(memory_format=torch.contiguous_format).requires_grad_(v.requires_grad)
            if isinstance(v, torch.Tensor)
            else v
            for v in values
        ]
        upstream = COTANGENTS[cotangent](tuple(TABLE[name](*values).shape), device)
        got, wanted = (
            torch.autograd.grad(TABLE[name](*given), [v for v in given if isinstance(v, torch.Tensor) and v.requires_grad], up)
            for given, up in ((values, upstream), (dense, upstream.contiguous()))
        )
        torch.testing.assert_close(got, wanted, rtol=1e-13, atol=1e-13, msg=lambda text, at=(view, cotangent): f"{at}: {text}")


# -- ops that the library has no like of -------------------------------------------------------------------------------------------


@rafters.elementwise(name="t_gradients::two")
def two(x, y, alpha: float = 0.75):
    """Two outputs that need both arguments, and a scalar."""
    return x * y * alpha, x + lang.tanh(y)


@rafters.elementwise(name="t_gradients::powers")
def powers(x, n: int = 3, K: tl.constexpr = 2):
    return x * x * n + K * x


@rafters.elementwise(name="t_gradients::absent")
def absent(x, y=None):
    if y is None:
        return lang.exp(x)
    else:  # noqa: RET505 (Triton compiles what follows a return)
        return lang.exp(x) * y


@rafters.elementwise(name="t_gradients::packed", views={"gate": View("x", part="lo"), "up": View("x", part="hi")})
def packed(gate, up):
    return gate * lang.sigmoid(gate) * up


@rafters.elementwise(
    name="t_gradients::interleaved",
    views={"even": View("x", part="even"), "odd": View("x", part="odd")},
    outputs=(Output(part="even"), Output(part="odd")),
)
def interleaved(even, odd, angle):
    return even * lang.cos(angle) - odd * lang.sin(angle), odd * lang.cos(angle) + even * lang.sin(angle)


@rafters.rowwise(name="t_gradients::rms_norm")
def rms_norm(x, weight, eps: float = 1e-6):
    return x * lang.rsqrt(lang.row_mean(x * x) + eps) * weight


@rafters.rowwise(name="t_gradients::softmax")
def softmax(x):
    e = lang.exp(x - lang.row_max(x))
    return lang.div(e, lang.row_sum(e))


@rafters.rowwise(name="t_gradients::peaks", outputs=(Output("x", per_row=True), Output("x")))
def peaks(x):
    return lang.row_absmax(x), x * lang.row_min(x)


AUTHORED = {
    "two": (two, ((2, 3), (3,))),
    "two, broadcast both ways": (two, ((3, 1), (2, 1, 4))),
    "powers": (powers, ((2, 3),)),
    "absent": (absent, ((2, 3), (3,))),
    "packed": (packed, ((2, 4),)),
    "interleaved": (interleaved, ((2, 4), (2,))),
    "interleaved, a value each": (interleaved, ((2, 4), (2, 2))),
    "rms_norm": (rms_norm, ((2, 3), (3,))),
    "rms_norm of one row's weights": (rms_norm, ((2, 2, 3), (1, 1, 3))),
    "softmax": (softmax, ((2, 3),)),
    "peaks": (peaks, ((2, 3),)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", AUTHORED)
def test_authored(name, device):
    op, shapes = AUTHORED[name]
    values = arguments(op, shapes, device)
    if name == "absent":
        assert first(op, [values[0], None])
    assert first(op, values, check_forward_ad=device == "cpu", check_batched_grad=device == "cpu")
    assert second(op, values)


# -- every word ---------------------------------------------------------------------------------------------------------------------

ONE = {
    **{
        w: getattr(lang, w)
        for w in ("exp", "exp2", "expm1", "erf", "erfc", "ndtr", "sigmoid", "tanh", "sin", "cos", "abs", "relu")
    },
    **{f"tl.{w}": getattr(tl, w) for w in ("exp", "exp2", "erf", "sigmoid", "sin", "cos", "abs")},
}
POSITIVE = {
    **{w: getattr(lang, w) for w in ("log", "log2", "log1p", "sqrt", "rsqrt")},
    **{f"tl.{w}": getattr(tl, w) for w in ("log", "log2", "sqrt", "rsqrt")},
}
STEPS = {**{w: getattr(lang, w) for w in ("floor", "ceil", "rint")}, "tl.floor": tl.floor, "tl.ceil": tl.ceil}
TWO = {
    **{w: getattr(lang, w) for w in ("add", "div", "div_by", "maximum", "minimum")},
    **{f"tl.{w}": getattr(tl, w) for w in ("maximum", "minimum")},
}
ROWS = {w: getattr(lang, w) for w in ("row_sum", "row_mean", "row_max", "row_min", "row_absmax")}


def of_one(word):
    def body(x):
        return word(x)

    return body


def of_two(word):
    def body(x, y):
        return word(x, y)

    return body


def of_row(word):
    def body(x):
        return x * word(x * x * x)

    return body


def authored(label, make, word):
    decorate = rafters.rowwise if make is of_row else rafters.elementwise
    return decorate(name=f"t_gradients::word_{label.replace('.', '_')}")(make(word))


WORDS = [
    *[pytest.param(of_one, label, id=label) for label in (*ONE, *POSITIVE)],
    *[pytest.param(of_two, label, id=label) for label in TWO],
    *[pytest.param(of_row, label, id=label) for label in ROWS],
]
BY_NAME = {**ONE, **POSITIVE, **TWO, **ROWS, **STEPS}


@pytest.mark.parametrize(("make", "label"), WORDS)
def test_every_word(make, label):
    op = authored(label, make, BY_NAME[label])
    values = [(v.detach().abs() if label in POSITIVE else v.detach()).requires_grad_() for v in arguments(op, ((2, 3), (3,)))]
    assert first(op, values, check_forward_ad=True)
    assert second(op, values)


@pytest.mark.parametrize("label", STEPS)
def test_steps_are_flat(label):
    """As in PyTorch, the derivative of a step is 0."""
    op, x = authored(label, of_one, STEPS[label]), value((2, 3), 1).requires_grad_()
    assert torch.autograd.grad(op(x).sum(), x)[0].tolist() == [[0.0] * 3] * 2


@rafters.elementwise(name="t_gradients::three")
def three(x, y, z):
    return lang.fma(x, y, z) + lang.lerp(x, y, z) + tl.fma(z, x, y)


@rafters.elementwise(name="t_gradients::branches")
def branches(x, y):
    return tl.where(x > y, lang.exp(x) * y, lang.where(y, x * x, y)) + lang.clamp(x, -1.0, y * y + 1)


@rafters.elementwise(name="t_gradients::quotients")
def quotients(x, y, z):
    return (x % y) * z + x / y - z / (x * x + 1.0) + 2.0 / y


@pytest.mark.parametrize("op", [three, branches, quotients], ids=lambda op: op.name)
def test_words_of_three(op):
    for pattern in ("same", "both ways"):
        values = arguments(op, PATTERNS[pattern])
        assert first(op, values, check_forward_ad=True)
        assert second(op, values)
