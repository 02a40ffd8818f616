"""Bytes and FLOPs of functions whose cost can be worked out by hand."""

import pytest
import torch
import torch.nn.functional as F

from rafters.cost import Cost
from rafters.roofline import count
from rafters.roofline.accesses import Access, distinct_bytes, of

N, ROWS, COLS = 1000, 100, 64
X, Y = torch.randn(N), torch.randn(N)
M = torch.randn(ROWS, COLS)
V = torch.randn(COLS)
X_BYTES, M_BYTES, V_BYTES = 4 * N, 4 * ROWS * COLS, 4 * COLS
SCALE = torch.randn(N)


def hidden(a):
    out = torch.empty_like(a)
    out.numpy()[...] = 2 * a.numpy()
    return out


MINIMUM = {
    "add": (torch.add, (X, Y), Cost(2 * X_BYTES, X_BYTES, N)),
    "same operand twice": (torch.add, (X, X), Cost(X_BYTES, X_BYTES, N)),
    "chain": (lambda a: torch.relu(a * 2 + 1), (X,), Cost(X_BYTES, X_BYTES, 3 * N)),
    "in place, twice": (lambda a: a.mul_(2).add_(1), (X,), Cost(X_BYTES, X_BYTES, 2 * N)),
    "out is not read": (lambda a, o: torch.mul(a, 2, out=o), (X, Y), Cost(X_BYTES, X_BYTES, N)),
    "fill is not read": (lambda a: a.fill_(1), (X,), Cost(0, X_BYTES)),
    "written, then read": (lambda a, o: o.copy_(a).mul_(2), (X, Y), Cost(X_BYTES, X_BYTES, N)),
    "view": (lambda a: a.view(10, 100).t()[2:], (X,), Cost(0, 0)),
    "unused argument": (lambda a, b: a * 2, (X, Y), Cost(X_BYTES, X_BYTES, N)),
    "closure": (lambda a: a + SCALE, (X,), Cost(2 * X_BYTES, X_BYTES, N)),
    "broadcast": (lambda a, b: a + b, (M, V), Cost(M_BYTES + V_BYTES, M_BYTES, ROWS * COLS)),
    "expanded": (lambda a: a.expand(50, COLS).contiguous(), (V,), Cost(V_BYTES, 50 * V_BYTES)),
    "two halves of a row": (
        lambda a: F.silu(a[:, : COLS // 2]) * a[:, COLS // 2 :],
        (M,),
        Cost(M_BYTES, M_BYTES // 2, 3 * ROWS * COLS // 2),
    ),
    "overlapping slices": (lambda a: a[:500] + a[250:750], (X,), Cost(3000, 2000, 500)),
    "gather, one row twice": (lambda w, i: w[i], (M, torch.tensor([1, 1, 2])), Cost(2 * V_BYTES + 24, 3 * V_BYTES)),
    "embedding": (lambda w, i: F.embedding(i, w), (M, torch.tensor([5, 7])), Cost(2 * V_BYTES + 16, 2 * V_BYTES)),
    "gather by two indices": (lambda w, i: w[i, i], (M, torch.tensor([1, -1, 1])), Cost(8 + 24, 12)),
    "gather by a mask": (lambda w, m: w[m], (M, torch.arange(ROWS) < 5), Cost(5 * V_BYTES + ROWS, 5 * V_BYTES)),
    "gather of elements, twice the same": (
        lambda w, i: w.gather(0, i),
        (M, torch.zeros(3, COLS, dtype=torch.int64)),
        Cost(V_BYTES + 24 * COLS, 3 * V_BYTES),
    ),
    "take": (torch.take, (M, torch.tensor([3, 3, 65])), Cost(8 + 24, 12)),
    "bag": (lambda w, i: F.embedding_bag(i, w, mode="sum"), (M, torch.tensor([[5, 7, 5]])), Cost(2 * V_BYTES + 24, V_BYTES)),
    "add to two rows": (
        lambda w, i, v: w.index_add_(0, i, v),
        (M, torch.tensor([1, 2, 2]), torch.randn(3, COLS)),
        Cost(5 * V_BYTES + 24, 2 * V_BYTES, 3 * COLS),
    ),
    "scatter of two rows": (
        lambda w, i, v: w.index_put_((i,), v),
        (M, torch.tensor([1, 2]), torch.randn(2, COLS)),
        Cost(16 + 2 * V_BYTES, 2 * V_BYTES),
    ),
    "matmul": (torch.mm, (M, M.t()), Cost(M_BYTES, 4 * ROWS * ROWS, 2 * ROWS * ROWS * COLS)),
    "row sum": (lambda a: a.sum(-1), (M,), Cost(M_BYTES, 4 * ROWS, ROWS * COLS)),
    "kernel torch does not see": (hidden, (X,), Cost(X_BYTES, X_BYTES)),
    "empty": (torch.add, (torch.empty(0), torch.empty(0)), Cost(0, 0)),
}


@pytest.mark.parametrize(("fn", "args", "want"), MINIMUM.values(), ids=MINIMUM.keys())
def test_minimum(fn, args, want):
    before = [a.clone() for a in args]
    found = count(fn, args)
    assert found.minimum == want
    assert found.hidden == (fn is hidden)
    assert all(torch.equal(a, b) for a, b in zip(args, before, strict=True))


def test_as_launched_counts_what_fusion_would_save():
    found = count(lambda a: torch.relu(a * 2 + 1), (X,))
    assert found.kernels == 3
    assert found.launched == Cost(3 * X_BYTES, 3 * X_BYTES, 3 * N)
    assert found.launched.total_bytes / found.minimum.total_bytes == 3.0


def test_a_registered_op_is_one_kernel():
    with torch.library._scoped_library("rafters_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        found = count(torch.ops.rafters_test.twice, (X,))
    assert found.minimum == Cost(X_BYTES, X_BYTES, found.minimum.flops)


@pytest.mark.parametrize(
    ("accesses", "total"),
    [
        pytest.param([Access(0, 8, 8), Access(8, 16, 8)], 16, id="neighbours"),
        pytest.param([Access(0, 8, 8), Access(4, 12, 8)], 12, id="overlap"),
        pytest.param([Access(0, 8, 8), Access(0, 8, 8)], 8, id="the same"),
        pytest.param([Access(0, 60, 32), Access(32, 92, 32)], 64, id="interleaved halves"),
        pytest.param([Access(0, 100, 20), Access(0, 100, 100)], 100, id="strided inside dense"),
        pytest.param([], 0, id="none"),
    ],
)
def test_distinct_bytes(accesses, total):
    assert distinct_bytes(accesses) == total


def test_access_of_views():
    base = torch.zeros(4, 6)
    assert of(base) == Access(0, 96, 96)
    assert of(base[1:, 2:]) == Access(32, 96, 48)
    assert of(base[:, :1].expand(4, 6)) == Access(0, 76, 16)
    assert of(torch.zeros(10).unfold(0, 5, 1)) == Access(0, 40, 40)
