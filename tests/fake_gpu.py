"""A GPU that is not there: calls on CPU tensors are planned as on an H200, and what they would launch is written down."""

import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from rafters.engine import family, plan, results, straight, target, variant
from rafters.engine.launch import Start
from rafters.engine.target import Target

DEVICE = torch.device("cuda", 0)


@dataclass
class FakeGPU:
    """`compiled`: the recipes that were compiled; `launches`: (grid, arguments) of every launch."""

    compiled: list[Any] = field(default_factory=list)
    launches: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    capturing: bool = False

    def start(self, _compiled: Any) -> Start:
        return Start("_launches(({grid}, ({arguments},)))", ("_launches",), (self.launches.append,))


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGPU:
    gpu = FakeGPU()
    given, place = results.with_given, family._place
    for where, name, value in (
        (plan, "common_device", lambda _spec, _arguments: DEVICE),
        (plan, "with_given", lambda spec, resolved, g, device: given(spec, resolved, g, g[0].device if g else device)),
        (
            family,
            "_place",
            lambda value, name, elsewhere: (place(value, name, elsewhere)[0], DEVICE),
        ),  # the alignment, not the device
        (target, "device_target", lambda _index: Target("cuda", 90, 32)),
        (target, "current_device", lambda: DEVICE),
        (variant, "compile_recipe", lambda made: (gpu.compiled.append(made), object())[1]),
        (variant, "load", lambda _compiled, _device: None),
        (variant, "launcher", gpu.start),
        (variant, "capturing", lambda: gpu.capturing),
        (straight, "allocator", lambda: lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype)),
    ):
        monkeypatch.setattr(where, name, value)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _index: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: contextlib.nullcontext())
    return gpu
