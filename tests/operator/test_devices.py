"""Case 85 and its kin: several devices, streams, threads that call first at once."""

import threading

import pytest
import torch

import rafters
from rafters import Output, View, lang

TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@rafters.rowwise(name="t_devices::norm", outputs=(Output(), Output(torch.float32, per_row=True)))
def norm(x, weight):
    scale = lang.rsqrt(lang.row_mean(x * x) + 1e-6)
    return x * scale * weight, scale


@rafters.elementwise(name="t_devices::add_", views={"a": View("x")}, outputs=(Output(into="x"),))
def add_(a, y):
    return a + y


def close(made, wanted):
    torch.testing.assert_close(made, wanted, rtol=1e-5, atol=1e-6, check_device=False)


def kinds():
    """Calls of every kind of kernel, and what they give on the CPU."""
    generator = torch.Generator().manual_seed(1)
    x, w = torch.randn(33, 129, generator=generator), torch.randn(129, generator=generator)
    yield "flat", rafters.silu, (x,)
    yield "rows", rafters.mul, (x, w)
    yield "strided", rafters.add, (x.t(), w[:, None])
    yield "number", rafters.mul, (x, 3.0)
    yield "a point on the CPU", rafters.mul, (x, torch.tensor(3.0))
    yield "row-wise", norm, (x, w)


def placed(arguments, device):
    return [a.to(device) if isinstance(a, torch.Tensor) and a.dim() else a for a in arguments]


@pytest.mark.gpu
@TWO
@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_case_85_tensors_on_the_other_device(order):
    """On each device in turn, device 0 current throughout: a kernel that is loaded on one device cannot be launched on the other."""
    torch.cuda.set_device(0)
    for _ in range(2):  # planned, then known
        for index in order:
            for name, op, arguments in kinds():
                wanted = op(*arguments)
                made = op(*placed(arguments, f"cuda:{index}"))
                for one, other in zip(*((r if isinstance(r, tuple) else (r,)) for r in (made, wanted)), strict=True):
                    assert one.device == torch.device("cuda", index), name
                    close(one.cpu(), other)
                assert torch.cuda.current_device() == 0, name
            kept = torch.ones(5, device=f"cuda:{index}")
            add_(kept, torch.ones(5, device=f"cuda:{index}"))
            assert kept.tolist() == [2] * 5
            into = torch.empty(5, device=f"cuda:{index}")
            assert rafters.add(kept, kept, out=into) is into
            assert into.tolist() == [4] * 5
            assert torch.cuda.current_device() == 0


@pytest.mark.gpu
@TWO
def test_case_85_gradients_on_the_other_device():
    torch.cuda.set_device(0)
    x, w = torch.randn(17, 65, requires_grad=True), torch.randn(65, requires_grad=True)
    rafters.silu_mul(rafters.mul(x, w), x).sum().backward()
    for index in (1, 0, 1):
        a, b = (t.detach().to(f"cuda:{index}").requires_grad_() for t in (x, w))
        rafters.silu_mul(rafters.mul(a, b), a).sum().backward()
        assert a.grad.device == b.grad.device == torch.device("cuda", index)
        torch.testing.assert_close(a.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(b.grad.cpu(), w.grad, rtol=1e-4, atol=1e-4)
        assert torch.cuda.current_device() == 0


@pytest.mark.gpu
@TWO
def test_case_85_side_stream_of_the_other_device():
    torch.cuda.set_device(0)
    x = torch.randn(1 << 20, device="cuda:1")
    stream = torch.cuda.Stream(device="cuda:1")
    stream.wait_stream(torch.cuda.current_stream("cuda:1"))
    for _ in range(3):
        with torch.cuda.stream(stream):  # makes cuda:1 current too
            y = x
            for _ in range(20):
                y = rafters.add(y, 1.0)
        stream.synchronize()
        torch.testing.assert_close(y, x + 20, rtol=1e-5, atol=1e-4)
    assert torch.cuda.current_device() == 0


@pytest.mark.gpu
@TWO
def test_case_85_two_gpus_in_one_call_are_refused():
    a, b = torch.ones(4, device="cuda:0"), torch.ones(4, device="cuda:1")
    with pytest.raises(
        rafters.ArgumentError, match=r"add: argument 'y': got device cuda:1, wanted device cuda:0 \(that of 'x'\)"
    ):
        rafters.add(a, b)
    with pytest.raises(rafters.ArgumentError, match=r"add: argument 'out': got device cuda:1, wanted device cuda:0"):
        rafters.add(a, a, out=torch.empty(4, device="cuda:1"))


@pytest.mark.gpu
def test_case_85_cpu_and_gpu():
    a, b = torch.ones(4), torch.ones(4, device="cuda")
    with pytest.raises(rafters.ArgumentError, match=r"add: argument 'y': got device cuda:0, wanted device cpu \(that of 'x'\)"):
        rafters.add(a, b)
    assert rafters.add(b, torch.tensor(2.0)).tolist() == [3] * 4
    assert rafters.add(torch.tensor(2.0), b).tolist() == [3] * 4
    assert rafters.add(a, a).device.type == "cpu"


@pytest.mark.gpu
def test_side_streams_are_used():
    """Work waits for what its own stream has been given before, not for the default stream."""
    x = torch.zeros(1 << 20, device="cuda")
    rafters.add(x, 1.0)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.add_(1)
        made = rafters.add(x, 1.0)  # must see the 1 that is still to come
    stream.synchronize()
    assert made.eq(2).all()


@pytest.mark.parametrize("device", DEVICES)
def test_sixteen_threads_call_one_op_first(device):
    """The same op, new to the process, with several kinds of call at once; then again, when everything is known."""

    @rafters.elementwise(name=f"t_devices::first_{device}")
    def first(x, y, alpha: float = 2.0):
        return x * lang.sigmoid(x) * y + alpha

    x = torch.randn(64, 96, device=device)
    calls = [(x, x), (x, x[0]), (x[:, :1], x), (x.t(), x.t()), (x, 2.0), (x[::2], x[::2])]
    calls += [(x.half(), x.half()), (x.double(), x.double())]
    wanted = [first.reference(*arguments) for arguments in calls]
    counts = []
    for _ in range(2):
        start, failures = threading.Barrier(16), []

        def call(i, start=start, failures=failures):
            start.wait()
            try:
                for step in range(8):
                    kind = (i + step) % len(calls)
                    made = first(*calls[kind])
                    half = made.dtype is torch.float16
                    torch.testing.assert_close(made, wanted[kind], rtol=2e-3 if half else 1e-5, atol=1e-3 if half else 1e-5)
                    if step == 3:  # a gradient, from a thread of autograd's own
                        a = x.clone().requires_grad_()
                        first(a, x).sum().backward()
                        assert a.grad is not None
            except Exception as problem:
                failures.append(repr(problem))

        threads = [threading.Thread(target=call, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        counts.append(len(first.variants()))
    assert counts[0] == counts[1]
    assert device == "cpu" or 1 <= counts[0] <= 2 * len(calls)  # forward and gradient of each kind, never one a thread


@pytest.mark.gpu
def test_case_89_kinds_of_call_in_any_order():
    """A variant or a plan of one kind of call never serves another: 200 calls, shapes, strides and dtypes in random order."""
    generator = torch.Generator().manual_seed(3)

    def pick(options):
        return options[int(torch.randint(len(options), (), generator=generator))]

    base = torch.randn(130, 136, generator=generator).cuda()
    for _ in range(200):
        dtype = pick([torch.float32, torch.bfloat16, torch.float16])
        rows, cols, offset = pick([1, 2, 33, 128]), pick([1, 7, 64, 128]), pick([0, 1, 2])
        x = base.to(dtype)[:rows, offset : offset + cols]
        x = pick([x, x.contiguous(), x.t().contiguous().t()])
        y = pick([x, base.to(dtype)[0, :cols], base.to(dtype)[:rows, :1], 2.5, torch.tensor(0.5)])
        op = pick([rafters.add, rafters.mul, rafters.silu_mul])
        if op is rafters.silu_mul and isinstance(y, float):
            y = x
        made, wanted = op(x, y), op(x.cpu(), y.cpu() if isinstance(y, torch.Tensor) else y)
        bound = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
        torch.testing.assert_close(made.cpu(), wanted, rtol=bound, atol=bound)


@pytest.mark.parametrize("device", DEVICES)
def test_case_89_the_first_call_overwrites_once(device):
    """Nothing is tried out on the caller's memory: an op in place, new to the process, acts once."""

    @rafters.elementwise(name=f"t_devices::halve_{device}_", views={"a": View("x")}, outputs=(Output(into="x"),))
    def halve_(a):
        return a * 0.5

    x = torch.ones(1000, device=device)
    halve_(x)
    assert x.eq(0.5).all()
    halve_(x)
    assert x.eq(0.25).all()
