"""Run as a program under TRITON_INTERPRET=1: every word in Triton's interpreter against its own meaning.

`tl.fma` rounds twice there, so the bound is 4 ulp, not 2 (erfc and ndtr lose their exact x^2 by it, and with it up to x^2 ulp in
the tail); the values at the ends must agree exactly.
"""

import linecache
import sys

import torch
import triton
import triton.language as tl

from rafters import lang

EDGES = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38]
EDGES += [1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 88.8, -88.8, -103.5, 128.0, 0.49999997, 8388609.0, 20.0, -20.0, 1e-3]
ARITY = {"add": 2, "div": 2, "div_by": 2, "maximum": 2, "minimum": 2, "fma": 3, "where": 3, "clamp": 3, "lerp": 3}


def kernel(name, count):
    """A kernel that stores the word of `count` loaded arguments, 32 a row."""
    loads = ", ".join(f"tl.load(a{i} + at)" for i in range(count))
    lines = [
        f"def run({', '.join(f'a{i}' for i in range(count))}, out, WIDTH: tl.constexpr):",
        "    at = tl.arange(0, 2)[:, None] * 32 + tl.arange(0, 32)[None, :]",
        f"    y = word({loads})",
        "    tl.store(out + tl.arange(0, 2)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :], y)",
    ]
    source = "\n".join(lines) + "\n"
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names = {"tl": tl, "word": getattr(lang, name), "__name__": "interpreted"}
    exec(compile(source, file, "exec"), names)
    return triton.jit(names["run"])


cast = lang.cast_fp8


@triton.jit
def cast_kernel(x, out, DTYPE: tl.constexpr):
    at = tl.arange(0, 65536)
    tl.store(out + at, cast(tl.load(x + at), DTYPE))


def arguments(name, count):
    torch.manual_seed(0)
    x = torch.cat([torch.tensor(EDGES), torch.randn(64 - len(EDGES)) * 3]).reshape(2, 32)
    if name.startswith("row_"):
        x = torch.randn(2, 32)
    extra = [x.flatten()[torch.randperm(64)].reshape(2, 32).clone() for _ in range(count - 1)]
    if name == "where":
        return [x > 0, *extra]
    if name == "clamp":
        return [x, torch.full((2, 32), -1.0), torch.full((2, 32), 2.0)]
    if name == "div_by":
        extra = [torch.full((2, 32), 0.0137)]
    return [x, *extra]


def wrong_codes(dtype, out_dtype):
    """How many of all 65536 bfloat16 values, and as many float32 ones, get another code than torch's CPU cast gives."""
    torch.manual_seed(0)
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    dense = torch.exp2(torch.rand(65536) * 44 - 24) * torch.randn(65536).sign()
    wrong = 0
    for x in (every, dense):
        out = torch.empty(65536, dtype=out_dtype)
        cast_kernel[(1,)](x, out, dtype)
        want = lang.WORDS["cast_fp8"].meaning(x, dtype)
        wrong += ((out.view(torch.uint8) != want.view(torch.uint8)) & ~(out.float().isnan() & want.float().isnan())).sum().item()
    return wrong


def main(names):
    failed = []
    for name in names:
        if name == "cast_fp8":
            for dtype, out_dtype in ((tl.float8e4nv, torch.float8_e4m3fn), (tl.float8e5, torch.float8_e5m2)):
                if count := wrong_codes(dtype, out_dtype):
                    failed.append(f"cast_fp8 {dtype}: {count} wrong codes")
            continue
        count = ARITY.get(name, 1)
        args = arguments(name, count)
        want = lang.WORDS[name].meaning(*args)
        wide = [a.double() if a.is_floating_point() else a for a in args]
        truth = lang.WORDS[name].meaning(*wide)
        out = torch.empty(want.shape, dtype=want.dtype)
        kernel(name, count)[(1,)](*args, out, WIDTH=want.shape[1])
        if want.is_floating_point():
            size = truth.abs().clamp(2.0**-126)
            ulp = torch.exp2(torch.floor(torch.log2(size)) - 23)
            bound = 200 if name in ("erfc", "ndtr") else 4
            close = ((out.double() - truth).abs() <= bound * ulp) | (out == want) | (out.isnan() & want.isnan())
            close &= (out != 0) | (want != 0) | (out.signbit() == want.signbit())
        else:
            close = out == want
        if not close.all():
            row, column = (~close).nonzero()[0].tolist()
            given = [a[row, column].item() for a in args]
            failed.append(f"{name}{given}: got {out[row, column].item()}, wanted {want[row, column].item()}")
    print("\n".join(failed) or "all equal")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or sorted(lang.WORDS)))
