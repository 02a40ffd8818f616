"""How calls find their plans: by their key, by the plan of another size; and what drops them."""

import gc
import threading

import pytest
import torch
from fake_gpu import FakeGPU
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rafters
from rafters import lang
from rafters.engine import family
from rafters.engine import plan as plans
from rafters.operator.calls.table import GENERATION, Entry, Table
from rafters.testing.kernels import prepare


@rafters.rowwise(name="t_plans::norm")
def norm(x, weight):
    return x * lang.rsqrt(lang.row_mean(x * x)) * weight


@rafters.rowwise(name="t_plans::peak", outputs=(rafters.Output("x"), rafters.Output("x", per_row=True)))
def peak(x):
    return x, lang.row_max(x)


@rafters.rowwise(name="t_plans::norm_backward", outputs=(rafters.Output("x", sum_to="x"), rafters.Output("w", sum_to="w")))
def norm_backward(g, x, w):
    return g * w - x * lang.row_mean(g * w * x), g * x * lang.rsqrt(lang.row_mean(x * x))


@rafters.elementwise(name="t_plans::gather", views={"x": rafters.View("table", rows="rows")})
def gather(x, y):
    return x + y


@rafters.elementwise(name="t_plans::accumulate_", outputs=(rafters.Output(into="x"),))
def accumulate_(x, y):
    return x + y


@rafters.elementwise(name="t_plans::power")
def power(x, k: int, scale: float = 1.0):
    return x * k * scale


@rafters.elementwise(name="t_plans::powered")
def powered(x, K: rafters.tl.constexpr):
    return x * x if K == 102 else x


def pitched(rows, cols):
    return torch.empty(rows, cols + 8)[:, :cols]


# (op, arguments for a number of rows, keywords)
CALLS = {
    "flat": (rafters.add, lambda n: (torch.empty(n, 48), torch.empty(n, 48))),
    "one dimension": (rafters.add, lambda n: (torch.empty(n), torch.empty(n))),
    "three dimensions": (rafters.add, lambda n: (torch.empty(n, 3, 16), torch.empty(n, 3, 16))),
    "a batch": (rafters.mul, lambda n: (torch.empty(4, n, 16), torch.empty(4, n, 16))),
    "a batch of one": (rafters.mul, lambda n: (torch.empty(1, n, 16), torch.empty(16))),
    "vector": (rafters.add, lambda n: (torch.empty(n, 40), torch.empty(40))),
    "vector of two dimensions": (rafters.add, lambda n: (torch.empty(n, 5, 8), torch.empty(5, 8))),
    "value a row": (rafters.mul, lambda n: (torch.empty(n, 40), torch.empty(n, 1))),
    "three": (rafters.scale_bias, lambda n: (torch.empty(n, 40).half(), torch.empty(40), torch.empty(40))),
    "number": (rafters.add, lambda n: (torch.empty(n, 40), 2.0)),
    "scalars": (power, lambda n: (torch.empty(n, 40), 3, 0.5)),
    "pitched": (rafters.add, lambda n: (pitched(n, 24), pitched(n, 24))),
    "pitched, three dimensions": (rafters.add, lambda n: (torch.empty(n, 6, 32)[:, :5, :24], torch.empty(n, 5, 24))),
    "inner transposed": (rafters.add, lambda n: (torch.empty(n, 8, 6).transpose(1, 2), torch.empty(n, 6, 8))),
    "channels last": (rafters.relu, lambda n: (torch.empty(n, 3, 4, 4).to(memory_format=torch.channels_last),)),
    "rows": (norm, lambda n: (torch.empty(n, 48), torch.empty(48))),
    "rows, summed": (norm_backward, lambda n: (torch.empty(n, 4096), torch.empty(n, 4096), torch.empty(4096))),
    "rows of a batch": (norm, lambda n: (torch.empty(2, n, 48), torch.empty(48))),
    "value a row out": (peak, lambda n: (torch.empty(n, 40),)),
    "selected rows": (gather, lambda n: (torch.empty(64, 24), torch.empty(n, 24), torch.zeros(n, dtype=torch.int64))),
    # sizes of other dimensions that may be the number of rows by chance
    "as many rows as columns": (rafters.add, lambda n: (torch.empty(n, 40), torch.empty(40, 40)[: n if n == 40 else 1])),
    "rows across": (rafters.mul, lambda n: (torch.empty(n, 1), torch.empty(n))),
    "rows behind": (rafters.mul, lambda n: (torch.empty(1, 7), torch.empty(n, 7))),
    "a table of rows": (gather, lambda n: (torch.empty(n, 24), torch.empty(n, 24), torch.zeros(n, dtype=torch.int64))),
    "weights of rows": (rafters.silu_mul, lambda n: (torch.empty(n, 24).bfloat16(), torch.empty(n, 1).bfloat16())),
    "in place": (accumulate_, lambda n: (torch.empty(n, 40), torch.empty(n, 40))),
}  # fmt: skip
TWO_SIZES = ("rows across", "a table of rows")  # another dimension grows with the rows: each size is a kind of call of its own
SEVERAL = ("rows, summed",)  # several kernels a call, which no plan of another size serves
ROWS = st.lists(st.one_of(st.integers(1, 40), st.just(40), st.integers(1, 3000)), min_size=3, max_size=8)


def run_and_record(gpu, call):
    gpu.launches.clear()
    made = call()
    return (made if isinstance(made, tuple) else () if made is None else (made,)), list(gpu.launches)


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_a_plan_of_another_size_launches_what_a_fresh_plan_does(fake_gpu: FakeGPU, name, rows):
    op, make = CALLS[name]
    op.forget_plans()
    for n in rows:
        arguments = make(n)
        results, launches = run_and_record(fake_gpu, lambda: op(*arguments))  # noqa: B023
        fresh, expected = run_and_record(fake_gpu, lambda: op.plan(*arguments).run(*arguments))  # noqa: B023
        facts = [[(t.shape, t.stride(), t.dtype) for t in tensors] for tensors in (results, fresh)]
        assert facts[0] == facts[1]
        given = {t.data_ptr() for t in arguments if isinstance(t, torch.Tensor)}

        def known(values):
            """Without the addresses of results and buffers: where new memory lies is the one thing that may differ."""
            return [repr(v) for v in values if not isinstance(v, int) or v < 1 << 40 or v in given]  # noqa: B023

        for (grid, values), (fresh_grid, fresh_values) in zip(launches, expected, strict=True):
            assert grid == fresh_grid
            assert known(values) == known(fresh_values)
    op.forget_plans()


def test_a_compile_time_value_is_not_that_of_another_size(fake_gpu: FakeGPU):
    powered.forget_plans()
    for n in (3, 9, 5, 7, 6):
        for k in (1, 2):
            x = torch.empty(n, 7)
            _, launches = run_and_record(fake_gpu, lambda: powered(x, 100 + k))  # noqa: B023
            assert [v for _, values in launches for v in values if v in (101, 102)] == [100 + k]
    powered.forget_plans()


def test_eight_bit_numbers_go_as_they_lie(fake_gpu: FakeGPU):
    """Triton 3.6's launcher reads a signed byte as an unsigned one and refuses what is below 0."""
    for dtype in (torch.int8, torch.uint8):
        x = torch.empty(10, dtype=dtype)
        _, launches = run_and_record(fake_gpu, lambda: rafters.mul(x, -3))  # noqa: B023
        assert 253 in launches[0][1]
        assert -3 not in launches[0][1]
    rafters.mul.forget_plans()


@pytest.mark.parametrize("columns", [64, 4096])
def test_the_grid_of_a_sum_follows_its_walk(columns):
    """The rule that a family learns from one size gives the grid of every size with the same kernel."""
    op = rafters.mul.backward_op(torch.empty(2, 2), torch.empty(2, 2))

    def laid(rows):
        x = torch.empty(rows, columns, dtype=torch.bfloat16, device="meta")
        return prepare(op, (x, x, torch.empty(columns, dtype=torch.bfloat16, device="meta"))).layout

    compared = 0
    for rows in (700, 3000, 16384, 70_000):
        one = laid(rows)
        rule = family._grid(one, one.grid, rows)
        for other in range(rows - rows // 4, rows + rows // 4, max(rows // 97, 1)):
            another = laid(other)
            if rule is not None and another.constants == one.constants:
                assert rule((other,), other) == another.grid, (rows, other, one.constants)
                compared += one.constants["STEPS"] > 1
    assert compared > 20


@pytest.mark.parametrize("name", [n for n in CALLS if n not in ("number", "scalars", *TWO_SIZES, *SEVERAL)])
def test_new_sizes_are_not_planned_anew(fake_gpu: FakeGPU, name, monkeypatch):
    op, make = CALLS[name]
    op.forget_plans()
    built = []
    build = plans.build
    monkeypatch.setattr("rafters.operator.from_body.plans.build", lambda *a: (built.append(a), build(*a))[1])
    for n in range(2, 700):  # growing: the worst order
        op(*make(n))
    assert len(built) < 80
    op.forget_plans()


def test_calls_of_several_kernels_are_planned_one_by_one(fake_gpu: FakeGPU):
    """Nothing is looked for that is not there: a plan a size, and no kernels kept for sizes between."""
    op, make = CALLS["rows, summed"]
    op.forget_plans()
    for n in range(2, 200):
        op(*make(n))
    assert len(op._plans) == 198
    assert sum(map(len, op._plans._classes.values())) <= 1  # of the sizes that one program sums
    op.forget_plans()


def test_a_size_that_is_met_once_leaves_nothing_behind(fake_gpu: FakeGPU, monkeypatch):
    """Objects that stay make Python's collector run, which takes longer than the call; a size that comes back is remembered."""
    rafters.mul.forget_plans()
    rows = [(torch.empty(n, 40), torch.empty(40)) for n in (*range(2, 600), 601)]
    for x, w in (rows[0], rows[-1], rows[1]):
        rafters.mul(x, w)
    slow, known = count_slow(monkeypatch), len(rafters.mul._plans)
    fake_gpu.launches.clear()
    gc.collect()
    before = len(gc.get_objects())
    for x, w in rows[2:-1]:
        rafters.mul(x, w)
    fake_gpu.launches.clear()
    gc.collect()
    assert len(gc.get_objects()) - before < 20
    assert slow == []
    assert len(rafters.mul._plans) == known
    for x, w in (rows[50], rows[51], rows[50], rows[51]):
        assert rafters.mul(x, w).shape == x.shape
    assert len(rafters.mul._plans) == known + 2
    rafters.mul.forget_plans()


def test_200_row_counts_use_few_variants(fake_gpu: FakeGPU):
    for name, (op, make) in CALLS.items():
        if name in (*TWO_SIZES, *SEVERAL):
            continue
        op.forget_plans()
        op._variants._variants.clear()
        for n in range(1, 201):
            op(*make(n))
        assert len(op._variants) <= 4, (name, op.variants())
        op._variants._variants.clear()
        op.forget_plans()


def count_slow(monkeypatch):
    seen = []
    slow = rafters.Op._slow
    monkeypatch.setattr(rafters.Op, "_slow", lambda self, *a: (seen.append(self.name), slow(self, *a))[1])
    return seen


X, Y, W = torch.randn(4, 6), torch.randn(4, 6), torch.randn(4, 6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: rafters.add(X, Y),
        lambda: rafters.add(X, X),
        lambda: rafters.add(X, 2.0),
        lambda: rafters.add(2, X),
        lambda: rafters.add(X, Y, out=W),
        lambda: rafters.add(W, Y, out=W),
        lambda: rafters.add(X, 1.5, out=W),
        lambda: accumulate_(W, Y),
        lambda: peak(X, out=(W, torch.empty(4, 1))),
        lambda: power(X, 3, 0.5),
        lambda: power(X, 3, 2),
        lambda: rafters.div(torch.arange(3), torch.arange(1, 4)),
        lambda: rafters.gelu(X),
    ],
)
def test_a_repeated_call_is_found(call, monkeypatch):
    first = call()
    call()
    seen = count_slow(monkeypatch)
    second = call()
    assert seen == []
    assert type(first) is type(second)


def test_numbers_are_read_at_every_call():
    x = torch.ones(3)
    assert [rafters.add(x, k)[0].item() for k in (1.5, 2.5, 3, True)] == [2.5, 3.5, 4, 2]
    i = torch.ones(3, dtype=torch.int8)
    assert rafters.add(i, 3).tolist() == [4, 4, 4]
    with pytest.raises(rafters.ArgumentError, match="300"):
        rafters.add(i, 300)


def test_out_is_looked_at_at_every_call():
    base = torch.zeros(20)
    x, y, apart = base[:8], torch.ones(8), base[10:18]
    for _ in range(3):
        assert rafters.add(x, y, out=apart) is apart
    with pytest.raises(rafters.ArgumentError, match="overlaps"):
        rafters.add(x, y, out=base[4:12])
    assert rafters.add(x, y, out=x).tolist() == [1] * 8  # element by element
    for _ in range(2):
        accumulate_(x, y)
    assert x.tolist() == [3] * 8
    with pytest.raises(rafters.ArgumentError, match="overlaps"):
        accumulate_(base[4:12], base[0:8])


def test_autograd_notices_what_a_known_call_overwrites():
    x, y = torch.ones(4), torch.ones(4)
    for call in (lambda: rafters.add(y, y, out=x), lambda: accumulate_(x, y)):
        call()
        call()
        before = x._version
        call()
        assert x._version > before


def test_an_address_of_another_class_is_another_plan(fake_gpu: FakeGPU):
    rafters.sub.forget_plans()
    x, y = torch.empty(64), torch.empty(64)
    for _ in range(3):
        rafters.sub(x, y)
    before = len(rafters.sub._variants)
    rafters.sub(torch.empty(65)[1:], y)
    assert len(rafters.sub._variants) == before + 1
    rafters.sub.forget_plans()
    rafters.sub._variants._variants.clear()


# -- the table ---------------------------------------------------------------------------------------------------------------------


def test_the_table_is_bounded_and_keeps_what_is_used():
    table = Table()
    used = Entry(print)
    table.keep("used", used, table.state)
    for i in range(5 * GENERATION):
        table.keep(i, Entry(print), table.state)
        if i % 1000 == 0:
            assert table.find("used") is used
    assert len(table) <= 2 * GENERATION
    assert table.find(0) is None
    assert table.find(5 * GENERATION - 1) is not None


def test_what_was_planned_before_a_switch_is_not_kept_after_it():
    table = Table()
    before = table.state
    table.clear()
    table.keep("key", Entry(print), before)
    assert table.get("key") is None


def test_sixteen_threads_call_first_at_once(fake_gpu: FakeGPU):
    @rafters.elementwise(name="t_plans::first")
    def first(x, y):
        return x * 2 + y

    calls = [(torch.empty(n, 32), torch.empty(n, 32)) for n in range(2, 66)]
    start, failures = threading.Barrier(16), []

    def work():
        start.wait()
        for _ in range(5):
            for x, y in calls:
                if first(x, y).shape != x.shape:
                    failures.append(x.shape)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(fake_gpu.compiled) == 1
