"""Calls that look alike and are not, names that meet in generated code, memory that is read and written at once."""

import threading

import pytest
import torch

import rafters
from rafters import lang, tl

CPU_AND_GPU = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def test_ops_of_one_factory_stay_apart():
    def make(k):
        @rafters.elementwise(name="t_sound::times")
        def times(x):
            return x * k

        return times

    two, three = make(2.0), make(3.0)
    for x in (torch.ones(3), torch.ones(3, requires_grad=True)):
        assert two(x).tolist() == [2, 2, 2]
        assert three(x).tolist() == [3, 3, 3]


def test_first_calls_from_many_threads():
    made = [make_op(i) for i in range(8)]
    start, failures = threading.Barrier(8), []

    def call(i):
        start.wait()
        try:
            assert made[i](torch.ones(4)).tolist() == [float(i)] * 4
        except Exception as problem:
            failures.append(repr(problem))

    threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    before = torch.nn.Module.__call__
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert torch.nn.Module.__call__ is before


def make_op(i):
    factor = float(i)

    @rafters.elementwise(name=f"t_sound::times_{i}")
    def op(x):
        return x * factor

    return op


@rafters.elementwise(name="t_sound::power_of_two")
def repeated(x, k: int):
    return x * k


def test_a_scalar_of_another_type_is_checked_after_a_good_call():
    x = torch.ones(3)
    assert repeated(x, 2).tolist() == [2, 2, 2]
    for wrong in (2.5, torch.nn.Parameter(torch.tensor(2.0))):
        with pytest.raises(rafters.ArgumentError, match="argument 'k'"):
            repeated(x, wrong)


def test_switches_reach_calls_that_are_planned():
    x, seen = torch.ones(3), []
    build = rafters.add.form.build
    rafters.add.form.build = lambda *a: (seen.append(a[-1]), build(*a))[1]
    try:
        rafters.add.forget_plans()
        rafters.add(x, x)
        with rafters.options(pdl=False):
            rafters.add(x, x)
    finally:
        del rafters.add.form.build
        rafters.add.forget_plans()
    assert seen == [True, False]


@rafters.rowwise(name="t_sound::peak", outputs=(rafters.Output("x", per_row=True),))
def peak(x):
    return lang.row_max(x)


@rafters.rowwise(name="t_sound::total", outputs=(rafters.Output(torch.int64, per_row=True),))
def total(x):
    return lang.row_sum(x)


@rafters.rowwise(name="t_sound::plus_total")
def plus_total(x):
    return lang.row_sum(x) + x


@pytest.mark.parametrize("device", CPU_AND_GPU)
def test_integers_of_a_row_never_become_floats(device):
    x = torch.tensor([[2**24 + 1] * 5, [-(2**24) - 1] * 5], dtype=torch.int32, device=device)
    assert peak(x).flatten().tolist() == [2**24 + 1, -(2**24) - 1]
    assert total(x).flatten().tolist() == [5 * (2**24 + 1), -5 * (2**24 + 1)]


@pytest.mark.parametrize("device", CPU_AND_GPU)
def test_a_row_that_is_one_value_repeated(device):
    x = torch.ones(4, 1, device=device).expand(4, 8)
    assert plus_total(x).unique().tolist() == [9]


@rafters.elementwise(name="t_sound::both")
def both(x, y):
    return tl.where(x != 0 and not (y > 2), 1, 0)


@rafters.elementwise(name="t_sound::both_numbers")
def both_numbers(x, y):
    return tl.where(x and y, 1, 0)


@pytest.mark.parametrize("device", CPU_AND_GPU)
def test_logic_joins_conditions_per_element(device):
    x, y = (torch.tensor(v, device=device) for v in ([1, 2, 3, 0], [2, 1, 3, 1]))
    assert both(x, y).tolist() == [1, 1, 0, 0]
    with pytest.raises(rafters.RaftersError):  # Triton has no truth of a number
        both_numbers(x, y)


def test_an_elementwise_body_has_no_rows():
    def centred(x):
        return x - lang.row_max(x)

    with pytest.raises(rafters.BodyError, match="row_max reduces a row"):
        rafters.elementwise(name="t_sound::centred")(centred)


def test_meta_tensors():
    x, y = torch.empty(3, 4, device="meta"), torch.empty(4, dtype=torch.float64, device="meta")
    for made in (rafters.add(x, y), torch.ops.rafters.add(x, y)):
        assert (made.device.type, made.shape, made.dtype) == ("meta", (3, 4), torch.float64)


@rafters.elementwise(name="t_sound::put_", outputs=(rafters.Output(into="cache", rows="slots"),))
def put_(x):
    return x


@rafters.elementwise(name="t_sound::take", views={"row": rafters.View("table", rows="ids")})
def take(row):
    return row * 1.0


@pytest.mark.parametrize("device", CPU_AND_GPU)
def test_a_scatter_stays_inside_its_rows(device):
    big = torch.zeros(6, 4, device=device)
    slots = torch.tensor([0], device=device)
    with pytest.raises(rafters.ArgumentError, match="argument 'cache'"):
        put_(torch.ones(1, 8, device=device), big[:4], slots)
    assert big.abs().sum() == 0
    put_(torch.ones(3, 4, device=device), big[:4], torch.tensor([2, -1, 9], device=device))
    assert big.sum(1).tolist() == [0, 0, 4, 0, 0, 0]


def test_what_is_gathered_is_not_overwritten():
    table = torch.randn(8, 4)
    with pytest.raises(rafters.ArgumentError, match="argument 'out'"):
        take(table, torch.arange(7, -1, -1), out=table)


@pytest.mark.parametrize("device", CPU_AND_GPU)
def test_an_empty_table_gives_nan(device):
    made = take(torch.empty(0, 4, device=device), torch.tensor([0, 3], device=device))
    assert made.shape == (2, 4)
    assert made.isnan().all()


@pytest.mark.parametrize("device", CPU_AND_GPU)
def test_overwriting_a_saved_tensor_is_noticed(device):
    x = torch.ones(4, device=device)
    w = torch.ones(4, device=device, requires_grad=True)
    y = (x * w).sum()
    rafters.add(x, 1.0, out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_names_too_alike_are_refused():
    def alike(x, X):
        return x + X

    def suffixed(n, n_):
        return n + n_

    for body in (alike, suffixed):
        with pytest.raises(rafters.BodyError, match="too alike"):
            rafters.elementwise(name="t_sound::alike")(body)


@rafters.elementwise(name="t_sound::bump_", views={"x_new": rafters.View("x")}, outputs=(rafters.Output(into="x"),))
def bump_(x_new):
    return x_new + 1


def test_a_parameter_named_as_a_result_would_be():
    x = torch.zeros(3)
    bump_(x)
    assert x.tolist() == [1, 1, 1]


def test_new_memory_is_written_whole():
    def one(x):
        return x

    for outputs, text in [
        ((rafters.Output(part="lo"),), "lo then hi"),
        ((rafters.Output(rows="ids"),), "name it with into="),
    ]:
        with pytest.raises(rafters.BodyError, match=text):
            rafters.elementwise(name="t_sound::partial", outputs=outputs)(one)


def test_an_infinite_default_is_refused():
    def capped(x, cap: float = float("inf")):
        return tl.minimum(x, cap)

    with pytest.raises(rafters.BodyError, match="the default inf of 'cap' cannot be written"):
        rafters.elementwise(name="t_sound::capped")(capped)


def test_numbers_of_a_hand_written_kernel_are_part_of_its_plan():
    seen = []

    def kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
        pass

    @rafters.kernel(kernel, reference=lambda x, n, flag: x[:n] * (2 if flag else 3), name="t_sound::head")
    def head(x, n: int, flag: bool):
        seen.append((n, flag))
        return rafters.Launch(out=torch.empty(n), grid=1, n=n, BLOCK=8)

    x = torch.arange(4.0)
    assert head(x, 2, True).tolist() == [0, 2]
    assert head(x, 3, False).tolist() == [0, 3, 6]
    assert head._key(x, 2, True) != head._key(x, 3, False)


@pytest.mark.parametrize("device", CPU_AND_GPU)
def test_a_lazily_negated_tensor_after_a_plain_one(device):
    """`z.conj().imag` is a plain tensor over memory that was not negated."""
    z = torch.tensor([1 + 2j, 3 - 4j], device=device)
    for negated, plain in ((z.conj().imag, z.imag), (z.conj().imag[0], z.imag[0])):
        for _ in range(2):
            assert torch.equal(rafters.mul(plain, plain), plain * plain)
            assert torch.equal(rafters.add(negated, negated), negated + negated)
            assert torch.equal(rafters.add(plain, plain), plain + plain)


def test_no_plan_ever_sees_the_negative_bit(monkeypatch):
    """On the CPU PyTorch's own kernels would honour the bit and hide a plan that does not; so look at what a plan is given."""
    op, seen = rafters.sub, []
    kept = type(op)._run
    monkeypatch.setattr(
        type(op), "_run", lambda self, arguments, given=(): (seen.append(arguments), kept(self, arguments, given))[1]
    )
    z = torch.tensor([1 + 2j, 3 - 4j])
    op.forget_plans()
    for call in (op, torch.ops.rafters.sub, op):
        assert call(z.conj().imag, 1.0 if call is op else z.real).tolist() == ([-3, 3] if call is op else [-3, 1])
    assert seen
    assert not any(isinstance(a, torch.Tensor) and a.is_neg() for arguments in seen for a in arguments)


def test_a_lazily_negated_tensor_is_not_written_to():
    z = torch.tensor([1 + 2j, 3 - 4j])
    with pytest.raises(rafters.ArgumentError, match="lazily negated"):
        bump_(z.conj().imag)
    with pytest.raises(rafters.ArgumentError, match="lazily negated"):
        torch.ops.t_sound.bump_(z.conj().imag)
    with pytest.raises(rafters.ArgumentError, match="argument 'out'"):
        rafters.add(z.real, 1.0, out=z.conj().imag)
    assert z.imag.tolist() == [2, -4]


def test_calls_that_are_remembered():
    """Integers, 0-d tensors and even strides are found by their key like any other call."""
    x = torch.arange(8)
    for arguments in ((x, x), (x.float(), torch.tensor(2.0)), (x.float()[::2], x.float()[::2])):
        rafters.add.forget_plans()
        rafters.add(*arguments)
        assert rafters.add._plans.get(rafters.add._key(*arguments)) is not None, arguments
    rafters.add.forget_plans()
    rafters.div.forget_plans()
    rafters.div(x, x)
    assert rafters.div._plans.get(rafters.div._key(x, x)) is None  # the default dtype decides, and is not in that key
