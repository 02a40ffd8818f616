"""What cannot become an op is refused at decoration, or at the first call, with the file, the line and what to do."""

import inspect
import re
import textwrap

import pytest
import torch

import rafters
from rafters import BodyError, lang, tl

X = torch.ones(3)


def refuse(function, **options):
    """The text of the error; its line is checked against the line marked `here` in the function's source."""

    def decorate_and_call():
        op = rafters.elementwise(function, name="t_errors::" + re.sub(r"\W", "_", function.__qualname__), **options)
        op(*[X] * len(op.spec.tensors))

    with pytest.raises(BodyError) as caught:
        decorate_and_call()
    text = str(caught.value)
    lines, first = inspect.getsourcelines(function)
    marked = [first + i for i, line in enumerate(lines) if "# here" in line]
    assert f"{function.__name__} ({__file__}:{marked[0] if marked else first}): " in text, text
    return text


def test_lambda():
    with pytest.raises(BodyError, match="a lambda has no body that Triton can read; write the op with def"):
        rafters.elementwise(lambda x: x)


@pytest.mark.parametrize("thing", [3, len, torch.nn.ReLU(), "x * 2"])
def test_no_function(thing):
    with pytest.raises(BodyError, match=f"must be a Python function written with def, got {type(thing).__name__}"):
        rafters.elementwise(thing)


def test_no_tensor():
    def body(alpha: float):
        return alpha

    assert "an op needs at least one tensor parameter" in refuse(body)


def test_keyword_only():
    def body(x, *, alpha: float = 1.0):
        return x * alpha

    assert "parameter 'alpha' is keyword-only, which Triton cannot compile; drop the `*`" in refuse(body)


def test_starred():
    def body(x, *rest):
        return x

    assert "parameter *rest has no fixed place; name every parameter" in refuse(body)


def test_default_without_annotation():
    def body(x, alpha=0.5):
        return x * alpha

    assert "parameter 'alpha' has the default 0.5 but no annotation" in refuse(body)
    assert "(`alpha: float = 0.5`)" in refuse(body)


def test_annotation_not_understood():
    def body(x, names: list):
        return x

    assert "annotation <class 'list'> of 'names' is not understood" in refuse(body)


def test_annotation_that_cannot_be_resolved():
    def body(x, alpha: "flaot" = 1.0):  # noqa: F821
        return x * alpha

    assert "annotation 'flaot' of 'alpha' cannot be resolved: name 'flaot' is not defined" in refuse(body)


def test_default_of_another_type():
    def body(x, n: int = 1.5):
        return x * n

    assert "default 1.5 of 'n' is no int" in refuse(body)


def test_early_return():
    def body(x, flip: bool = False):
        if flip:
            return -x  # here
        return x

    assert "a return before the end: Triton compiles what follows as well; use if/else with one return" in refuse(body)


def test_no_return():
    def body(x):
        y = x * 2  # noqa: F841

    assert "a body must return the values of its outputs" in refuse(body)


def test_empty_return():
    def body(x):
        x * 2
        return  # here

    assert "this return has none" in refuse(body)


def test_returns_that_disagree():
    def body(x, two: bool = False):
        if two:
            return x, x
        else:  # noqa: RET505
            return x

    assert "its returns disagree on the number of outputs: [1, 2]" in refuse(body)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("y = yield x", "yield x)` cannot be compiled by Triton"),
        ("try:\n        y = x\n    except ValueError:\n        y = x", "`try:` cannot be compiled by Triton"),
        ("with open('f'):\n        y = x", "cannot be compiled by Triton"),
        ("y = (lambda z: z)(x)", "a function or class inside a body cannot be compiled; define it outside"),
        ("def inner(z):\n        return z\n    y = inner(x)", "a function or class inside a body cannot be compiled"),
        ("global X\n    y = x", "`global X` cannot be compiled by Triton"),
    ],
)
def test_statements_that_triton_has_not(statement, what, tmp_path, monkeypatch):
    (tmp_path / "refused.py").write_text(f"def body(x):\n    {statement}\n    return y\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "refused", raising=False)
    import refused

    with pytest.raises(BodyError, match=re.escape(what)) as caught:
        rafters.elementwise(refused.body)
    assert f"{tmp_path / 'refused.py'}:2" in str(caught.value)


def test_power():
    def body(x):
        y = x + 1
        return y**2  # here

    assert "Triton has no **; write x * x, or lang.exp(y * lang.log(x))" in refuse(body)


def test_tensor_decides_a_branch():
    def body(x):
        if x > 0:  # here
            y = x
        else:
            y = -x
        return y

    assert "a tensor decides no branch: every element has its own value; use tl.where(condition, a, b)" in refuse(body)


def test_conditional_expression_on_a_tensor():
    def body(x):
        return x if x > 0 else -x  # here

    assert "a tensor decides no branch" in refuse(body)


def test_scalar_decides_a_branch():
    def body(x, alpha: float = 1.0):
        return x if alpha > 0 else -x  # here

    assert "decides no branch" in refuse(body)


def test_unknown_function_of_tl():
    def body(x):
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)  # here

    assert "tl.inline_asm_elementwise cannot be traced; give the op a reference= made of torch operations" in refuse(body)


def test_reference_stands_in_for_what_cannot_be_traced():
    def body(x):
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1)

    op = rafters.elementwise(body, name="t_errors::with_reference", reference=lambda x: x * 1)
    assert op(X).tolist() == [1.0, 1.0, 1.0]


def test_reduction_in_an_elementwise_body():
    def body(x):
        return x / tl.sum(x, 0)  # here

    assert "tl.sum over a tile has no meaning in a body; in @rafters.rowwise use lang.row_sum" in refuse(body)


def test_builtin_that_triton_has_not():
    def body(x):
        return abs(x)  # here

    assert "tl.abs" in refuse(body)


def test_unknown_word_of_lang():
    def body(x):
        return lang.swoosh(x)  # here

    assert "no word 'swoosh'" in refuse(body)


def test_unpacking():
    def body(x):
        a, b = x  # here
        return a + b

    assert "a tensor of a body cannot be unpacked" in refuse(body)


def test_integer_division_of_floats():
    def body(x):
        return x // 2.0  # here

    assert "use tl.floor(x / y)" in refuse(body)


def test_undefined_name():
    def body(x):
        return x * undefined_constant  # noqa: F821  # here

    assert "undefined_constant" in refuse(body)


def test_source_that_cannot_be_read():
    space = {}
    exec("def body(x):\n    return x\n", space)
    with pytest.raises(BodyError, match="body: its source cannot be read, and Triton compiles source"):
        rafters.elementwise(space["body"])


def test_options_that_do_not_fit():
    def body(x):
        return x

    for options, text in [
        ({"out_dtype": "flaot"}, "out_dtype='flaot' is neither"),
        ({"out_dtype": (None, None)}, "out_dtype= has 2 entries, the body returns 1 values"),
        ({"outputs": (rafters.Output(), rafters.Output())}, "outputs= declares 2 outputs, the body returns 1"),
        ({"views": {"y": rafters.View("x")}}, "views name 'y', which is no tensor parameter of the body (x)"),
        ({"name": "3x"}, "'3x' is no identifier"),
        ({"name": "a b::c"}, "'a b' is no identifier"),
    ]:
        with pytest.raises(BodyError, match=re.escape(text)):
            rafters.elementwise(body, **{"name": "t_errors::options", **options})


def test_view_of_an_unknown_part():
    with pytest.raises(ValueError, match="View part 'left' is not one of lo, hi, even, odd"):
        rafters.View("x", "left")


def test_unknown_accepts():
    def body(x):
        return x

    with pytest.raises(BodyError, match="accepts"):
        rafters.elementwise(body, name="t_errors::accepts", accepts="floats")


def test_error_in_a_helper_names_the_helpers_line(tmp_path, monkeypatch):
    text = """
        from rafters import lang

        def helper(x):
            return x ** 3

        def body(x):
            return helper(x) + 1
    """
    (tmp_path / "with_helper.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(tmp_path)
    import with_helper

    with pytest.raises(BodyError, match=r"with_helper.py:5\): Triton has no \*\*"):
        rafters.elementwise(with_helper.body, name="t_errors::with_helper")(X)
