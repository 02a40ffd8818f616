"""Small ops that between them need every layout, every kind of operand and every kind of output."""

import rafters
from rafters import Output, View, lang, tl


@rafters.elementwise(name="t_engine::muladd")
def muladd(x, y, alpha: float = 1.0):
    return x * y + alpha


@rafters.elementwise(name="t_engine::both")
def both(x, y):
    return x + y, tl.where(x > y, x, y)


@rafters.elementwise(name="t_engine::three")
def three(x, y, z):
    return x * y + z


@rafters.elementwise(name="t_engine::gated", views={"gate": View("x", "lo"), "up": View("x", "hi")})
def gated(gate, up):
    return gate * lang.sigmoid(gate) * up


@rafters.elementwise(name="t_engine::interleaved", views={"a": View("x", "even"), "b": View("x", "odd")})
def interleaved(a, b):
    return a - b


@rafters.elementwise(name="t_engine::halves_out", outputs=(Output(part="lo"), Output(part="hi")))
def halves_out(x, y):
    return x + y, x - y


@rafters.elementwise(name="t_engine::gathered", views={"row": View("table", rows="positions")})
def gathered(x, row):
    return x + row


@rafters.elementwise(
    name="t_engine::rope_",
    views={
        "x1": View("x", "lo"),
        "x2": View("x", "hi"),
        "cos": View("table", "lo", "positions"),
        "sin": View("table", "hi", "positions"),
    },
    outputs=(Output(into="x", part="lo"), Output(into="x", part="hi")),
)
def rope_(x1, x2, cos, sin):
    return x1 * cos - x2 * sin, x2 * cos + x1 * sin


@rafters.elementwise(name="t_engine::scatter_", outputs=(Output(into="cache", rows="slots"),))
def scatter_(x):
    return x * 2


@rafters.rowwise(name="t_engine::norm")
def norm(x, weight, eps: float = 1e-6):
    return x * lang.rsqrt(lang.row_mean(x * x) + eps) * weight


@rafters.rowwise(name="t_engine::shares", outputs=(Output(), Output(per_row=True), Output(per_row=True)))
def shares(x):
    peak = lang.row_max(x)
    e = lang.exp(x - peak)
    return lang.div(e, lang.row_sum(e)), peak, lang.row_min(x)


@rafters.elementwise(name="t_engine::sums", outputs=(Output("x", sum_to="x"), Output("w", sum_to="w")))
def sums(x, gradient, w):
    return gradient * w, gradient * x


@rafters.rowwise(
    name="t_engine::row_sums",
    outputs=(Output("x", sum_to="x"), Output("w", sum_to="w"), Output("s", sum_to="s"), Output(per_row=True)),
)
def row_sums(gradient, x, w, s):
    total = lang.row_sum(gradient * x * w)
    return gradient * w - lang.div(total, lang.row_length(x)), gradient * x * s, gradient * x * w, total


@rafters.elementwise(name="t_engine::sums_two", outputs=(Output("a", sum_to="a"), Output(), Output("b", sum_to="b")))
def sums_two(x, a, b):
    return x * b, a * b, x * a
