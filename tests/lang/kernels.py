"""Kernels around one word, and samples of float32, for the tests of this folder."""

import linecache

import numpy as np

ARITY = {"add": 2, "div": 2, "div_by": 2, "maximum": 2, "minimum": 2, "fma": 3, "where": 3, "clamp": 3, "lerp": 3, "silu_mul": 2}
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
    return _jit(source, f"<{name} {block}>", {"tl": tl, "word": word or getattr(lang, name)}, triton)


def row_kernel(name, rows=4, cols=128):
    """A kernel that stores the row word `name` of a tile, one value a row."""
    import triton
    import triton.language as tl

    from rafters import lang

    source = (
        "def run(a0, out):\n"
        f"    row = tl.arange(0, {rows})[:, None]\n"
        f"    x = tl.load(a0 + row * {cols} + tl.arange(0, {cols})[None, :])\n"
        "    tl.store(out + row, word(x))\n"
    )
    return _jit(source, f"<{name} of rows>", {"tl": tl, "word": getattr(lang, name)}, triton)


def cast_kernel(kind, block=1024):
    """A kernel that stores cast_fp8 of its argument; `kind` is a Triton dtype."""
    import triton
    import triton.language as tl

    from rafters import lang

    at = f"tl.program_id(0) * {block} + tl.arange(0, {block})"
    source = f"def run(a0, out):\n    at = {at}\n    tl.store(out + at, cast(tl.load(a0 + at), KIND))\n"
    return _jit(source, f"<cast to {kind}>", {"tl": tl, "cast": lang.cast_fp8, "KIND": tl.constexpr(kind)}, triton)


def _jit(source, file, names, triton):
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names = names | {"__name__": "kernels"}
    exec(compile(source, file, "exec"), names)
    return triton.jit(names["run"])


def compiled(name, target, dtype="fp32", out="fp32", word=None):
    return build(kernel(name, word=word), target, [dtype] * ARITY.get(name, 1), out)


def build(function, target, dtypes, out):
    """The CompiledKernel of one of the above for any target, with the options that the engine compiles with."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {f"a{i}": f"*{dtype}" for i, dtype in enumerate(dtypes)} | {"out": f"*{out}"}
    options = {"enable_fp_fusion": False, "num_warps": 4}
    if target[0] == "cuda":
        options["enable_reflect_ftz"] = False
    return triton.compile(ASTSource(function, signature, {}), target=GPUTarget(*target), options=options)


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
