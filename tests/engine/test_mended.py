"""A fault of Triton 3.6 does not reach our kernels: bits of one lane of a packed shift in the next lane, a wrong address."""

import re

import pytest
import torch

import rafters
from rafters.engine import mended
from rafters.engine.variant import compile_recipe
from rafters.testing.kernels import prepare

triton = pytest.importorskip("triton")
LEAKS = re.compile(r"mul\.wide\.[us]32\s+%rd\d+, %r\d+, -?2147483648;")


def kernel():
    """The gradients of lerp(x, end, weight) for vectors of 96 numbers, `weight` one element off: the kernel that read elsewhere."""
    x, end, weight = torch.randn(21, 96), torch.randn(96), torch.empty(97)[1:]
    op = rafters.lerp.backward_op(x, end, weight)
    given = {"grad_out": torch.ones(()).expand(21, 96), "start": x, "end": end, "weight": weight}
    return prepare(op, [given[p.name] for p in op.spec.parameters], pdl=True)


def test_no_lane_leaks_into_its_neighbour():
    made = kernel()
    assert made.layout.align["weight"] == 4
    for stage in made.stages:
        assert not LEAKS.search(compile_recipe(stage.recipe).asm["ptx"])


def test_the_kernel_is_compiled_again_without_promises(monkeypatch):
    """On every version, by taking each kernel for one that is misread."""
    monkeypatch.setattr(mended, "misreads", lambda _version: True)
    monkeypatch.setattr(mended, "PROMISED", re.compile(r"\b(add|shl|mul|sub)(?: nuw| nsw)+ (<\d+ x i\d+>|i\d+)"))
    runtime = triton.knobs.runtime
    asked = []
    theirs = lambda *given: asked.append(given) if given else ("theirs", "theirs")  # noqa: E731
    monkeypatch.setattr(runtime, "add_stages_inspection_hook", theirs)
    assembled = []
    backend = triton.backends.backends["nvidia"].compiler
    make = backend.make_ptx
    monkeypatch.setattr(backend, "make_ptx", lambda self, text, *rest: assembled.append(text) or make(self, text, *rest))
    monkeypatch.setattr(triton.knobs.compilation, "always_compile", True)
    prepare(rafters.silu_mul, [torch.empty(64, 4096), torch.empty(64, 4096)]).compile()
    first, second = assembled
    assert mended.PROMISED.search(first)
    assert not mended.PROMISED.search(second)
    assert mended.PROMISED.sub(r"\1 \2", first) == second
    assert asked, "the hook that was set is asked too"
    assert runtime.add_stages_inspection_hook is theirs


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("%28 = shl nuw nsw <2 x i32> %26, <i32 31, i32 2>, !dbg !19", "%28 = shl <2 x i32> %26, <i32 31, i32 2>, !dbg !19"),
        ("%3 = mul nsw <4 x i16> %1, %2", "%3 = mul <4 x i16> %1, %2"),
        ("%3 = shl nuw nsw i32 %1, 5", "%3 = shl nuw nsw i32 %1, 5"),
        ("%3 = shl <2 x i32> %1, %2", "%3 = shl <2 x i32> %1, %2"),
    ],
)
def test_only_packed_shifts_and_products_lose_their_promise(text, without):
    assert mended.PROMISED.sub(r"\1 \2", text) == without


@pytest.mark.parametrize(
    ("version", "fault"), [("3.6.0", True), ("3.6.1+git", True), ("3.7.1", False), ("3.10.0", False), ("4.0", False)]
)
def test_the_versions_with_the_fault(version, fault):
    assert mended.misreads(version) is fault
