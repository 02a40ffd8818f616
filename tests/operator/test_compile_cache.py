"""An edited op never meets the code that was compiled from its old form: two processes, one cache folder."""

import json

import pytest
from blocked import BLOCK

OPS = """
import torch
import rafters

FACTOR = {factor}

def helper(x):
    return x * FACTOR

@rafters.elementwise
def kept(x):
    return x - 1.5

@rafters.elementwise
def text(x):
    return x * {factor}

@rafters.elementwise
def value_of_a_helper(x):
    return helper(x)

@rafters.elementwise(compile="{mode}")
def fused_or_opaque(x):
    return x * 3.0

@rafters.elementwise(out_dtype=torch.{dtype}, compile="opaque")
def dtype_of_the_result(x):
    return x * 2.0

@rafters.rowwise(outputs=[rafters.Output(per_row={per_row})])
def shape_of_the_result(x):
    return rafters.lang.row_sum(x) + {per_row}

@rafters.elementwise(reference=lambda x: x * {factor}, compile="fuse")
def reference(x):
    return x * {factor}
"""
MAIN = """
import json, sys
import torch
from torch._dynamo.utils import counters
import rafters.operator.pytorch.fingerprint
rafters.operator.pytorch.fingerprint._library = lambda: ""  # our own source, which may be edited while a test runs
import ops_of_the_test as ops

found = {}
for name in sys.argv[1:]:
    counters.clear()
    op = getattr(ops, name)
    x = torch.arange(1.0, 5.0).view(2, 2)
    got = torch.compile(lambda x: torch.relu(op(x)) + 1, fullgraph=True)(x)
    wanted = torch.relu(op(x)) + 1
    found[name] = (got.dtype is wanted.dtype and torch.equal(got, wanted), wanted.flatten().tolist(),
                   counters["aot_autograd"]["autograd_cache_hit"])
print(json.dumps(found))
"""
BEFORE = {"factor": "2.0", "mode": "fuse", "dtype": "float32", "per_row": "True"}
AFTER = {"factor": "30.0", "mode": "opaque", "dtype": "int32", "per_row": "False"}
EDITED = ("text", "value_of_a_helper", "fused_or_opaque", "dtype_of_the_result", "shape_of_the_result", "reference")


@pytest.fixture
def compiled(run_python, tmp_path):
    """What a fresh process finds for these ops, written in this form: (compiled is eager, eager values, cache hits)."""

    def run(form, names, prelude=""):
        (tmp_path / "ops_of_the_test.py").write_text(OPS.format(**form))
        program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{prelude}\n{MAIN}"
        made = run_python(program, *names, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1")
        return json.loads(made.splitlines()[-1])

    return run


def test_an_edited_op_follows_the_edit(compiled):
    names = ("kept", *EDITED)
    first, second = compiled(BEFORE, names), compiled(AFTER, names)
    assert [name for name in names if not first[name][0]] == []
    assert [name for name in names if not second[name][0]] == []
    assert second["kept"][2] == 1, "the cache is not in use, so the rest shows nothing"
    assert [name for name in EDITED if second[name][2]] == []
    assert first["text"][1] != second["text"][1]


def test_without_triton_the_users_tag_is_extended(compiled):
    """PyTorch reads no table of kernels there; the tag of the user's own stays in front."""
    tag = BLOCK + "import torch\ntorch.compiler.config.cache_key_tag = 'mine'\n"
    check = "\nassert torch.compiler.config.cache_key_tag.split()[0] == 'mine'\n"
    names = ("kept", "text")
    first, second = compiled(BEFORE, names, tag + check), compiled(AFTER, names, tag + check)
    assert all(found[0] for found in (*first.values(), *second.values()))
    assert second["kept"][2] == 1, "the cache is not in use, so the rest shows nothing"
    assert second["text"][2] == 0


def test_a_fingerprint_holds_what_an_op_mentions(tmp_path, monkeypatch):
    """Constants, helpers, those of a module, the backward of the author's own and what that calls."""
    import importlib

    import rafters
    from rafters.operator.pytorch.fingerprint import Fingerprint

    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "mentioned_by_a_fingerprint.py"
    file.write_text("def shifted(x):\n    return x + 1\n\ndef unused(x):\n    return x\n")
    module = importlib.import_module(file.stem)

    def text(constant=3.0, alpha=1.0, seed=2.0):
        def helper(x):
            return x * constant

        @rafters.elementwise(name="t_fingerprint::gradient")
        def gradient(grad_out, x):
            return grad_out * seed

        def backward(grad_out, x):
            return gradient(grad_out, x)

        @rafters.elementwise(name="t_fingerprint::op", backward=backward)
        def op(x):
            return helper(module.shifted(x)) * alpha

        return Fingerprint(op.spec, True).src

    first = text()
    assert first == text()
    assert len({first, text(constant=4.0), text(alpha=2.0), text(seed=5.0)}) == 4
    monkeypatch.setattr(module, "unused", lambda x: x * 9)
    assert text() == first
    file.write_text(file.read_text().replace("x + 1", "x + 2"))
    importlib.invalidate_caches()
    importlib.reload(module)
    assert text() != first
