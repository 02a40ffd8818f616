"""Your first kernel: x + y three ways, each measured.

    python examples/01_first_kernel.py

A GPU runs thousands of threads at once, but you do not write threads. In Triton you write a *program*: a function that works on
one *block* of elements. Many copies of it run side by side, and each asks which copy it is. That is all there is to a kernel:
which block is mine, load it, compute, store it.

An addition computes next to nothing. What it costs is moving three numbers, two in and one out, between memory and the chip, so
there is one question to ask of it: what share of the memory's bandwidth does it reach? That share is its place on the roofline.

Without a GPU the bare kernel is only read, not run; the other two run on the CPU.
"""

import sys

import torch

import rafters
from rafters import ops, tl
from rafters.roofline import ceilings, race

try:
    import triton
except ImportError:  # macOS, Windows, a CPU-only machine: everything below but the bare launch works
    triton = None

# ---------------------------------------------------------------------------------------------------------------------------------
# 1. The kernel, by hand
#
# A program handles BLOCK = 1024 elements with 4 warps of 32 threads: 8 elements a thread. In bfloat16 that is 16 bytes, the most
# a thread can load in one go, and what a memory-bound kernel should ask for.
# ---------------------------------------------------------------------------------------------------------------------------------

BLOCK = 1024


def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # noqa: N803  (compile-time values are written large)
    i_block = tl.program_id(0)  # which copy am I?
    o = i_block * BLOCK + tl.arange(0, BLOCK)  # the offsets of my elements
    m = o < n  # the last block hangs over the end: its mask says which elements exist
    x = tl.load(x_ptr + o, mask=m)
    y = tl.load(y_ptr + o, mask=m)
    tl.store(out_ptr + o, x + y, mask=m)


def programs(n: int) -> int:
    """How many programs cover n elements: n / BLOCK, rounded up (triton.cdiv)."""
    return -(-n // BLOCK)


# ---------------------------------------------------------------------------------------------------------------------------------
# 2. Launched bare
#
# `triton.jit` compiles the kernel when it is first launched; `[grid]` says how many programs run. You allocate the result, and
# nobody checks anything: hand it a transposed tensor, or two of different lengths, and it reads the wrong memory without a word.
# It has no gradient, torch.compile cannot see through it, and it does not run on a CPU.
# ---------------------------------------------------------------------------------------------------------------------------------

if triton is not None:
    compiled = triton.jit(add_kernel)

    def bare(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        compiled[(programs(x.numel()),)](x, y, out, x.numel(), BLOCK=BLOCK, num_warps=4)
        return out


# ---------------------------------------------------------------------------------------------------------------------------------
# 3. The same kernel as an op
#
# `@rafters.kernel` keeps your kernel and adds the rest. You say how one call is launched; from the reference come the CPU path,
# the gradient, and the check of your kernel's results. Wrong shapes, dtypes and devices are refused in a sentence.
# ---------------------------------------------------------------------------------------------------------------------------------


@rafters.kernel(add_kernel, reference=torch.add, name="first::by_hand")
def by_hand(x, y):  # noqa: ARG001  (the kernel takes y_ptr from the argument of that name)
    return rafters.Launch(out=torch.empty_like(x), grid=programs(x.numel()), warps=4, n=x.numel(), BLOCK=BLOCK)


# ---------------------------------------------------------------------------------------------------------------------------------
# 4. The same op in one line
#
# Which block, what mask, how wide, which strides: for an elementwise op all of that follows from the tensors. What is left to
# write is the maths. `print(one_line.source(x, y))` shows the kernel that is written for you.
# ---------------------------------------------------------------------------------------------------------------------------------


@rafters.elementwise(name="first::one_line")
def one_line(x, y):
    return x + y


# ---------------------------------------------------------------------------------------------------------------------------------
# 5. Measured side by side
#
# Twice: on n elements, a multiple of 16, and on n + 1. Look at the kernel by hand. When 16 divides n, Triton can prove that the
# mask is the same for all the elements of one 16-byte access. When it does not, the mask may end anywhere: every access falls
# apart into eight of two bytes, and on an H200 the same kernel takes 2.8 times as long. The generated kernel asks once
# per block, "am I a full one?", and needs no mask if so; only the last block pays. `rafters sweep add` is the whole study.
# ---------------------------------------------------------------------------------------------------------------------------------


def measure(n: int, dtype: torch.dtype, device: str) -> bool:
    """Checks and times every way to add n elements; prints a line each. True if all were right."""
    x, y = torch.randn(n, device=device).to(dtype), torch.randn(n, device=device).to(dtype)
    ways = {"torch.add": torch.add, "@rafters.kernel": by_hand, "@rafters.elementwise": one_line, "rafters.add": ops.add}
    if triton is not None and device == "cuda":
        ways |= {"bare kernel": bare}
    cost = one_line.cost(x, y)  # reads x and y, writes the result: 3 n elements
    roof = ceilings(device, quick=True)  # what this device's memory reaches, measured once
    found = race(ways, (x, y), cost, reference=torch.add, ceilings=roof, time_limit_s=0.5, min_time_s=0.1)
    print(f"\n{n} elements of {str(dtype).removeprefix('torch.')} on {roof.device.name}: {cost.total_bytes / 1e6:.1f} MB")
    for way, m in found.items():
        if m.seconds is None or m.bandwidth is None:
            print(f"  {way:22} {m.verdict}: {'; '.join(m.reasons)}")
            continue
        share = f"{m.share_of_ceiling:6.1%} of the ceiling" if m.share_of_ceiling else ""
        host = f", {m.host_us:.1f} µs on the host" if m.host_us else ""
        print(f"  {way:22} {m.seconds.median * 1e6:9.1f} µs  {m.bandwidth / 1e9:8.1f} GB/s  {share}{host}")
    return all(m.verdict != "WRONG" for m in found.values())


def main() -> int:
    on_gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    n = int(sys.argv[1]) // 16 * 16 if len(sys.argv) > 1 else 2**26 if on_gpu else 2**20
    if not on_gpu:
        print("No GPU: the bare kernel is not launched, and the figures are those of the CPU path.")
    results = [measure(m, dtype, device) for m in (n, n + 1)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
