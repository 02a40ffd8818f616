"""Where triton is not installed the same bodies run, as their traced forms."""

import pytest
from blocked import BLOCK

TEN_LINES = """
import torch
import rafters
from rafters import lang, tl

@rafters.elementwise
def scaled_swish(x, gate, alpha: float = 1.0):
    return x * gate * lang.sigmoid(alpha * gate)

@rafters.elementwise(out_dtype="bool")
def inside(x, low: float = -1.0, high: float = 1.0, closed: tl.constexpr = True):
    if closed:
        y = (x >= low) & (x <= high)
    else:
        y = (x > low) & (x < high)
    return tl.where(y, True, False)

@rafters.rowwise
def rms_norm(x, weight, eps: float = 1e-6):
    return x * lang.rsqrt(lang.row_mean(x * x) + eps) * weight

x, gate = torch.randn(4, 8), torch.randn(8, dtype=torch.bfloat16)
torch.testing.assert_close(scaled_swish(x, gate, 2.0), x * gate.float() * torch.sigmoid(2 * gate.float()))
torch.testing.assert_close(rms_norm(x, x[0]), torch.nn.functional.rms_norm(x, (8,), x[0], 1e-6))
assert inside(torch.tensor([-1.0, 0.0, 2.0])).tolist() == [True, True, False]
assert inside(torch.tensor([-1.0, 0.0, 2.0]), closed=False).tolist() == [False, True, False]
w = x.clone().requires_grad_()
scaled_swish(w, gate).sum().backward()
torch.testing.assert_close(w.grad, (gate.float() * torch.sigmoid(gate.float())).expand(4, 8))
assert "scaled_swish_rows_kernel" in scaled_swish.source(x, gate, 1.0)
assert scaled_swish.cost(x, gate, 1.0).written_bytes == 4 * 32
"""
OPS = """
import torch, rafters, rafters.ops
from rafters.testing import CASES, arguments_for, dtypes_of
for name, op in rafters.ops.table().items():
    for dtype in dtypes_of(op):
        for case in ("17x129", "one value a row", "transposed beside contiguous"):
            arguments = arguments_for(op, CASES[case], dtype)
            got, want = op(*arguments), op.reference(*arguments)
            if got.is_floating_point() and got.element_size() == 1:  # an ulp of float32 may move a value to the next code
                torch.testing.assert_close(got.float(), want.float(), equal_nan=True, rtol=0.25, atol=2.0**-9)
            else:
                torch.testing.assert_close(got, want, equal_nan=True)
            op.source(*arguments)
    try:
        op.plan(*(torch.empty(8, device="meta") for _ in op.spec.tensors))
    except rafters.RaftersError:
        pass
assert "triton" not in __import__("sys").modules
"""
KERNEL = """
import torch, rafters
from rafters.testing.kernels import prepare
try:
    prepare(rafters.add, (torch.ones(3), torch.ones(3))).compile()
except rafters.CompileError as problem:
    print(problem)
"""


def test_the_blocker_blocks(run_python):
    assert run_python(BLOCK + "try:\n    import triton\nexcept ImportError as e:\n    print('refused', e)").startswith("refused")


@pytest.mark.parametrize("program", [TEN_LINES, OPS], ids=["ten lines", "every op"])
def test_bodies_run(run_python, program, tmp_path):
    # a body is read from its source, so the program has to lie in a file
    file = tmp_path / "ten_lines.py"
    file.write_text(program)
    run_python(BLOCK + "import runpy\nrunpy.run_path(sys.argv[1], run_name='ten_lines')", str(file))


def test_a_kernel_says_what_is_missing(run_python):
    assert "triton is not installed, so no kernel can be compiled" in run_python(BLOCK + KERNEL)
