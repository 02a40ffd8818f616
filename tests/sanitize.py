"""Every op on small shapes under NVIDIA's compute-sanitizer: memory, uninitialized reads, races. `make sanitize`, on a GPU.

    python tests/sanitize.py                        memcheck, initcheck and racecheck of every op
    python tests/sanitize.py --tools memcheck --ops add,silu
    python tests/sanitize.py --calls                the calls alone, without the sanitizer: what it watches

A first run without the sanitizer compiles the kernels, which Triton keeps on disk. PyTorch's caching allocator is turned off, so that
every tensor is an allocation of its own and one element too many lies outside. The status is 1 if anything was found, 2 if the
sanitizer is not there or cannot watch this device.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOOLS = ("memcheck", "initcheck", "racecheck")
PLACES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\)")


def calls(op: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Ends of blocks, broadcast operands and every way of walking memory; few enough that all ops take a minute."""
    import torch

    from rafters.testing import CASES, arguments_for, dtypes_of, ordinary

    floats = [d for d in (torch.float32, torch.bfloat16) if d in dtypes_of(op)] or list(dtypes_of(op))[:1]
    for dtype in floats:
        for name in ("1", "1025", "17x129", "start 1 element in", "pitched rows", "every other column", "transposed beside contiguous",
                     "vector of the last dimension", "one value a row", "broadcast both ways"):  # fmt: skip
            if dtype is floats[0] or name in ("1025", "pitched rows", "vector of the last dimension"):
                yield f"{name}, {dtype}", arguments_for(op, CASES[name], dtype, "cuda", make=ordinary)


def everything() -> dict[str, Any]:
    """The library's ops, and row-wise ones, whose kernels reduce rows and, backward, sum them over the rows as well."""
    from rafters import Output, lang, rowwise
    from rafters.ops import table

    @rowwise(name="sanitized::row_norm", outputs=(Output("x"), Output("x", per_row=True)), accepts="float")
    def row_norm(x, weight, eps: float = 1e-6):
        scale = lang.rsqrt(lang.row_mean(x * x) + eps)
        return x * scale * weight, scale

    @rowwise(name="sanitized::row_softmax", accepts="float")
    def row_softmax(x):
        e = lang.exp(x - lang.row_max(x))
        return lang.div(e, lang.row_sum(e))

    return {**table(), "row_norm": row_norm, "row_softmax": row_softmax}


def call_all(names: list[str]) -> int:
    """Calls every op, forward, into `out=` and backward; returns how many calls there were."""
    import torch

    from rafters.errors import RaftersError

    count = 0
    for name, op in everything().items():
        if names and name not in names:
            continue
        for label, arguments in calls(op):
            try:
                results = op(*arguments)
            except RaftersError as problem:
                print(f"{name}: {label}: not taken: {problem}")
                continue
            several = results if isinstance(results, tuple) else (results,)
            op(*arguments, out=tuple(torch.empty_like(r) for r in several) if len(several) > 1 else torch.empty_like(several[0]))
            leaves = [a.detach().requires_grad_() if _has_gradient(a) else a for a in arguments]
            if any(isinstance(a, torch.Tensor) and a.requires_grad for a in leaves):
                made = op(*leaves)
                total = sum(r.float().sum() for r in (made if isinstance(made, tuple) else (made,)) if r.requires_grad)
                total.backward()
            try:
                torch.cuda.synchronize()
            except RuntimeError as problem:
                raise RuntimeError(f"{name}: {label}: {problem}") from problem
            for result in several:
                result.cpu()  # reads every element: one that was not written is found by initcheck
            count += 1
    return count


def _has_gradient(argument: Any) -> bool:
    import torch

    return isinstance(argument, torch.Tensor) and argument.is_floating_point() and argument.dtype.itemsize > 1


def sanitizer() -> str | None:
    """The program: named by COMPUTE_SANITIZER, on the path, in CUDA's folder, or from the wheel nvidia-cuda-sanitizer-api."""
    named = os.environ.get("COMPUTE_SANITIZER")
    wheels = [str(p / "nvidia" / "cu13" / "compute-sanitizer") for p in map(Path, sys.path)]
    return (
        named or shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=os.pathsep.join([*PLACES, *wheels]))
    )


def watched(program: str, tool: str, names: list[str]) -> tuple[str, str, float]:
    """("clean", "3 errors" or what went wrong; the output; seconds)."""
    start = time.perf_counter()
    command = [program, "--tool", tool, "--error-exitcode", "9", "--print-limit", "20", sys.executable, __file__, "--calls"]
    # Each launch is waited for: CUDA 13's cudaFree need not wait for a kernel that still reads what is freed.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUDA_LAUNCH_BLOCKING": "1"}
    done = subprocess.run([*command, "--ops", ",".join(names)], env=environment, capture_output=True, text=True, check=False)
    output, seconds = done.stdout + done.stderr, time.perf_counter() - start
    found = SUMMARY.findall(output)
    if "Device not supported" in output or not found or "calls made" not in output:
        return f"did not run (status {done.returncode})", output, seconds
    errors = sum(int(n) for one in found for n in one if n)
    return "clean" if errors == 0 and done.returncode == 0 else f"{errors} errors (status {done.returncode})", output, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", default=",".join(TOOLS), help="some of memcheck, initcheck, racecheck, synccheck")
    parser.add_argument("--ops", default="", help="ops by name, with commas; all by default")
    parser.add_argument("--calls", action="store_true", help="make the calls in this process, unwatched")
    chosen = parser.parse_args()
    names = [n for n in chosen.ops.split(",") if n]
    if chosen.calls:
        print(f"{call_all(names)} calls made")
        return 0
    program = sanitizer()
    if program is None:
        print("compute-sanitizer is not here: it comes with CUDA's toolkit, or with `pip install nvidia-cuda-sanitizer-api`")
        return 2
    start = time.perf_counter()
    print(f"without the sanitizer: {call_all(names)} calls made, {time.perf_counter() - start:.0f} s", flush=True)
    worst = 0
    for tool in chosen.tools.split(","):
        verdict, output, seconds = watched(program, tool, names)
        print(f"{tool:10} {verdict}, {seconds:.0f} s", flush=True)
        if verdict != "clean":
            print("\n".join(output.splitlines()[:60]))
            worst = max(worst, 2 if "did not run" in verdict else 1)
    return worst


if __name__ == "__main__":
    sys.exit(main())
