"""A variant: one compiled kernel. Variants are finite, listed and kept for ever (Triton unloads a module whose kernel object dies)."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from rafters.dtypes import TRITON_NAMES
from rafters.engine import codegen, mended, module
from rafters.engine.launch import Start, launcher, load
from rafters.engine.layouts.form import CONSTEXPR, NUMBER, Form
from rafters.engine.layouts.layout import Layout
from rafters.engine.target import Target, options
from rafters.errors import CompileError, RaftersError
from rafters.lang import has_triton
from rafters.trace.names import files as files_of

_POINTERS = {"int1": "i1", "uint8": "u8", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "float8e4nv": "fp8e4nv",
             "float8e5": "fp8e5", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}  # fmt: skip


def scalar_type(dtype: torch.dtype) -> str:
    """'fp32' of torch.float32, as Triton's signatures spell it."""
    return _POINTERS[TRITON_NAMES[dtype]]


@dataclass(frozen=True)
class Typing:
    """The dtypes of a call: of each slot in memory, and the one its value is computed in (for a number: only that).

    `half`: the words of `rafters.lang` are those for 16-bit values. `totals`: the dtype in which an output is summed.
    """

    memory: dict[str, torch.dtype]
    values: dict[str, torch.dtype]
    half: bool = False
    totals: dict[str, torch.dtype] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """What is compiled: the source, the signature and the options. Its `key` names the variant."""

    kernel: str
    text: str
    body: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    divisors: tuple[tuple[int, int], ...]
    target: Target
    warps: int
    pdl: bool
    half: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        named = tuple((n, repr(v)) for n, v in self.constants)
        return (self.text, id(self.body), self.signature, named, self.divisors, self.target, self.warps, self.pdl, self.half)


@dataclass(frozen=True, eq=False)
class Variant:
    """A compiled kernel with the facts that tell it from its siblings."""

    recipe: Recipe
    layout: Layout
    typing: Typing
    compiled: Any

    @functools.cached_property
    def start(self) -> Start:
        """How it is launched; the current device must be the one that it is loaded on."""
        return launcher(self.compiled)

    def describe(self) -> dict[str, Any]:
        form = self.layout.form
        return {
            "layout": form.layout,
            "walk": form.walk,
            "aligned": all(bytes_ == 16 for bytes_ in self.layout.align.values()),
            "align": dict(self.layout.align),
            "index_bits": 64 if self.layout.wide else 32,
            "dtype": {name: str(dtype).removeprefix("torch.") for name, dtype in self.typing.memory.items()},
            "constants": {n: str(v) for n, v in self.recipe.constants},
            "warps": self.recipe.warps,
            "pdl": self.recipe.pdl,
            "target": self.recipe.target.name,
            "options": options(self.recipe.target, self.recipe.warps, self.recipe.pdl),
        }


def recipe(
    op: str, text: str, body: Any, layout: Layout, typing: Typing, constexprs: dict[str, Any], target: Target, pdl: bool
) -> Recipe:
    """Signature, compile-time values and alignment facts of a call, in the order of the kernel's parameters."""
    form = layout.form
    signature: list[tuple[str, str]] = []
    constants: list[tuple[str, Any]] = []
    divisors: list[tuple[int, int]] = []
    numbers = {s.name for s in form.inputs if s.kind == NUMBER}
    for position, name in enumerate(codegen.arguments(form)):
        if name.endswith("_ptr") and name.removesuffix("_ptr") in typing.memory:
            signature.append((name, f"*{scalar_type(typing.memory[name.removesuffix('_ptr')])}"))
            divisors.append((position, layout.align[name.removesuffix("_ptr")]))
        elif name in numbers:
            signature.append((name, scalar_type(typing.values[name])))
        else:
            argument = layout.arguments[name]
            if argument.constant:
                signature.append((name, "constexpr"))
                constants.append((name, argument.value))
            else:
                signature.append((name, "i64" if argument.wide else "i32"))
                divisors.append((position, argument.divisor))
    for name in codegen.compile_time(form):
        signature.append((name, "constexpr"))
        constants.append((name, _compile_time(name, form, layout, typing, constexprs, pdl)))
    kernel = codegen.kernel_name(op, form)
    known = tuple((position, divisor) for position, divisor in divisors if divisor > 1)
    return Recipe(kernel, text, body, tuple(signature), tuple(constants), known, target, layout.warps, pdl, typing.half)


class TypeName(str):
    """The name of a Triton dtype, to be resolved when the kernel is compiled."""

    __slots__ = ()


def _compile_time(name: str, form: Form, layout: Layout, typing: Typing, constexprs: dict[str, Any], pdl: bool) -> Any:
    if name == "PDL":
        return pdl
    if name == "INDEX":
        return TypeName(layout.constants[name])
    if name in layout.constants:
        return layout.constants[name]
    for slot in (*form.inputs, *form.outputs):
        if slot.kind == CONSTEXPR and slot.name == name:
            return constexprs[name]
        if name == f"{slot.name.upper()}_AS":
            values = typing.memory if slot in form.outputs else typing.values
            return TypeName(TRITON_NAMES[values[slot.name]])
        if name == f"{slot.name.upper()}_SUM":
            return TypeName(TRITON_NAMES[typing.totals[slot.name]])
        if name == f"{slot.name.upper()}_MISSING":
            return float("nan") if typing.memory[slot.name].is_floating_point else 0
    raise AssertionError(name)


def compile_recipe(made: Recipe) -> Any:
    """The CompiledKernel of a recipe, for any target, with or without a device; asserts that every option took effect."""
    if not has_triton():
        raise module.no_triton()
    import triton.language as tl
    from triton.compiler import ASTSource

    # without a text the body is the kernel: it was written by hand
    function = module.jit_function(made.text, made.kernel, made.body, made.half) if made.text else made.body
    names = [name for name, _ in made.signature]
    values = {(names.index(n),): getattr(tl, v) if isinstance(v, TypeName) else v for n, v in made.constants}
    attributes = {(position,): [["tt.divisibility", divisor]] for position, divisor in made.divisors}
    chosen = options(made.target, made.warps, made.pdl)
    try:
        source = ASTSource(function, dict(made.signature), values, attributes)
        with _line_info(made.body):
            compiled = mended.compile_kernel(source, made.target.triton(), chosen)
    except OSError as problem:
        raise CompileError(
            f"{made.kernel}: Triton keeps compiled kernels in files and cannot write there ({problem}); "
            "set TRITON_CACHE_DIR to a folder that can be written"
        ) from problem
    except Exception as problem:
        raise CompileError(f"{made.kernel} for {made.target.name}: {_reason(problem)}") from problem
    for option, value in chosen.items():
        got = getattr(compiled.metadata, option, None)
        if got != value and not (option == "launch_pdl" and not value):
            raise CompileError(
                f"{made.kernel}: this Triton ignored {option}={value!r} (it compiled with {got!r}); results would differ"
            )
    return compiled


@contextlib.contextmanager
def _line_info(body: Any) -> Iterator[None]:
    """Leaves the names of source files out of the assembly where ptxas could not read them: it takes ASCII alone."""
    import triton

    files = {triton.__file__, __file__, *(files_of(body.fn) if hasattr(body, "fn") else ())}
    if all(file.isascii() for file in files):
        yield
        return
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True
        yield


def _reason(problem: BaseException) -> str:
    root = problem
    while root.__cause__ is not None:
        root = root.__cause__
    # the outermost error points at the call in the generated kernel, the root at the line of the body
    return str(problem) if isinstance(problem, RaftersError) else f"{type(root).__name__}: {root or problem}"


class NotCompiledError(Exception):
    """Asked for what is compiled, and it is not."""


class Store:
    """All variants of one op, by key and device. One compile at a time an op; a second thread waits for the first."""

    def __init__(self, op: str = "") -> None:
        self._op = op
        self._variants: dict[tuple[Any, ...], Variant] = {}
        self._lock = threading.Lock()

    def get(self, made: Recipe, layout: Layout, typing: Typing, device: int | None = None) -> Variant:
        """The variant, compiled and, with a device, loaded there: a loaded kernel belongs to one device."""
        key = (made.key, device)
        found = self._variants.get(key)
        if found is None:
            with self._lock:
                found = self._variants.get(key)
                if found is None:
                    _refuse_where_forbidden(self._op or made.kernel, layout, typing)
                    found = Variant(made, layout, typing, compile_recipe(made))
                    if device is not None:
                        load(found.compiled, device)
                    self._variants[key] = found
        return found

    def known(self, made: Recipe, _layout: Layout, _typing: Typing, device: int | None = None) -> Variant:
        """The variant if it is there already; else NotCompiledError."""
        found = self._variants.get((made.key, device))
        if found is None:
            raise NotCompiledError
        return found

    def __iter__(self) -> Any:
        return iter(tuple(self._variants.values()))

    def __len__(self) -> int:
        return len(self._variants)


@dataclass
class Permission:
    """May kernels be compiled? `rafters.no_compile` turns it off."""

    compile: bool = True


permission = Permission()


def capturing() -> bool:
    """Is a CUDA graph being captured on the current stream?"""
    return torch.cuda.is_available() and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _refuse_where_forbidden(op: str, layout: Layout, typing: Typing) -> None:
    """Compiling, and loading what is compiled, is refused by the user's word and inside the capture of a CUDA graph."""
    if not permission.compile:
        reason, when = "compiling is off (rafters.no_compile)", "first"
    elif capturing():
        reason, when = "a CUDA graph is being captured", "before the capture"
    else:
        return
    dtypes = ", ".join(f"{name} {str(dtype).removeprefix('torch.')}" for name, dtype in typing.memory.items())
    odd = {name: align for name, align in layout.align.items() if align != 16}
    aligned = f", aligned to {', '.join(f'{a} bytes ({n})' for n, a in odd.items())}" if odd else ""
    raise CompileError(
        f"{op}: no kernel is ready for layout {layout.form.layout!r} with {dtypes}{aligned}, and {reason}; "
        f"{when} call {op} once with such arguments, or {op}.warm(dtypes=..., layouts=[{layout.form.layout!r}], ...)"
    )
