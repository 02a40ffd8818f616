"""torch.compile on a GPU: how many kernels, CUDA graphs, bits."""

import pytest
import torch
from compiling import code_of
from torch._dynamo.utils import counters

import rafters
from rafters.testing.compare import same_bits

pytestmark = pytest.mark.gpu
KERNEL = "async_compile.triton("


def draw(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0)).to(dtype)


def launches(function) -> list[str]:
    """Names of the kernels that ran on the device."""
    function()
    torch.cuda.synchronize()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as profile:
        function()
        torch.cuda.synchronize()
    names = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return [n for n in names if not n.startswith(("Mem", "##", "Torch-Compiled"))]  # copies, and the regions that Inductor names


@rafters.rowwise(name="t_compile_gpu::rms_norm")
def rms_norm(x, weight, eps: float = 1e-6):
    return x * rafters.lang.rsqrt(rafters.lang.row_mean(x * x) + eps) * weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_relu_of_an_op_of_a_sum_is_one_kernel(dtype):
    x = draw(512, 1024, dtype=dtype)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.relu(rafters.silu(x + 1)), fullgraph=True)
    made, code = code_of(compiled, x)
    assert [text.count(KERNEL) for text in code] == [1]
    assert len(launches(lambda: compiled(x))) == 1
    torch.testing.assert_close(made, torch.relu(rafters.silu(x.float() + 1)).to(dtype))


def test_an_opaque_op_is_our_kernel_and_its_bits():
    x, w = draw(512, 1024), draw(1024)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: (rms_norm(x, w), rafters.silu_mul.opaque(x, w)), fullgraph=True)
    for got, wanted in zip(compiled(x, w), (rms_norm(x, w), rafters.silu_mul(x, w)), strict=True):
        assert same_bits(got, wanted)
    assert len(launches(lambda: compiled(x, w))) == 2


def test_forward_and_backward_are_one_kernel_each():
    x, y = draw(256, 512, dtype=torch.float32).requires_grad_(), draw(256, 512, dtype=torch.float32).requires_grad_()
    torch._dynamo.reset()
    seed = torch.ones(256, 512, device="cuda")

    def step():
        made = torch.compile(lambda x, y: torch.relu(rafters.silu_mul(x, y) + 1), fullgraph=True)(x, y)
        return torch.autograd.grad(made, (x, y), seed)

    got, code = code_of(step)
    assert [text.count(KERNEL) for text in code] == [1, 1]
    wanted = torch.autograd.grad(torch.relu(rafters.silu_mul(x, y) + 1), (x, y), seed)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("kind", ["fuse", "opaque"])
def test_case_82_functional_forms_replay_as_cuda_graphs(kind):
    """No "skipping cudagraphs", and a replay follows its inputs."""
    call = rafters.silu_mul if kind == "fuse" else rafters.silu_mul.opaque
    w = draw(1024)

    def function(x, y):
        return rms_norm(call(x, y), w) + 1

    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(function, mode="reduce-overhead", fullgraph=True)
    for step in range(5):
        x, y = draw(64, 1024) * (step + 1), draw(64, 1024) - step
        torch.compiler.cudagraph_mark_step_begin()
        got, wanted = compiled(x, y).clone(), function(x, y)
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
    assert counters["inductor"]["cudagraph_skips"] == 0


def test_scalars_that_vary_take_one_more_graph():
    from torch._dynamo.testing import CompileCounterWithBackend

    x = draw(64, 128, dtype=torch.float32)
    for call in (rafters.softcap, rafters.softcap.opaque, rafters.add, rafters.add.opaque):
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("inductor")
        compiled = torch.compile(call, backend=counter, fullgraph=True)
        for value in (50.0, 30.0, 0.1, 7.5):
            torch.testing.assert_close(compiled(x, value), call(x, value))
        assert counter.frame_count <= 2


def test_an_overwritten_argument_is_overwritten():
    @rafters.elementwise(name="t_compile_gpu::add_into", outputs=[rafters.Output(into="x")])
    def add_into(x, y):
        return x + y

    def function(x):
        add_into(x[0], x[1])
        return x * 2

    mine, eager = draw(4, 1024), draw(4, 1024)
    torch._dynamo.reset()
    assert same_bits(torch.compile(function, fullgraph=True)(mine), function(eager))
    assert same_bits(mine, eager)
