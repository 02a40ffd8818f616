"""Where a body may live and what it may mention; the trace and the compiled kernel see the same."""

import importlib.util
import linecache
import sys
import textwrap

import pytest
import torch

import rafters
from rafters.testing.kernels import prepare

X = torch.tensor([1.0, 2.0, -3.0])
BODIES = {
    "module constant": ("SCALE = 3.0\n\ndef body(x):\n    return x * SCALE", [3.0, 6.0, -9.0]),
    "integer constant": ("SHIFT = 2\n\ndef body(x):\n    return x + SHIFT", [3.0, 4.0, -1.0]),
    "bool constant": (
        "FLIP = True\n\n"
        "def body(x):\n    if FLIP:\n        y = -x\n    else:\n        y = x\n    return y",
        [-1.0, -2.0, 3.0],
    ),
    "constexpr global": ("SCALE = tl.constexpr(3.0)\n\ndef body(x):\n    return x * SCALE", [3.0, 6.0, -9.0]),
    "value of a constexpr": ("N = tl.constexpr(3)\n\ndef body(x):\n    return x * N.value", [3.0, 6.0, -9.0]),
    "annotated constexpr": ("N: tl.constexpr = tl.constexpr(3)\n\ndef body(x):\n    return x * N", [3.0, 6.0, -9.0]),
    "closure": (
        "def make(scale):\n    def body(x):\n        return x * scale\n    return body\n\n"
        "body = make(3.0)",
        [3.0, 6.0, -9.0],
    ),
    "plain helper": ("def square(x):\n    return x * x\n\ndef body(x):\n    return square(x) + 1", [2.0, 5.0, 10.0]),
    "helper of a helper": (
        "K = 2.0\n\ndef inner(x):\n    return x * K\n\ndef outer(x):\n    return inner(x) + 1\n\ndef body(x):\n    return outer(x)",
        [3.0, 5.0, -5.0],
    ),
    "helper with a default": (
        "def power(x, k=2.0):\n    return x * k\n\n"
        "def body(x):\n    return power(x) + power(x, 3.0)",
        [5.0, 10.0, -15.0],
    ),
    "helper with two results": (
        "def both(x):\n    return x + 1, x - 1\n\n"
        "def body(x):\n    a, b = both(x)\n    return a * b",
        [0.0, 3.0, 8.0],
    ),
    "helper with a word": (
        "def positive(x):\n    return lang.maximum(x, 0.0)\n\n"
        "def body(x):\n    return positive(x)",
        [1.0, 2.0, 0.0],
    ),
    "helper in a closure": (
        "def make(inner):\n    def body(x):\n        return inner(x) * 2\n    return body\n\n"
        "def one(x):\n    return x + 1\n\nbody = make(one)",
        [4.0, 6.0, -4.0],
    ),
    "another name for tl": ("import triton.language as T\n\ndef body(x):\n    return T.maximum(x, 0.0)", [1.0, 2.0, 0.0]),
    "a function of tl": ("from triton.language import maximum\n\ndef body(x):\n    return maximum(x, 0.0)", [1.0, 2.0, 0.0]),
    "a word by name": ("from rafters.lang import maximum\n\ndef body(x):\n    return maximum(x, 0.0)", [1.0, 2.0, 0.0]),
    "rafters itself": ("import rafters\n\ndef body(x):\n    return rafters.lang.maximum(x, 0.0)", [1.0, 2.0, 0.0]),
    "tl of rafters": ("import rafters\n\ndef body(x):\n    return rafters.tl.where(x > 0, x, 0.0)", [1.0, 2.0, 0.0]),
    "lang by another name": (
        "from rafters import lang as words\n\n"
        "def body(x):\n    return words.maximum(x, 0.0)",
        [1.0, 2.0, 0.0],
    ),
    "jitted helper": (
        "import triton\n\n"
        "@triton.jit\ndef square(x):\n    return x * x\n\ndef body(x):\n    return square(x)",
        [1.0, 4.0, 9.0],
    ),
    "jitted body": ("import triton\n\n@triton.jit\ndef body(x):\n    return x * 3", [3.0, 6.0, -9.0]),
    "libdevice": (
        "from triton.language.extra import libdevice\n\n"
        "def body(x):\n    return libdevice.trunc(x * 0.5)",
        [0.0, 1.0, -1.0],
    ),
    "string annotations": (
        "from __future__ import annotations\n\ndef body(x: torch.Tensor, k: float = 3.0, flip: bool = False, N: tl.constexpr = 1):\n"
        "    return x * k * N",
        [3.0, 6.0, -9.0],
    ),
    "a union with None": (
        "def body(x, y: torch.Tensor | None = None):\n"
        "    if y is None:\n        z = x * 3\n    else:\n        z = x * y\n    return z",
        [3.0, 6.0, -9.0],
    ),
    "docstring and comments": ('def body(x):\n    """Doc."""\n    # a comment\n    y = x * 3  # more\n    return y', [3.0, 6.0, -9.0]),
    "loop": ("def body(x):\n    y = x\n    for i in tl.static_range(2):\n        y = y + x\n    return y", [3.0, 6.0, -9.0]),
    "builtin names": ("def body(x):\n    return max(x, 0.0) - min(x, 0.0)", [1.0, 2.0, 3.0]),
    "shadowed name": ("exp = 3.0\n\ndef body(x):\n    return x * exp", [3.0, 6.0, -9.0]),
}  # fmt: skip
TRITON = {"another name for tl", "a function of tl", "jitted helper", "jitted body", "libdevice"}
HEAD = "import torch\nimport rafters\nfrom rafters import lang, tl\n\n"
FUTURE = "from __future__ import annotations\n"


def load(tmp_path, text, name):
    """A module with that text, from a file."""
    head = FUTURE + HEAD + text.removeprefix(FUTURE) if text.startswith(FUTURE) else HEAD + text
    file = tmp_path / f"{name}.py"
    file.write_text(head + "\n")
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def arguments(op):
    return [X if i == 0 else p.default for i, p in enumerate(op.spec.parameters)]


@pytest.mark.parametrize("where", BODIES)
def test_what_a_body_may_mention(where, tmp_path):
    text, wanted = BODIES[where]
    if where in TRITON:
        pytest.importorskip("triton", reason="the body imports it")
    name = "mentions_" + where.replace(" ", "_")
    op = rafters.elementwise(load(tmp_path, text, name).body)
    assert op.qualified_name == f"{name}::body"
    assert op(*arguments(op)).tolist() == wanted
    assert op.reference(*arguments(op)).tolist() == wanted


@pytest.mark.parametrize("where", BODIES)
def test_the_same_body_compiles(where, tmp_path):
    pytest.importorskip("triton", reason="compiles for sm_90")
    op = rafters.elementwise(load(tmp_path, BODIES[where][0], "compiles_" + where.replace(" ", "_")).body)
    assert "ld.global" in prepare(op, arguments(op)).compile().asm["ptx"]


@pytest.mark.parametrize("where", ["module constant", "closure"])
def test_a_constant_reaches_the_kernel(where, tmp_path):
    pytest.importorskip("triton", reason="compiles for sm_90")
    op = rafters.elementwise(load(tmp_path, BODIES[where][0], "reaches_" + where.replace(" ", "_")).body)
    assert "0f40400000" in prepare(op, arguments(op)).compile().asm["ptx"]  # 3.0


def cell(text, name="body"):
    """Runs text as a notebook does: exec'd, with its source in linecache."""
    file = f"<cell {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), space)
    return space[name]


def test_notebook_cell():
    body = cell("from rafters import tl\nK = 3.0\n\ndef body(x):\n    return tl.where(x > 0, x * K, x)\n")
    op = rafters.elementwise(body, name="t_sources::cell")
    assert op(X).tolist() == [3.0, 6.0, -3.0]
    if importlib.util.find_spec("triton"):
        assert prepare(op, [X]).compile().asm["ptx"]


def test_edited_cell_replaces_the_op():
    """The same cell run again with another text, constant or helper: the new op means the new text, in every form."""
    texts = [
        ("def body(x):\n    return x * 6.0\n", 6.0, "0f40C00000"),
        ("def body(x):\n    return x * 5.0\n", 5.0, "0f40A00000"),
        ("K = 7.0\n\ndef body(x):\n    return x * K\n", 7.0, "0f40E00000"),
        ("K = 9.0\n\ndef body(x):\n    return x * K\n", 9.0, "0f41100000"),
        ("def f(x):\n    return x * 11.0\n\ndef body(x):\n    return f(x)\n", 11.0, "0f41300000"),
        ("def f(x):\n    return x * 13.0\n\ndef body(x):\n    return f(x)\n", 13.0, "0f41500000"),
    ]
    for text, factor, bits in texts:
        op = rafters.elementwise(cell(text), name="t_sources::edited")
        for _ in range(3):
            assert op(X).tolist() == (X * factor).tolist()
        assert torch.ops.t_sources.edited(X).tolist() == (X * factor).tolist()
        x = X.clone().requires_grad_()
        assert torch.autograd.grad(op(x).sum(), x)[0].tolist() == [factor] * 3
        if importlib.util.find_spec("triton"):
            assert bits in prepare(op, [X]).compile().asm["ptx"]


def test_a_constant_is_read_once_for_every_form(tmp_path):
    """What the module changes after the decoration is seen by all forms of the op or by none."""
    pytest.importorskip("triton", reason="compiles for sm_90")
    module = load(tmp_path, "K = 3.0\n\ndef body(x):\n    return x * K", "changed_constant")
    op = rafters.elementwise(module.body)
    assert op(X).tolist() == [3.0, 6.0, -9.0]
    module.K = 4.0
    half = X.half()  # another plan
    seen = {float(op(X)[0]), float(op(half)[0]), float(op.reference(X)[0])}
    seen.add(3.0 if "0f40400000" in prepare(op, [X]).compile().asm["ptx"] else 4.0)
    assert len(seen) == 1, f"the op means several things at once: x times {sorted(seen)}"


def test_a_constant_changed_before_the_first_call(tmp_path):
    pytest.importorskip("triton", reason="compiles for sm_90")
    module = load(tmp_path, "K = 3.0\n\ndef body(x):\n    return x * K", "changed_early")
    op = rafters.elementwise(module.body)
    module.K = 4.0
    from_trace = float(op(X)[0])
    module.K = 5.0
    assert ("0f40800000" if from_trace == 4.0 else "0f40400000") in prepare(op, [X]).compile().asm["ptx"]


def test_the_next_process_sees_the_edit(run_python, tmp_path):
    """With Triton's cache warm, an edited helper of the same shape and line numbers is compiled anew."""
    pytest.importorskip("triton", reason="compiles for sm_90")
    program = textwrap.dedent("""
        import sys, torch, rafters
        sys.path.insert(0, sys.argv[1])
        import edited
        from rafters.testing.kernels import prepare
        op = rafters.elementwise(edited.body)
        x = torch.ones(4)
        print(op(x)[0].item(), "0f40400000" in prepare(op, [x]).compile().asm["ptx"])
    """)
    for factor, found in ((3.0, True), (5.0, False), (3.0, True)):
        (tmp_path / "edited.py").write_text(
            f"K = {factor}\n\ndef helper(x):\n    return x * K\n\ndef body(x):\n    return helper(x)\n"
        )
        printed = run_python(program, str(tmp_path), TRITON_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1")
        assert printed.split() == [str(factor), str(found)]
