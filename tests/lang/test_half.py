"""The codes for 16-bit values: every bfloat16 and every float16, with the approximate instructions wrong by all that PTX allows."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import rafters
from rafters import lang, ops
from rafters.testing.kernels import prepare
from rafters.trace.names import for_triton

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parent))

from halves import DTYPES, TRUTH, every, ulps16
from kernels import TARGETS, build, compiled, float32_samples, kernel
from ptx_machine import Machine

SM90 = ("cuda", 90, 32)
# ex2.approx is within 2 ulp; rsqrt.approx within a relative 2^-22.9, which is 2.2 ulp at most.
OFF = [{"ex2": 0.0, "rsqrt": 0.0}, *({"ex2": e, "rsqrt": r} for e in (-2.0, 2.0) for r in (-2.2, 2.2))]
# Largest log2 of the relative error seen on 2^20 samples, each instruction wrong by its bound; and instructions an element, one of
# them for the address and the like.
WORDS = {
    "exp": (-17.9, 6),
    "exp2": (-21.6, 5),
    "sigmoid": (-17.8, 13),
    "tanh": (-17.4, 17),
    "erf": (-18.5, 16),
    "erfc": (-16.8, 23),
    "ndtr": (-16.7, 23),
}


def code(name):
    """The half form of a word or of an op's body."""
    return lang.WORDS[name].half_jit if name in lang.WORDS else for_triton(getattr(ops, name).spec.body.function, half=True)


@pytest.mark.parametrize("name", TRUTH)
def test_every_half(name):
    ptx = compiled(name, SM90, word=code(name)).asm["ptx"]
    others = [[1.0], [-3.0]] if name == "silu_mul" else [[]]
    for dtype in DTYPES:
        x = every(dtype)
        for other in others:
            more = [torch.full_like(x, value) for value in other]
            truth = TRUTH[name](x.double(), *(m.double() for m in more))
            for off in OFF:
                arrays = [a.float().numpy() for a in (x, *more)]
                got = torch.from_numpy(Machine(ptx, off)(np.float32, *arrays).copy()).to(dtype)
                error = ulps16(got, truth)
                worst = error.argmax()
                seen = f"{name}({x[worst].item()!r}) = {got[worst].item()!r}, truth {truth[worst].item()!r}, {off}"
                assert error[worst] <= 1, seen
                zero = (got == 0) & (truth == 0)
                assert torch.equal(got[zero].signbit(), truth[zero].signbit())


@pytest.mark.parametrize("name", WORDS)
def test_relative_error(name):
    """On float32 arguments of every size: a body may compute before it calls the word."""
    ptx = compiled(name, SM90, word=code(name)).asm["ptx"]
    x = float32_samples(1 << 20)
    x[-(1 << 18) :] = np.random.default_rng(1).uniform(-15, 15, 1 << 18)
    truth = lang.WORDS[name].meaning(torch.from_numpy(x).double()).numpy()
    for off in OFF:
        got = Machine(ptx, off)(np.float32, x).astype(np.float64)
        with np.errstate(all="ignore"):
            error = np.abs(got - truth) / np.maximum(np.abs(truth), 2.0**-126)
            same = (got == truth) | (np.isnan(got) & np.isnan(truth)) | (np.isinf(got) & (np.abs(truth) > 3.4028e38))
        error = np.where(same, 0.0, error)
        worst = error.argmax()
        assert error[worst] <= 2.0 ** WORDS[name][0], f"{name}({x[worst]!r}) = {got[worst]!r}, truth {truth[worst]!r}, {off}"


@pytest.mark.parametrize("name", WORDS)
def test_instructions(name, tmp_path):
    """SASS of four more elements a thread: what lets memory be the limit of a 16-bit kernel."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        pytest.skip("this Triton brings no cuobjdump")
    counts = []
    for elements in (4, 8):
        cubin = tmp_path / f"{elements}.cubin"
        cubin.write_bytes(build(kernel(name, 128 * elements, code(name)), SM90, ["fp32"], "fp32").asm["cubin"])
        text = subprocess.run([tool, "-sass", cubin], capture_output=True, text=True, check=True).stdout
        counts.append(len([line for line in text.splitlines() if ";" in line and not re.search("LDG|STG|NOP|BRA", line)]))
    assert (counts[1] - counts[0]) / 4 <= WORDS[name][1]


@pytest.mark.parametrize("name", WORDS)
def test_compiles_everywhere(name):
    for target in TARGETS:
        compiled(name, target, word=code(name))
        compiled(name, target, "fp64", "fp64", word=code(name))


def prepared(op, dtypes):
    return prepare(op, [torch.empty(1024, dtype=d, device="meta") for d in dtypes]).recipe


@rafters.elementwise(name="test_half::through_the_package")
def through_the_package(x):
    """Names the words by the package."""
    return rafters.lang.exp(x)


def test_which_kernels_are_half():
    from rafters.engine.variant import compile_recipe

    half, full = torch.bfloat16, torch.float32
    for dtypes, wanted in [((half, half), True), ((torch.float16, half), False), ((half, full), False), ((full, full), False)]:
        made = prepared(ops.silu_mul, dtypes)
        assert made.half is wanted, dtypes
        assert ("ex2.approx" in compile_recipe(made).asm["ptx"]) is wanted
    assert "ex2.approx" in compile_recipe(prepared(through_the_package, [half])).asm["ptx"]
    assert not prepared(ops.sigmoid, [torch.int32]).half
    assert prepared(ops.relu, [torch.float8_e5m2]).half


def test_a_row_kernel_takes_the_half_words():
    from rafters.engine.variant import compile_recipe

    @rafters.rowwise(name="test_half::soft")
    def soft(x):
        """exp(x) over its sum."""
        e = lang.exp(x)
        return e / lang.row_sum(e)

    for dtype, wanted in ((torch.bfloat16, True), (torch.float32, False)):
        made = prepare(soft, [torch.empty(8, 256, dtype=dtype, device="meta")]).recipe
        assert ("ex2.approx" in compile_recipe(made).asm["ptx"]) is wanted


def test_both_forms_of_a_word_are_that_word():
    word = lang.WORDS["exp"]
    assert lang.word_of(word.jit) is lang.word_of(word.half_jit) is word
    assert word.jit.cache_key != word.half_jit.cache_key
