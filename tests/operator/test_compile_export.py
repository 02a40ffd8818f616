"""torch.export and AOTInductor; case 77: what the fake function says is what comes out."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import rafters
from rafters.ops import table

TABLE = table()
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(2))


class Gated(torch.nn.Module):
    """One op to be taken apart, one kept whole, one with a scalar."""

    def forward(self, x, gate):
        return torch.relu(rafters.silu_mul(gate, x) + rafters.softcap.opaque(x, 3.0) + rafters.softcap(x, 2.0))


class Fused(torch.nn.Module):
    def forward(self, x, gate):
        return torch.relu(rafters.silu_mul(gate, x) + rafters.softcap(x, 2.0))


OPS = ["rafters.silu_mul.default", "rafters.softcap.opaque", "rafters.softcap.default"]


def ours(program) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if str(node.target).startswith("rafters.")]


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
def test_export_save_and_load_keep_the_ops(strict, tmp_path):
    dynamic = {"x": {0: torch.export.Dim("tokens")}, "gate": {0: torch.export.Dim("tokens")}}
    program = torch.export.export(Gated(), (X, X * 2), strict=strict, dynamic_shapes=dynamic)
    assert ours(program) == ours(program.run_decompositions()) == OPS
    torch.export.save(program, tmp_path / "gated.pt2")
    loaded = torch.export.load(tmp_path / "gated.pt2")
    assert ours(loaded) == OPS
    for x in (X, torch.randn(9, 6)):
        assert torch.equal(loaded.module()(x, x * 2), Gated()(x, x * 2))


def test_an_exported_program_compiles(tmp_path):
    program = torch.export.export(Gated(), (X, X * 2))
    torch._dynamo.reset()
    made = torch.compile(program.module(), backend="aot_eager", fullgraph=True)(X, X * 2)
    torch.testing.assert_close(made, Gated()(X, X * 2))


def test_an_aoti_package_with_an_opaque_op_runs(tmp_path):
    program = torch.export.export(Gated(), (X, X * 2))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "gated.pt2"))
    torch.testing.assert_close(torch._inductor.aoti_load_package(package)(X, X * 2), Gated()(X, X * 2))


def test_an_aoti_package_of_decomposed_ops_needs_no_rafters(tmp_path, run_python):
    program = torch.export.export(Fused(), (X, X * 2))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "fused.pt2"))
    torch.save((X, X * 2, Fused()(X, X * 2)), tmp_path / "values.pt")
    run_python(f"""
import sys, torch
x, gate, wanted = torch.load({str(tmp_path / "values.pt")!r})
made = torch._inductor.aoti_load_package({package!r})(x, gate)
torch.testing.assert_close(made, wanted)
assert not any(name.startswith("rafters") for name in sys.modules)
""")


# -- case 77 -------------------------------------------------------------------------------------------------------------------------


def strided(layout: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Three operands."""
    t = (torch.randn(3, 6, 40, 18, generator=torch.Generator().manual_seed(3)) * 3).to(dtype)
    made = {
        "contiguous": [t[i, :, :, 0].contiguous() for i in range(3)],
        "transposed": [t[i, :, :, 1].t().contiguous().t() for i in range(3)],
        "transposed beside contiguous": [t[0, :, :, 1].t().contiguous().t(), t[1, :, :, 1].contiguous(), t[2, :, :, 1]],
        "0-d": [t[i, 0, 0, 0].clone() for i in range(3)],
        "0-d beside dense": [t[0, 0, 0, 0].clone(), t[1, :, :, 0], t[2, 0, 0, 0].clone()],
        "no rows": [t[i, :0, :, 0] for i in range(3)],
        "no columns": [t[i, :, :0, 0] for i in range(3)],
        "pitched": [t[i, :, :, 2] for i in range(3)],
        "permuted": [t[i].permute(2, 0, 1) for i in range(3)],
        "expanded": [t[i, 0, :, 3].expand(6, 40) for i in range(3)],
        "vector": [t[0, :, :, 0], t[1, 0, :, 0], t[2, :, :1, 0]],
        "size 1": [t[i, :1, :1, 0] for i in range(3)],
        "odd strides": [t[i].as_strided((3, 1, 4), (4, 77, 1)) for i in range(3)],
        "channels last": [t[i, :4, :6, :15].reshape(2, 2, 6, 15).contiguous(memory_format=torch.channels_last) for i in range(3)],
        "both ways": [t[0, :4, None, :6, 0], t[1, :5, :1, 0], t[2, :4, :5, 0].t().contiguous().t()[..., None]],
    }
    return made[layout]


NAMES = ["contiguous", "transposed", "transposed beside contiguous", "0-d", "0-d beside dense", "no rows", "no columns", "pitched",
         "permuted", "expanded", "vector", "size 1", "odd strides", "channels last", "both ways"]  # fmt: skip


def drawn(op: rafters.Op, layout: str, dtype: torch.dtype) -> list:
    tensors = iter(strided(layout, dtype))
    made: list = []
    for p in op.spec.parameters:
        made.append(next(tensors) if p.kind == "tensor" else 2.0)
        if op.spec.accepts.get(p.name) == "bool":
            made[-1] = made[-1] > 0
    return made


@pytest.mark.parametrize("layout", NAMES)
def test_case_77_fake_results_are_the_real_ones(layout):
    for op in TABLE.values():
        for dtype in (torch.float32, torch.bfloat16):
            given = drawn(op, layout, dtype)
            real = op(*given)
            with FakeTensorMode() as mode:
                fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in given]
                for fake in (op(*fakes), op._registration.opaque(*op._registration.tensorized(fakes))):
                    assert fake.shape == real.shape, op
                    assert fake.stride() == real.stride(), op
                    assert (fake.dtype, fake.device) == (real.dtype, real.device), op


@rafters.rowwise(name="t_export::norm", outputs=[rafters.Output(), rafters.Output(per_row=True)])
def norm(x, weight):
    scale = rafters.lang.rsqrt(rafters.lang.row_mean(x * x) + 1e-6)
    return x * scale * weight, scale


@pytest.mark.parametrize("op", [rafters.silu_mul, rafters.softcap, norm], ids=["silu_mul", "softcap", "norm"])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "pitched", "vector", "no rows"])
def test_case_77_opcheck_of_the_opaque_overload(op, layout):
    """PyTorch's own checker, on the overload that stays a call; strides are compared above, by hand."""
    given = [a.clone() if layout == "no rows" and isinstance(a, torch.Tensor) else a for a in drawn(op, layout, torch.float32)]
    torch.library.opcheck(op._registration.opaque, tuple(op._registration.tensorized(given)))
    real = op(*given)
    with FakeTensorMode() as mode:
        fake = op(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in given))
    results = zip(real if isinstance(real, tuple) else (real,), fake if isinstance(fake, tuple) else (fake,), strict=True)
    assert all(r.stride() == f.stride() and r.shape == f.shape for r, f in results)
