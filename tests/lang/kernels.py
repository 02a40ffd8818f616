"""Kernels around one word, and samples of float32, for the tests of this folder."""

import linecache

import numpy as np

ARITY = {"add": 2, "div": 2, "div_by": 2, "maximum": 2, "minimum": 2, "fma": 3, "where": 3, "clamp": 3}
TARGETS = [("cuda", 80, 32), ("cuda", 90, 32), ("cuda", 100, 32), ("cuda", 120, 32), ("hip", "gfx942", 64)]


def kernel(name, block=128, word=None):
    """A kernel that stores the word `name` (or the JITFunction `word`) of its loaded arguments, one element a thread."""
    import triton
    import triton.language as tl

    from rafters import lang

    arguments = [f"a{i}" for i in range(ARITY.get(name, 1))]
    source = (
        f"def run({', '.join(arguments)}, out):\n"
        f"    at = tl.program_id(0) * {block} + tl.arange(0, {block})\n"
        f"    tl.store(out + at, word({', '.join(f'tl.load({a} + at)' for a in arguments)}))\n"
    )
    file = f"<{name} {block}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names = {"tl": tl, "word": word or getattr(lang, name), "__name__": "kernels"}
    exec(compile(source, file, "exec"), names)
    return triton.jit(names["run"])


def compiled(name, target, dtype="fp32", out="fp32", word=None):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {f"a{i}": f"*{dtype}" for i in range(ARITY.get(name, 1))} | {"out": f"*{out}"}
    options = {"enable_fp_fusion": False, "num_warps": 4}
    if target[0] == "cuda":
        options["enable_reflect_ftz"] = False
    return triton.compile(ASTSource(kernel(name, word=word), signature, {}), target=GPUTarget(*target), options=options)


def float32_samples(count, seed=0):
    """Every exponent with random mantissas and signs, as many again where functions bend (2^-30 to 2^8), and the ends."""
    random = np.random.default_rng(seed)
    exponent = np.concatenate([random.integers(0, 255, count // 2), random.integers(97, 136, count - count // 2)])
    bits = (exponent << 23) | random.integers(0, 1 << 23, count) | (random.integers(0, 2, count) << 31)
    x = bits.astype(np.uint32).view(np.float32)
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 1.0, -1.0]
    x[: len(ends)] = ends
    return x


def ulps(got, truth):
    """Error of float32 `got` in units of the last place of the float64 truth; inf where one is NaN and the other is not."""
    with np.errstate(all="ignore"):
        size = np.clip(np.floor(np.log2(np.where(np.isfinite(truth) & (truth != 0), np.abs(truth), 1.0))), -126, 127)
        error = np.abs(got.astype(np.float64) - truth) / np.exp2(size - 23)
        overflow = np.isinf(got) & (np.sign(got) == np.sign(truth)) & (np.abs(truth) >= 3.4028235677973366e38)
        both_nan = np.isnan(got) & np.isnan(truth)
        return np.where(overflow | both_nan | (got == truth), 0.0, np.where(np.isnan(error), np.inf, error))
