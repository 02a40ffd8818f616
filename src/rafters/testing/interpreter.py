"""A call's own kernel, executed on the CPU by Triton's interpreter: the only execution of its text where there is no GPU.

Only in a process that was started with TRITON_INTERPRET=1: Triton decides when it is imported.
"""

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rafters.engine import module
from rafters.engine.layouts.layout import Config
from rafters.engine.results import result_names
from rafters.engine.stages import Stage
from rafters.engine.target import parse_target
from rafters.engine.variant import TypeName
from rafters.lang import has_triton
from rafters.operator.from_kernel import FromKernel
from rafters.operator.op import Op
from rafters.testing.calls import Call
from rafters.testing.kernels import Prepared, prepare

# What numpy computes as a GPU would. bfloat16 and float8 are wrong there, float64 words need a library that it lacks, and bools add up
# to "or" where they should to "exclusive or".
DTYPES = (torch.float32, torch.float16, torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)
# numpy's own exp, log ... and double roundings: the limits there, in ulp.
NARROW, WIDE = 2.0, 16.0


def active() -> bool:
    """Does this process interpret kernels?"""
    return os.environ.get("TRITON_INTERPRET") == "1" and has_triton()


def run(op: Op, arguments: Sequence[Any], results: Sequence[torch.Tensor], config: Config | None = None) -> None:
    """Executes the kernels of `op(*arguments)` into `results`. Arguments that it overwrites are overwritten."""
    if isinstance(op.form, FromKernel):
        _run_handwritten(op, arguments, results)
        return
    made = prepare(op, arguments, config=config)
    execution = Execution(op, made, tensors_of(op, made, arguments, results))
    for stage in made.stages:
        execution.launch(stage)


def on_interpreter(call: Call, arguments: Sequence[Any], results: Sequence[torch.Tensor]) -> None:
    """Executes a call for `examine`."""
    run(call.op, arguments, results)


def tensors_of(op: Op, made: Prepared, arguments: Sequence[Any], results: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Arguments and results by the names that the pieces of a prepared call have for them."""
    named = dict(zip((p.name for p in op.spec.parameters), arguments, strict=True))
    fresh = iter(results)
    owners = [named[result.into] if result.into else next(fresh) for result in made.resolved.results]
    written = {p.argument: owners[i] for p, (i, _, _) in zip(made.outputs, made.resolved.outputs, strict=True)}
    return {**named, **written}


class Execution:
    """The kernels of one prepared call; buffers between them are made, and poisoned, where they first occur."""

    def __init__(self, op: Op, made: Prepared, tensors: dict[str, Any]) -> None:
        self.op, self.tensors = op, tensors
        self.pieces = {module.slot_name(p.name): p for p in (*made.resolved.inputs, *made.resolved.indices, *made.outputs)}
        self.buffers: dict[str, torch.Tensor] = {}

    def launch(self, stage: Stage, programs: range | None = None) -> None:
        """All programs of the grid, or some of them."""
        recipe = stage.recipe
        kernel = module.jit_function(recipe.text, recipe.kernel, recipe.body, recipe.half)
        chosen = programs or range(stage.layout.grid)
        with shifted(chosen.start), halving(), mended():
            kernel[(len(chosen),)](*[self._value(stage, name, kind) for name, kind in recipe.signature])

    def _value(self, stage: Stage, name: str, kind: str) -> Any:
        """One argument of a kernel. A pointer is a tensor of one element there."""
        import triton.language as tl

        slot = name.removesuffix("_ptr")
        if kind.startswith("*") and slot in stage.buffers:
            buffer = stage.buffers[slot]
            if buffer.name not in self.buffers:
                poison = float("nan") if buffer.dtype.is_floating_point else torch.iinfo(buffer.dtype).max
                self.buffers[buffer.name] = torch.full(buffer.shape, poison, dtype=buffer.dtype)
            return self.buffers[buffer.name]
        if kind.startswith("*"):
            piece = self.pieces[slot]
            return self.pointer(self.tensors[piece.argument], piece.offset)
        if kind == "constexpr":
            value = dict(stage.recipe.constants)[name]
            return getattr(tl, value) if isinstance(value, TypeName) else value
        if name in stage.layout.arguments:
            return _scalar(stage.layout.arguments[name].value, kind)
        own = next(p.name for p in self.op.spec.body.parameters if module.slot_name(p.name) == name)
        number = self.tensors[self.op.spec.views[own].source if own in self.op.spec.views else own]
        return _scalar(number.item() if isinstance(number, torch.Tensor) else number, kind)

    def pointer(self, tensor: torch.Tensor, offset: int) -> torch.Tensor:
        """The address alone: the interpreter copies whatever memory it is handed, which may be far more than a kernel touches."""
        address = tensor.data_ptr() + offset * tensor.element_size()
        bytes_ = (ctypes.c_char * tensor.element_size()).from_address(address)
        return torch.frombuffer(bytes_, dtype=tensor.dtype)


def _scalar(value: Any, kind: str) -> Any:
    """A number as the kernel's signature has it; the interpreter would go by its value."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    named = {"i1": np.bool_, "u8": np.uint8, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "fp32": np.float32,
             "fp64": np.float64}  # fmt: skip
    own = tl.str_to_ty(kind, None)
    return tl.tensor(TensorHandle(np.array([value]).astype(named[kind]), own), own)


@contextmanager
def shifted(first: int) -> Iterator[None]:
    """`tl.program_id(0)` counts from `first`: the end of a grid too long to run."""
    if not first:
        yield
        return
    from triton.runtime import interpreter

    kind = type(interpreter.interpreter_builder)
    own = kind.create_get_program_id

    def create_get_program_id(self: Any, axis: int) -> Any:
        handle = own(self, axis)
        if axis == 0:
            handle.data = handle.data + handle.data.dtype.type(first)
        return handle

    kind.create_get_program_id = create_get_program_id
    try:
        yield
    finally:
        kind.create_get_program_id = own


@contextmanager
def mended() -> Iterator[None]:
    """Three things as on a GPU: `tl.fma` rounds once (the interpreter rounds the product as well); the truth of a comparison of two
    scalars, spread over a block, is still a truth value (the interpreter makes a float of it); a loop may run up to a scalar (which
    Triton 3.6 takes for an array that newer numpy converts to no number)."""
    import triton.language as tl
    from triton.runtime import interpreter

    kind, handle = type(interpreter.interpreter_builder), interpreter.TensorHandle
    own = {"create_fma": kind.create_fma, "create_splat": kind.create_splat}

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if z.data.dtype != np.float32:
            return own["create_fma"](self, x, y, z)
        exact = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
        return handle(exact.astype(np.float32), z.dtype)

    def create_splat(self: Any, block: Any, value: Any) -> Any:
        if value.data.dtype != np.bool_:
            return own["create_splat"](self, block, value)
        return handle(np.full(block.shape, value.data.flat[0]), tl.int1)

    def patch_tensor(tensor: Any, scope: Any) -> None:
        own_patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    own_patch = interpreter._patch_lang_tensor
    kind.create_fma, kind.create_splat, interpreter._patch_lang_tensor = create_fma, create_splat, patch_tensor
    try:
        yield
    finally:
        interpreter._patch_lang_tensor = own_patch
        for name, function in own.items():
            setattr(kind, name, function)


@contextmanager
def halving() -> Iterator[None]:
    """`tl.reduce` with a function of one's own by halves, as a GPU does; the interpreter goes element by element, for seconds."""
    from triton.runtime.interpreter import ReduceOps

    own = ReduceOps.generic_reduce

    def generic_reduce(self: Any, given: Any) -> Any:
        length = 0 if self.axis is None else given[0].handle.data.shape[self.axis]
        if length & (length - 1) or not length:
            return own(self, given)
        parts = [a.handle.data for a in given]
        while length > 1:
            length //= 2
            halves = [np.split(p, 2, self.axis) for p in parts]
            sides = [self.to_tensor(h[side], a.dtype) for side in (0, 1) for h, a in zip(halves, given, strict=True)]
            made = self.combine_fn.fn(*sides)
            parts = [m.handle.data for m in (made if isinstance(made, tuple) else (made,))]
        if not self.keep_dims:
            parts = [p.squeeze(self.axis) for p in parts]
        return [self.to_tensor(p, a.dtype) for p, a in zip(parts, given, strict=True)]

    ReduceOps.generic_reduce = generic_reduce
    try:
        yield
    finally:
        ReduceOps.generic_reduce = own


def _run_handwritten(op: Op, arguments: Sequence[Any], results: Sequence[torch.Tensor]) -> None:
    named = dict(zip((p.name for p in op.spec.parameters), arguments, strict=True))
    launch = op.form.launch(named)
    made, _, _ = op.form.recipe(named, launch, results, parse_target("sm_90"))
    given = dict(zip(result_names(op.spec), results, strict=True))
    made.body[(launch.grid,)](*(op.form._value(name, named, launch, given) for name, _ in made.signature))
