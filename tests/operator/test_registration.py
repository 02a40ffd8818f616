"""Case 100 and what PyTorch sees of an op: names, replacement, the fake function, out= under a mode, gates."""

import copy
import gc
import importlib
import pickle
import textwrap

import policy
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import rafters
from rafters import tl

X = torch.tensor([1.0, 2.0, 3.0])


def test_case_100_the_same_function_decorated_again_replaces_the_op(tmp_path, monkeypatch):
    assert policy.SAME_FUNCTION_REPLACES
    file = tmp_path / "reloaded_module.py"
    monkeypatch.syspath_prepend(tmp_path)
    text = "import rafters\n\n@rafters.elementwise\ndef op(x):\n    return x * {}\n"
    file.write_text(text.format(2))
    import reloaded_module

    assert torch.ops.reloaded_module.op(X).tolist() == [2, 4, 6]
    file.write_text(text.format(30))
    importlib.invalidate_caches()
    importlib.reload(reloaded_module)
    assert reloaded_module.op(X).tolist() == [30, 60, 90]
    assert torch.ops.reloaded_module.op(X).tolist() == [30, 60, 90]
    gc.collect()
    assert torch.ops.reloaded_module.op(X).tolist() == [30, 60, 90]


def test_case_100_another_function_of_the_same_name_is_an_error():
    @rafters.elementwise(name="t_names::taken")
    def first(x):
        return x

    with pytest.raises(rafters.BodyError, match=r"op t_names::taken exists already \(from .*first\); give this one another name"):

        @rafters.elementwise(name="t_names::taken")
        def second(x):
            return -x

    assert first(X).tolist() == [1, 2, 3]
    assert torch.ops.t_names.taken(X).tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", ["Upper", "with_digits_2", "_private", "x1", "match"])
def test_case_100_names(name):
    @rafters.elementwise(name=f"t_names::{name}")
    def body(x):
        return x + 1

    assert body(X).tolist() == [2, 3, 4]
    assert getattr(torch.ops.t_names, name)(X).tolist() == [2, 3, 4]
    assert body.qualified_name == f"t_names::{name}"


@pytest.mark.parametrize("name", ["class", "lambda", "import", "None", "with space", "1st"])
def test_case_100_names_that_are_refused(name):
    def body(x):
        return x + 1

    with pytest.raises(rafters.BodyError, match="op name"):
        rafters.elementwise(body, name=f"t_names::{name}")


def test_case_100_reload_of_the_library(run_python):
    """A second copy of the package under another path, and a reload, in a process of their own."""
    program = """
import importlib, gc, torch, rafters, rafters.ops
importlib.reload(rafters.ops.arithmetic)
importlib.reload(rafters.ops)
gc.collect()
assert rafters.ops.add(torch.ones(2), 1).tolist() == [2.0, 2.0]
assert torch.ops.rafters.add(torch.ones(2), torch.ones(2)).tolist() == [2.0, 2.0]
"""
    run_python(textwrap.dedent(program))


def test_the_schema():
    @rafters.elementwise(name="t_names::schema")
    def op(x, y=None, alpha: float = 0.5, n: int = 2, flag: bool = False, K: tl.constexpr = 3):
        return x * alpha * n * K if y is None else x * y

    text = str(torch.ops.t_names.schema.default._schema)
    assert text == (
        "t_names::schema(Tensor x, Tensor? y=None, Scalar alpha=0.5, SymInt n=2, bool flag=False, SymInt K=3) -> Tensor"
    )
    assert torch.ops.t_names.schema(X).tolist() == op(X).tolist() == [3, 6, 9]


def test_parameters_that_the_generated_call_uses_itself():
    """Names of arguments that the generated texts (call, plan, kernel) use for something else."""

    @rafters.elementwise(name="t_names::awkward")
    def awkward(run, key, x_ptr, n: float = 1.0, m: int = 2, Tensor: float = 1.0):
        return run * n + key * m + x_ptr * Tensor

    assert awkward(X, X, X).tolist() == [4, 8, 12]
    assert awkward(X, key=X, x_ptr=1, n=2.0, m=0, Tensor=0.5).tolist() == [2.5, 4.5, 6.5]


@pytest.mark.parametrize(
    "names", ["self, out0", "o, c", "body, lang", "launch, grid", "device, static", "allocate, torch", "arguments, out_result"]
)
def test_pairs_of_awkward_names(names, tmp_path, monkeypatch):
    a, b = names.split(", ")
    module = "awkward_" + "_".join((a, b))
    (tmp_path / f"{module}.py").write_text(f"import rafters\n\n@rafters.elementwise\ndef op({a}, {b}):\n    return {a} - {b}\n")
    monkeypatch.syspath_prepend(tmp_path)
    op = importlib.import_module(module).op
    assert op(X, torch.ones(3)).tolist() == [0, 1, 2]
    assert op(X, 1.0).tolist() == [0, 1, 2]
    assert op.reference(X, 1.0).tolist() == [0, 1, 2]


def test_ops_are_copied_and_pickled_as_themselves():
    assert copy.deepcopy(rafters.add) is copy.copy(rafters.add) is rafters.add
    assert pickle.loads(pickle.dumps(rafters.silu)) is rafters.silu
    module = torch.nn.Module()
    module.op = rafters.silu
    assert copy.deepcopy(module).op is rafters.silu


def test_plain_tensors_parameters_and_the_rest():
    parameter = torch.nn.Parameter(X.clone())
    assert rafters.add(parameter, 1).requires_grad
    with torch.no_grad():
        assert not rafters.add(parameter, 1).requires_grad
    with torch.inference_mode():
        assert rafters.add(parameter, 1).tolist() == [2, 3, 4]
    negative = torch.tensor([1 + 2j, 3 - 4j]).conj().imag  # a plain tensor by type, over memory that is not negated
    assert negative.is_neg()
    assert rafters.add(negative, 1).tolist() == [-1, 5]
    assert rafters.add(negative, 1, out=torch.empty(2)).tolist() == [-1, 5]
    with torch.device("meta"):
        assert rafters.add(X, 1).tolist() == [2, 3, 4]


def test_forward_mode_is_right_or_loud():
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones(3))
        try:
            tangent = forward_ad.unpack_dual(rafters.mul(dual, dual)).tangent
        except (RuntimeError, NotImplementedError):
            return  # loud is right as well
        assert tangent is not None, "a silent zero tangent"
        assert tangent.tolist() == [2, 4, 6]


def test_func_grad_is_right_or_loud():
    try:
        made = torch.func.grad(lambda x: rafters.mul(x, x).sum())(X)
    except (RuntimeError, NotImplementedError):
        return
    assert made.tolist() == [2, 4, 6]


def test_vmap_is_right_or_loud():
    batch = torch.arange(6.0).view(2, 3)
    try:
        made = torch.func.vmap(lambda x: rafters.mul(x, x))(batch)
    except (RuntimeError, NotImplementedError):
        return
    assert made.tolist() == (batch * batch).tolist()


def test_double_backward_and_saved_inputs():
    x = X.clone().requires_grad_()
    y = rafters.mul(rafters.mul(x, x), x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert first.tolist() == [3, 12, 27]
    assert second.tolist() == [6, 12, 18]
    z = X.clone().requires_grad_()
    inner = z * 1
    made = rafters.mul(inner, inner)
    inner.add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
        made.sum().backward()


def test_backward_leaves_the_upstream_gradient_alone():
    upstream = torch.tensor([1.0, 10.0, 100.0])
    kept = upstream.clone()
    x = X.clone().requires_grad_()
    y = rafters.silu_mul(x, x)
    (once,) = torch.autograd.grad(y, x, upstream, retain_graph=True)
    (twice,) = torch.autograd.grad(y, x, upstream)
    assert torch.equal(once, twice)
    assert torch.equal(upstream, kept)


def test_out_under_a_mode_is_checked_too():
    with FakeTensorMode(), pytest.raises(rafters.ArgumentError, match=r"argument 'out': got dtype torch.int64"):
        rafters.add(torch.ones(3), 1.5, out=torch.empty(3, dtype=torch.int64))
    x = X.clone().requires_grad_()
    with torch.no_grad():
        assert rafters.add(x, 1, out=torch.empty(3)).tolist() == [2, 3, 4]


def test_default_dtype_is_part_of_a_plan():
    x = torch.tensor([7, 8])
    assert rafters.add(x, 0.5).dtype is torch.float32
    try:
        torch.set_default_dtype(torch.float64)
        assert rafters.add(x, 0.5).dtype is torch.float64
        assert rafters.div(x, x).dtype is torch.float64
        assert rafters.sigmoid(x).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert rafters.add(x, 0.5).dtype is torch.float32
    assert rafters.div(x, x).dtype is torch.float32
