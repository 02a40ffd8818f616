"""Three ops as unlike as the library will hold, through one core that knows none of them: add; rms_norm with per-token fp8 codes (a
reduction, two outputs of other dtype and shape); rope in place on views of a packed qkv, with cos and sin gathered by position."""

import re
from pathlib import Path

import pytest
import torch

import rafters
from rafters import lang, tl
from rafters.engine.study import inspect as inspection
from rafters.engine.study.facts import facts
from rafters.engine.target import parse_target
from rafters.testing.kernels import prepare

ROOT = Path(__file__).parents[2]
FP8 = torch.float8_e4m3fn
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@rafters.rowwise(
    name="probe::rms_norm_fp8",
    outputs=(rafters.Output(FP8), rafters.Output(torch.float32, per_row=True)),
)
def rms_norm_fp8(x, weight, eps: float = 1e-6):
    y = x * lang.rsqrt(lang.row_mean(x * x) + eps) * weight
    y = y.to(tl.bfloat16).to(tl.float32)
    scale = lang.maximum(lang.div(lang.row_max(tl.abs(y)), 448.0), 1.0 / (448.0 * 512.0))
    return lang.div(y, scale), scale


def rms_norm_fp8_in_torch(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.float()
    y = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps) * weight.float()
    y = y.to(torch.bfloat16).float()
    scale = (y.abs().amax(-1, keepdim=True) / 448.0).clamp_min(1.0 / (448.0 * 512.0))
    return (y / scale).clamp(-448, 448).to(FP8), scale


@rafters.elementwise(
    name="probe::rope_",
    views={
        "x1": rafters.View("x", "lo"),
        "x2": rafters.View("x", "hi"),
        "cos": rafters.View("cos_sin", "lo", rows="positions"),
        "sin": rafters.View("cos_sin", "hi", rows="positions"),
    },
    outputs=(rafters.Output(into="x", part="lo"), rafters.Output(into="x", part="hi")),
)
def rope_(x1, x2, cos, sin):
    return x1 * cos - x2 * sin, x2 * cos + x1 * sin


def cos_sin_table(length: int, size: int) -> torch.Tensor:
    angles = torch.arange(length, dtype=torch.float64)[:, None] * 1e4 ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    return torch.cat([angles.cos(), angles.sin()], -1).float()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(3, 64), (5, 100), (2, 3, 257), (1, 4096), (7, 1), (64,)])
def test_rms_norm_with_codes(device: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.bfloat16)
    weight = torch.randn(shape[-1], dtype=torch.bfloat16)
    codes, scale = rms_norm_fp8(x.to(device), weight.to(device))
    assert codes.dtype is FP8
    assert codes.shape == x.shape
    assert scale.dtype is torch.float32
    assert scale.shape == (*shape[:-1], 1)
    want_codes, want_scale = rms_norm_fp8_in_torch(x, weight)
    torch.testing.assert_close(scale.cpu(), want_scale, rtol=2**-7, atol=0)
    got, want = codes.cpu().float() * scale.cpu(), want_codes.float() * want_scale
    torch.testing.assert_close(got, want, rtol=2**-3, atol=float(want_scale.max()))
    same = (codes.cpu().view(torch.uint8) == want_codes.view(torch.uint8)).float().mean()
    assert same >= 0.97, f"{float(same):.3f} of the codes agree"


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_the_same_in_any_batch_or_view(device: str) -> None:
    torch.manual_seed(0)
    wide = torch.randn(9, 400, dtype=torch.bfloat16, device=device)
    weight = torch.randn(200, dtype=torch.bfloat16, device=device)
    codes, scale = rms_norm_fp8(wide[:, :200], weight)
    for row in (0, 8):
        one, its = rms_norm_fp8(wide[row : row + 1, :200].clone(), weight)
        assert torch.equal(one.view(torch.uint8), codes[row : row + 1].view(torch.uint8))
        assert torch.equal(its, scale[row : row + 1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("positions_dtype", [torch.int32, torch.int64])
def test_rope_in_place_on_a_packed_qkv(device: str, positions_dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tokens, q_heads, kv_heads, size = 5, 4, 2, 16
    qkv = torch.randn(tokens, (q_heads + 2 * kv_heads) * size, dtype=torch.bfloat16)
    table, positions = cos_sin_table(128, size), torch.tensor([0, 3, 127, 64, 5], dtype=positions_dtype)
    want = qkv.clone()
    q = want[:, : q_heads * size].view(tokens, q_heads, size)
    lo, hi = q[..., : size // 2].float(), q[..., size // 2 :].float()
    cos, sin = table[positions.long()][:, None].chunk(2, -1)
    q[:] = torch.cat([lo * cos - hi * sin, hi * cos + lo * sin], -1).to(torch.bfloat16)
    there = qkv.to(device)
    assert rope_(there[:, : q_heads * size].view(tokens, q_heads, size), table.to(device), positions.to(device)) is None
    assert torch.equal(there.cpu()[:, q_heads * size :], qkv[:, q_heads * size :]), "k or v was touched"
    torch.testing.assert_close(there.cpu(), want, rtol=2**-8, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_a_position_outside_the_table_gives_nan_and_touches_nothing_else(device: str) -> None:
    x = torch.ones(3, 2, 8, device=device)
    rope_(x, cos_sin_table(4, 8).to(device), torch.tensor([1, 4, -1], device=device))
    assert x[0].isfinite().all()
    assert x[1:].isnan().all()


@pytest.mark.parametrize("device", DEVICES)
def test_position_zero_is_the_identity_bit_for_bit(device: str) -> None:
    x = torch.randn(3, 2, 8, device=device)
    before = x.clone()
    rope_(x, cos_sin_table(4, 8).to(device), torch.zeros(3, dtype=torch.int64, device=device))
    assert torch.equal(x, before)


def test_add_is_the_first_probe() -> None:
    x, y = torch.randn(3, 5), torch.randn(5)
    assert torch.equal(rafters.add(x, y), x + y)


@pytest.mark.parametrize("target", ["sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("op", [rms_norm_fp8, rope_], ids=lambda op: str(op.name))
def test_kernels_of_the_probes(op: rafters.Op, target: str) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    records = inspection.inspect(op.spec, parse_target(target), torch.bfloat16)
    assert records
    for record in records:
        assert "error" not in record, record
        assert record["spill_bytes"] == 0
        assert record["wait_first"] in (True, None)
        assert record["pdl"] is (target != "gfx942")
        if record["aligned"] and target != "gfx942":
            # the narrowest operand decides how wide the others can be; codes of one byte leave 64-bit stores to eight elements
            assert record["hot"]["load_bits"] >= 64, record


@pytest.mark.parametrize("width", [64, 128, 200, 201, 4096])
def test_the_order_of_a_reduction_does_not_depend_on_the_number_of_rows(width: int) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    found = {}
    for rows in (1, 2, 7, 1000):
        x, weight = (torch.empty(*shape, dtype=torch.bfloat16, device="meta") for shape in ((rows, width), (width,)))
        made = prepare(rms_norm_fp8, (x, weight, 1e-6))
        names = [name for name, kind in made.recipe.signature if kind != "constexpr"]
        found[rows] = facts(made.compile(), names).reduce_layout
    assert all(layouts == found[1] for layouts in found.values()), found
    assert found[1]


def test_trace_and_engine_know_no_op_by_name() -> None:
    names = {*rafters.ops.table(), "rms_norm", "rope", "quant"}
    common = {
        "add",
        "sub",
        "mul",
        "div",
        "where",
        "clamp",
        "maximum",
        "minimum",
        "sigmoid",
        "tanh",
        "scale",
        "lerp",
    }  # words of the language
    words = re.compile(r"\b(" + "|".join(sorted(names - common)) + r")\b")
    for room in ("trace", "engine"):
        for file in (ROOT / "src" / "rafters" / room).rglob("*.py"):
            assert not words.search(file.read_text()), f"{file.name} names {words.search(file.read_text())}"
