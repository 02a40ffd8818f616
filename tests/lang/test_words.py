"""Every word without a device: accuracy on the PTX itself, compiled for every target, in the interpreter, and its meaning."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rafters import lang
from rafters.lang import arithmetic

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from kernels import TARGETS, build, cast_kernel, compiled, float32_samples, row_kernel, ulps
from ptx_machine import Machine

# Largest error seen on 2^22 samples, rounded up: a fit or an order of operations made worse fails.
BOUNDS = {
    "exp": 1.1, "exp2": 1.1, "expm1": 1.6, "log": 1.0, "log2": 1.7, "log1p": 1.5, "sqrt": 0.5, "rsqrt": 1.5,
    "sigmoid": 1.6, "tanh": 2.0, "erfc": 3.7, "ndtr": 4.0, "rint": 0.0, "floor": 0.0, "ceil": 0.0, "abs": 0.0,
}  # fmt: skip
ROWS = [name for name in lang.WORDS if name.startswith("row_")]
POINTWISE = [name for name in lang.WORDS if name not in ROWS and name not in ("cast_fp8",)]


def machine(name, **kwargs):
    return Machine(compiled(name, ("cuda", 90, 32)).asm["ptx"], **kwargs)


@pytest.mark.parametrize("name", BOUNDS)
def test_float32_error(name):
    x = float32_samples(1 << 20)
    if name in ("erfc", "ndtr"):
        x[-(1 << 18) :] = np.random.default_rng(1).uniform(-15, 15, 1 << 18)
    got = machine(name)(np.float32, x)
    truth = lang.WORDS[name].meaning(torch.from_numpy(x).double()).numpy()
    error = ulps(got, truth)
    worst = error.argmax()
    assert error[worst] <= BOUNDS[name], f"{name}({x[worst]!r}) = {got[worst]!r}, {error[worst]:.2f} ulp from {truth[worst]!r}"
    zero = (got == 0) & (truth == 0)
    assert np.array_equal(np.signbit(got[zero]), np.signbit(truth[zero]))


@pytest.mark.parametrize("off", [-2.0, 0.0, 2.0])
def test_erf_error_whatever_ex2_does(off):
    """The device library's erf holds one ex2.approx, which PTX bounds by 2 ulp: both ends of that are tried."""
    x = float32_samples(1 << 19)
    assert ulps(machine("erf", approx_ulps=off)(np.float32, x), torch.from_numpy(x).double().erf().numpy()).max() <= 2


def test_quotient_by_scale_is_the_ieee_quotient():
    random = np.random.default_rng(1)
    s = np.exp2(random.uniform(-149, 127, 1 << 19)).astype(np.float32)
    q = np.exp2(random.uniform(-99, 126, s.size)) * random.choice([-1, 1], s.size)
    q = q.astype(np.float32).astype(np.float64)
    halfway = q + np.spacing(q.astype(np.float32)).astype(np.float64) / 2  # quotients beside a tie are the hard ones
    with np.errstate(over="ignore"):
        x = np.where(random.integers(0, 2, s.size) == 1, halfway * s, q * s).astype(np.float32)
        want = x / s
    ok = (np.abs(want) >= 2.0**-100) & (np.abs(want) < 2.0**127)
    got = machine("div_by")(np.float32, x, s)
    assert ok.mean() > 0.5
    assert np.array_equal(got[ok], want[ok])


def test_quotient_by_scale_at_the_ends():
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -3.0, 1e-40, 3e38], np.float32)
    x, s = (a.ravel().copy() for a in np.meshgrid(ends, ends))
    with np.errstate(all="ignore"):
        want = x / s
    got = machine("div_by")(np.float32, np.resize(x, 128), np.resize(s, 128))[: x.size]
    tiny = (want != 0) & (np.abs(want) < 2.0**-100)  # within one unit of the last place
    assert np.array_equal(got[~tiny], want[~tiny], equal_nan=True)
    assert np.abs(got[tiny].astype(np.float64) - want[tiny]).max() <= 2.0**-149
    assert np.array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@pytest.mark.parametrize("name", POINTWISE)
def test_compiles_everywhere_and_keeps_subnormals(name):
    for target in TARGETS:
        ptx = compiled(name, target).asm.get("ptx", "")
        # erf: its ex2 flushes only what is far below half an ulp of the 1 it is taken from.
        assert ".ftz" not in ptx.replace("ex2.approx.ftz.f32", "" if name == "erf" else "ex2.approx.ftz.f32"), target


@pytest.mark.parametrize("name", POINTWISE)
@pytest.mark.parametrize("dtype", ["fp64", "i32"])
def test_compiles_for_other_types(name, dtype):
    for target in (TARGETS[1], TARGETS[4]):
        compiled(name, target, dtype, "fp64" if dtype == "fp64" else "fp32")


@pytest.mark.parametrize("name", ROWS)
def test_row_words_compile(name):
    for target in TARGETS:
        for dtype in ("fp32", "bf16", "fp64", "i32"):
            out = "i64" if dtype == "i32" and name == "row_sum" else dtype if name.endswith(("max", "min")) else "fp32"
            ptx = build(row_kernel(name), target, [dtype], out).asm.get("ptx", "")
            assert ".ftz" not in ptx, target


@pytest.mark.parametrize("kind", ["float8e4nv", "float8e5"])
def test_cast_fp8_compiles(kind):
    import triton.language as tl

    out = {"float8e4nv": "fp8e4nv", "float8e5": "fp8e5"}[kind]
    for target in [("cuda", 89, 32), *TARGETS[1:]]:
        for dtype in ("fp32", "bf16"):
            build(cast_kernel(getattr(tl, kind), 128), target, [dtype], out)


def test_no_word_holds_a_nan():
    """Triton compares the globals of a kernel with those it was compiled with; a NaN differs from itself."""
    for word in lang.WORDS.values():
        assert not any(value.value != value.value for value in _constants(word.jit, set()))


def _constants(function, seen):
    for value in function.fn.__globals__.values():
        if type(value).__name__ == "constexpr":
            yield value
        elif type(value).__name__ == "JITFunction" and id(value) not in seen:
            seen.add(id(value))
            yield from _constants(value, seen)


def test_float64_tail_of_ndtr_is_compensated():
    """The rounding of x / sqrt(2), magnified 2 u^2 times by erfc; the device library itself is not run here."""
    ptx = compiled("ndtr", ("cuda", 90, 32), "fp64", "fp64").asm["ptx"]
    for constant in (4.833646656726457e-17, -0.7071067811865476):
        assert f"0d{np.float64(constant).view(np.uint64):016X}" in ptx


def test_interpreter():
    program = Path(__file__).with_name("interpreted.py")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-W", "ignore", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_meanings_follow_torch():
    meaning = {name: word.meaning for name, word in lang.WORDS.items()}
    x, nan = torch.tensor([-2.0, 0.5, float("nan")]), float("nan")
    assert torch.equal(meaning["add"](torch.tensor([True]), torch.tensor([True])), torch.tensor([True]))
    assert meaning["maximum"](x, 1.0)[2].isnan()
    assert meaning["minimum"](torch.tensor(nan), x)[0].isnan()
    assert meaning["clamp"](x, None, None) is x
    assert meaning["clamp"](x, None, 0.0)[:2].tolist() == [-2.0, 0.0]
    assert meaning["clamp"](x, torch.tensor(-1.0), 0.25)[:2].tolist() == [-1.0, 0.25]
    assert meaning["row_mean"](torch.ones(2, 3)).shape == (2, 1)


def test_a_word_outside_a_body_says_where_it_belongs():
    with pytest.raises(TypeError, match="exp is a word of an op's body"):
        lang.WORDS["exp"](torch.ones(1))
    with pytest.raises(AttributeError, match="no word 'expp'"):
        _ = lang.expp


def test_names_load_without_triton():
    code = "import sys; from rafters import lang; lang.WORDS['exp']; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SIDE_BY_SIDE = {
    "lerp": [(0.5, "x", 0.25), ("cpu", "x", "cpu"), (0.5, "x", "x"), ("x", "x", "cpu")],
    "clamp": [("x", "cpu", None), ("x", None, "cpu"), ("x", "cpu", 2.0), ("x", "cpu", "cpu"), ("cpu", "x", "x")],
    "maximum": [("x", "cpu"), (0.5, "x")],
}


@pytest.mark.parametrize("name", SIDE_BY_SIDE)
@pytest.mark.parametrize("device", ["meta", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_numbers_of_the_cpu_stand_beside_tensors_of_a_gpu(name, device):
    """In a word's meaning: PyTorch's kernels of three operands take none, or one, or fail an assertion of their own."""
    meaning = lang.WORDS[name].meaning
    x = torch.tensor([-1.5, 0.0, 0.75, float("nan")])
    for call in SIDE_BY_SIDE[name]:
        on_cpu, beside = ([{"x": x.to(where), "cpu": torch.tensor(-0.0)}.get(a, a) for a in call] for where in ("cpu", device))
        assert {t.device.type for t in arithmetic._tensors(*(a for a in beside if a is not None))} == {device}
        made, expected = meaning(*beside), meaning(*on_cpu)
        assert made.device.type == device
        assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
        if device != "meta":
            torch.testing.assert_close(made.cpu(), expected, equal_nan=True, rtol=1e-6, atol=0)
            assert bool(torch.signbit(arithmetic._tensors(x.to(device), torch.tensor(-0.0))[1]))
