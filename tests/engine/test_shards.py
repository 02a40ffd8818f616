"""Along which dimensions a call may be cut: listed for each kind of op, and each cut carried out and put together again."""

import pytest
import sample_ops as ops
import torch

import rafters
from rafters import Output
from rafters.engine.call import resolve
from rafters.engine.shards import SUMMED, cuts
from rafters.operator.traced import traced_form


@rafters.elementwise(name="t_shards::products", outputs=(Output(dtype="x", sum_to="x"), Output(dtype="y", sum_to="y")))
def products(grad, x, y):
    return grad * y, grad * x


@rafters.elementwise(name="t_shards::summed", outputs=(Output(dtype="y", sum_to="y"),))
def summed(grad):
    return grad * 2.0


def tensor(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


ROWS = torch.tensor([3, 0, 4, 2, 1])
X, COLUMN, ROW, POINT = tensor(5, 6), tensor(6), tensor(5, 1), tensor()

# op, arguments, and of each cut: the dimension cut of each tensor argument, and of each new result
CASES = {
    "dense": (ops.three, (X, X, X), [((0, 0, 0), (0,)), ((1, 1, 1), (1,))]),
    "a vector": (ops.three, (X, COLUMN, POINT), [((0, None, None), (0,)), ((1, 0, None), (1,))]),
    "a value a row": (ops.three, (X, ROW, X), [((0, 0, 0), (0,)), ((1, None, 1), (1,))]),
    "a row and a column": (ops.three, (ROW, COLUMN, POINT), [((0, None, None), (0,)), ((None, 0, None), (1,))]),
    "leading dimensions": (ops.muladd, (tensor(3, 5, 6), tensor(5, 1)), [((0, None), (0,)), ((1, 0), (1,)), ((2, None), (2,))]),
    "a dimension of one": (ops.muladd, (tensor(1, 6), COLUMN), [((0, None), (0,)), ((1, 0), (1,))]),
    "a number": (ops.muladd, (X, 2.0), [((0, None), (0,)), ((1, None), (1,))]),
    "two results": (ops.both, (X, COLUMN), [((0, None), (0, 0)), ((1, 0), (1, 1))]),
    "halves": (ops.gated, (tensor(3, 5, 6),), [((0,), (0,)), ((1,), (1,))]),
    "every other": (ops.interleaved, (X,), [((0,), (0,))]),
    "halves written": (ops.halves_out, (X, X), [((0, 0), (0,))]),
    "rows selected": (ops.gathered, (X, tensor(5, 6), ROWS), [((0, None, 0), (0,)), ((1, 1, None), (1,))]),
    "rotated in place": (
        ops.rope_,
        (tensor(5, 3, 6), tensor(5, 6), ROWS),
        [((0, None, 0), ()), ((1, None, None), ())],
    ),
    "rows written": (ops.scatter_, (X, tensor(9, 6), ROWS), [((1, 1, None), ())]),
    "rows": (ops.norm, (X, COLUMN), [((0, None), (0,))]),
    "many rows": (ops.norm, (tensor(3, 5, 6), COLUMN), [((0, None), (0,)), ((1, None), (1,))]),
    "one row": (ops.norm, (COLUMN, COLUMN), []),
    "values a row": (ops.shares, (X,), [((0,), (0, 0, 0))]),
    "summed to a column": (products, (X, X, COLUMN), [((0, 0, None), (0, SUMMED)), ((1, 1, 0), (1, 0))]),
    "summed to rows": (products, (X, ROW, X), [((0, 0, 0), (0, 0)), ((1, None, 1), (SUMMED, 1))]),
    "summed to what is not read": (summed, (X, COLUMN), [((0, None), (SUMMED,)), ((1, 0), (0,))]),
    "summed to a point": (products, (X, POINT, X), [((0, None, 0), (SUMMED, 0)), ((1, None, 1), (SUMMED, 1))]),
}


def named(op, arguments):
    values = dict(zip((p.name for p in op.spec.parameters), arguments, strict=False))
    return {p.name: values.get(p.name, p.default) for p in op.spec.parameters}


@pytest.mark.parametrize("case", CASES)
def test_the_cuts_of(case):
    op, arguments, wanted = CASES[case]
    values = named(op, arguments)
    tensors = [n for n, v in values.items() if isinstance(v, torch.Tensor)]
    found = [(tuple(c.arguments.get(n) for n in tensors), c.results) for c in cuts(op.spec, resolve(op.spec, values), values)]
    assert found == [(dims[: len(tensors)], results) for dims, results in wanted]


@pytest.mark.parametrize("pieces", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_shards_computed_apart_make_the_whole(case, pieces):
    op, arguments, _ = CASES[case]
    values = named(op, arguments)
    whole = traced_form(op.spec, values)
    for cut in cuts(op.spec, resolve(op.spec, values), values):

        def shard(name, i, cut=cut):
            dim = cut.arguments.get(name)
            return values[name] if dim is None else values[name].tensor_split(pieces, dim)[i]  # sizes that differ

        made = [traced_form(op.spec, {name: shard(name, i) for name in values}) for i in range(pieces)]
        fresh = iter(cut.results)
        for result, (group, *parts) in zip(whole, zip(op.spec.results, *made, strict=True), strict=True):
            into = group[0].into
            dim = cut.arguments[into] if into else next(fresh)
            assert dim is not None, "a result that every shard would have to make whole"
            together = torch.stack(parts).sum(0) if dim == SUMMED else torch.cat(parts, dim)
            torch.testing.assert_close(together, result, rtol=1e-12, atol=1e-12)


def test_a_tensor_read_in_two_ways_is_cut_only_where_both_agree():
    @rafters.elementwise(name="t_shards::own_rows", views={"row": rafters.View("x", rows="positions")})
    def own_rows(x, row):
        return x - row

    values = {"x": X, "positions": ROWS}
    (only,) = cuts(own_rows.spec, resolve(own_rows.spec, values), values)
    assert only.arguments == {"x": 1, "positions": None}
