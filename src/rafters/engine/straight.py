"""Writes the function that a plan runs: a text with one straight path, and the objects that the text names."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rafters.engine.launch import Start, allocator

_RUNNER = """\
def make(_device, _empty, _stream_of, _current_device, _on_device, {constants}):
    def run({parameters}):
{lines}
        return {results}
    return run
"""


@functools.lru_cache(maxsize=4096)
def _factory(text: str) -> Callable[..., Any]:
    space: dict[str, Any] = {}
    exec(compile(text, "<rafters plan>", "exec"), space)
    return space["make"]  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Straight:
    """A runner's text and its constants by name: other values of the same constants make the runner of another size."""

    text: str
    device: torch.device
    constants: dict[str, Any]

    @property
    def launches_one(self) -> bool:
        """One kernel, so that little of it depends on the size (engine/family.py)?"""
        return "_grid1" not in self.constants

    @functools.cached_property
    def _make(self) -> Callable[..., Callable[..., Any]]:
        where = (self.device.index, allocator(), torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice, torch.cuda.device)
        return functools.partial(_factory(self.text), *where)

    def run(self, changed: dict[str, Any] | None = None) -> Callable[..., Any]:
        """The function, with some of the constants exchanged."""
        values = self.constants if changed is None else self.constants | changed
        return self._make(*values.values())

    def open(self, rules: dict[str, Callable[[tuple[int, ...], int], Any]]) -> Callable[..., Any]:
        """`f(n, *arguments)`: the function for a first dimension of `n`, on which the constants with a rule depend."""
        head, opening, rest = self.text.partition("    def run(")
        lines = [f"        {name} = _rule_{name}((_n,), _n)" for name in rules]
        parameters, body = rest.split("\n", 1)
        given = ", ".join(f"_rule_{name}" for name in rules)
        text = head.replace("):", f", {given}):") + opening + f"_n, {parameters}\n" + "\n".join(lines) + "\n" + body
        where = (self.device.index, allocator(), torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice, torch.cuda.device)
        made: Callable[..., Any] = _factory(text)(*where, *self.constants.values(), *rules.values())
        return made


class Text:
    """The lines of a runner, and the objects that they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}

    def constant(self, name: str, value: Any) -> str:
        self.constants[name] = value
        return name

    def allocate(self, name: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> None:
        facts = {f"_shape_{name}": shape, f"_strides_{name}": strides, f"_dtype_{name}": dtype}
        self.constants |= facts
        self.lines.append(f"{name} = _empty({', '.join(facts)})")

    def launch(self, number: int, start: Start, grid: int, arguments: Sequence[str]) -> None:
        """The launch of kernel `number`: the first one's is written out, another's is a call."""
        programs = self.constant(f"_grid{number}", grid)
        if number == 0:
            for name, value in zip(start.names, start.values, strict=True):
                self.constant(name, value)
            self.lines += start.lines(programs, "_stream_of(_device)", ", ".join(arguments))
        else:
            launch = self.constant(f"_launch{number}", start.function())
            self.lines.append(f"{launch}({programs}, _stream_of(_device), ({', '.join(arguments)},))")

    def straight(self, parameters: Sequence[str], results: Sequence[str], device: torch.device) -> Straight:
        """The finished text: a function of `parameters` that returns `results`."""
        lines = self.lines
        if torch.cuda.device_count() > 1:  # allocation and launch act on the current device; with one device there is no other
            inner = [f"    {line}" for line in lines]
            lines = ["if _current_device() == _device:", *inner, "else:", "    with _on_device(_device):",
                     *(f"    {line}" for line in inner)]  # fmt: skip
        text = _RUNNER.format(
            constants=", ".join(self.constants),
            parameters=", ".join(parameters),
            lines="\n".join(f"        {line}" for line in lines),
            results=", ".join(results) or "None",
        )
        return Straight(text, device, self.constants)
