"""How an op with a hand-written kernel answers."""

import inspect
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from rafters.cost import Cost
from rafters.dtypes import SUPPORTED
from rafters.engine import plan as plans
from rafters.engine import target, variant
from rafters.engine.call import Resolved
from rafters.engine.layouts.form import FLAT, LINEAR, Form
from rafters.engine.layouts.layout import Layout, alignment
from rafters.engine.overlap import share_memory
from rafters.engine.results import common_device, result_names
from rafters.engine.shards import Cut
from rafters.engine.spec import TENSOR, Spec
from rafters.engine.straight import Straight, Text
from rafters.engine.study.facts import facts
from rafters.engine.study.inspect import record
from rafters.errors import BodyError, CompileError, argument_error
from rafters.lang import has_triton
from rafters.trace import body as bodies
from rafters.trace import names


@dataclass(frozen=True)
class Launch:
    """How one kind of call is launched; made by the decorated function, once per plan.

    out: what the op returns, as a tensor (or tuple) that has its shape, strides and dtype: `torch.empty_like(x)`.
    grid: programs along axis 0.
    arguments: the kernel's other parameters by name, compile-time ones included.
    warps: warps a program.
    """

    out: Any
    grid: int
    arguments: dict[str, Any] = field(default_factory=dict)
    warps: int = 4

    def __init__(self, *, out: Any, grid: int, warps: int = 4, **arguments: Any) -> None:
        object.__setattr__(self, "out", out)
        object.__setattr__(self, "grid", grid)
        object.__setattr__(self, "warps", warps)
        object.__setattr__(self, "arguments", arguments)

    @property
    def results(self) -> tuple[torch.Tensor, ...]:
        return self.out if isinstance(self.out, tuple) else (self.out,)


class FromKernel:
    """How an op with a hand-written kernel answers."""

    spec: Spec

    def __init__(
        self, jitted: Any, describe: Callable[..., Launch], reference: Callable[..., Any], flops: Any, contiguous: bool
    ) -> None:
        self.function = bodies.plain_function(jitted)
        self.describe, self.torch_form, self.flops, self.contiguous = describe, reference, flops, contiguous

    # build, check and source take what FromBody's take: an op asks without knowing which it has.
    def build(
        self,
        arguments: dict[str, Any],
        given: Sequence[torch.Tensor],
        store: variant.Store,
        _pdl: bool,
        elsewhere: plans.Elsewhere | None = None,
    ) -> plans.Plan:
        device = elsewhere.device if elsewhere else common_device(self.spec, arguments)
        self._check(arguments, given)
        resolved = Resolved((), torch.float32, (), (), {}, {}, (), ())
        if device.type == "cpu":
            return plans.Plan(self._reference_runner(bool(given)), resolved)
        launch = self.launch(arguments)
        if any(r.numel() == 0 for r in launch.results):
            return plans.Plan(self._empty_runner(launch, device, bool(given)), resolved)
        made, laid, typing = self.recipe(arguments, launch, given, target.device_target(device.index))
        found = store.get(made, laid, typing, device.index)
        return plans.Plan(self._runner(launch, made, found, device, bool(given)).run(), resolved, laid, found)

    def launch(self, arguments: dict[str, Any]) -> Launch:
        """The author's description of this call."""
        shadows = {
            n: torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device="meta") if isinstance(v, torch.Tensor) else v
            for n, v in arguments.items()
        }
        launch = self.describe(**shadows)
        if not isinstance(launch, Launch):
            raise BodyError(f"{self.spec.name}: its function returned {type(launch).__name__}, wanted a rafters.Launch")
        if len(launch.results) != len(self.spec.outputs):
            raise BodyError(
                f"{self.spec.name}: its Launch has {len(launch.results)} results, declared are {len(self.spec.outputs)}"
            )
        return launch

    def _check(self, arguments: dict[str, Any], given: Sequence[torch.Tensor]) -> None:
        op = self.spec.name
        tensors = {p.name: arguments[p.name] for p in self.spec.tensors}
        for name, tensor in [*tensors.items(), *(("out", g) for g in given)]:
            if tensor is None:
                continue
            if not isinstance(tensor, torch.Tensor):
                raise argument_error(op, name, type(tensor).__name__, "a tensor")
            if tensor.dtype not in SUPPORTED:
                raise argument_error(op, name, f"dtype {tensor.dtype}", "a dtype that Triton has")
            if self.contiguous and not tensor.is_contiguous():
                got = f"strides {tuple(tensor.stride())} for shape {tuple(tensor.shape)}"
                raise argument_error(op, name, got, "a contiguous tensor (the kernel takes no strides)")
        if given:
            for g, result in zip(given, self.launch(arguments).results, strict=True):
                if g.shape != result.shape or g.dtype is not result.dtype:
                    raise argument_error(op, "out", f"{tuple(g.shape)} {g.dtype}", f"{tuple(result.shape)} {result.dtype}")

    def check(self, arguments: dict[str, Any], _plan: plans.Plan, given: tuple[torch.Tensor, ...]) -> None:
        for g in given:
            for name, tensor in arguments.items():
                if isinstance(tensor, torch.Tensor) and share_memory(g, tensor):
                    raise argument_error(self.spec.name, "out", f"memory that overlaps {name!r}", "memory of its own")

    def recipe(
        self, arguments: dict[str, Any], launch: Launch, given: Sequence[torch.Tensor], chosen: target.Target
    ) -> tuple[variant.Recipe, Layout, variant.Typing]:
        """Signature and facts as Triton's own launcher would specialise them: 16 divides a pointer or an integer, or it does not."""
        signature: list[tuple[str, str]] = []
        constants: list[tuple[str, Any]] = []
        divisors: list[tuple[int, int]] = []
        align: dict[str, int] = {}
        memory: dict[str, torch.dtype] = {}
        results = dict(zip(result_names(self.spec), given or launch.results, strict=True))
        for position, (name, is_constant) in enumerate(self.parameters()):
            value = self._value(name, arguments, launch, results)
            if is_constant or value is None:
                signature.append((name, "constexpr"))
                constants.append((name, value))
            elif isinstance(value, torch.Tensor):
                signature.append((name, f"*{variant.scalar_type(value.dtype)}"))
                memory[name] = value.dtype
                align[name] = alignment(value.data_ptr() if value.device.type != "meta" else 0, value.dtype.itemsize)
                divisors.append((position, align[name]))
            elif isinstance(value, float):
                signature.append((name, "fp64" if torch.float64 in memory.values() else "fp32"))
            else:
                signature.append((name, "i32" if -(2**31) <= value < 2**31 else "i64"))
                divisors.append((position, 16 if value % 16 == 0 else 1))
        known = tuple((p, d) for p, d in divisors if d == 16)
        function = names.for_triton(self.function) if has_triton() else None
        made = variant.Recipe(
            self.function.__name__, "", function, tuple(signature), tuple(constants), known, chosen, launch.warps, False
        )
        laid = Layout(Form(FLAT, LINEAR, 0, (), (), ()), {}, {}, launch.grid, launch.warps, align, False)
        return made, laid, variant.Typing(memory, {})

    def parameters(self) -> list[tuple[str, bool]]:
        """(name, is compile-time) of the kernel's parameters."""
        found = inspect.signature(self.function).parameters.values()
        return [(p.name, "constexpr" in str(p.annotation)) for p in found]

    def _value(self, name: str, arguments: dict[str, Any], launch: Launch, results: dict[str, torch.Tensor]) -> Any:
        plain = name.removesuffix("_ptr")
        for table in (launch.arguments, arguments, results):
            for key in (name, plain):
                if key in table:
                    return table[key]
        default = inspect.signature(self.function).parameters[name].default
        if default is inspect.Parameter.empty:
            raise CompileError(f"{self.spec.name}: nothing gives the kernel's parameter {name!r}; add it to the Launch")
        return default

    def _runner(
        self, launch: Launch, made: variant.Recipe, found: variant.Variant, device: torch.device, given: bool
    ) -> Straight:
        """The function of one kind of call, written out as that of a derived op is."""
        text = Text()
        order = [p.name for p in self.spec.parameters]
        labels = result_names(self.spec)
        if not given:
            for label, result in zip(labels, launch.results, strict=True):
                text.allocate(label, tuple(result.shape), tuple(result.stride()), result.dtype)
        tensors = {*labels, *(p.name for p in self.spec.tensors)}
        constants = dict(made.constants)
        passed = []
        for i, (name, _) in enumerate(made.signature):
            plain = name.removesuffix("_ptr")
            if name in constants:
                passed.append(text.constant(f"_k{i}", constants[name]))
            elif {name, plain} & launch.arguments.keys() or plain not in (*order, *labels):
                passed.append(text.constant(f"_k{i}", self._value(name, {}, launch, {})))
            else:
                passed.append(f"{plain}.data_ptr()" if plain in tensors else plain)
        with torch.cuda.device(device):
            text.launch(0, found.start, launch.grid, passed)
        return text.straight([*order, *(labels if given else [])], labels, device)

    def _reference_runner(self, given: bool) -> Callable[..., Any]:
        count = len(self.spec.parameters)

        def run(*values: Any) -> Any:
            result = self.torch_form(*values[:count])
            if not given:
                return result
            for target_, value in zip(values[count:], result if isinstance(result, tuple) else (result,), strict=True):
                target_.copy_(value)
            return values[count] if len(values) == count + 1 else values[count:]

        return run

    def _empty_runner(self, launch: Launch, device: torch.device, given: bool) -> Callable[..., Any]:
        count = len(self.spec.parameters)

        def run(*values: Any) -> Any:
            made = values[count:] if given else tuple(torch.empty_like(r, device=device) for r in launch.results)
            return made[0] if len(made) == 1 else made

        return run

    def new_results(self, arguments: dict[str, Any]) -> list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]:
        launch = self.describe(**arguments)
        return [(tuple(r.shape), tuple(r.stride()), r.dtype) for r in launch.results]

    def reference(self, arguments: dict[str, Any]) -> Any:
        return self.torch_form(*arguments.values())

    def differentiable_form(self, arguments: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        made = self.reference(arguments)
        return made if isinstance(made, tuple) else (made,)

    def cuts(self, _arguments: dict[str, Any]) -> list[Cut]:
        """None: nothing is known of what a hand-written kernel does to its dimensions."""
        return []

    def linear_in(self, _arguments: dict[str, Any], _chosen: Set[str]) -> tuple[None, ...]:
        return (None,) * len(self.spec.outputs)

    def cost(self, arguments: dict[str, Any]) -> Cost:
        launch = self.launch(arguments)
        read = {(v.data_ptr() if v.device.type != "meta" else id(v)): v.numel() * v.element_size()
                for v in arguments.values() if isinstance(v, torch.Tensor)}  # fmt: skip
        written = sum(r.numel() * r.element_size() for r in launch.results)
        flops = self.flops(**arguments) if callable(self.flops) else self.flops * launch.results[0].numel()
        return Cost(sum(read.values()), written, flops)

    def inspect(self, chosen: target.Target, dtype: torch.dtype) -> list[dict[str, Any]]:
        """The kernel on contiguous tensors whose size 16 divides, and on one element more."""
        records = []
        for name, n in (("contiguous", 1 << 20), ("one element more than a multiple of 16", (1 << 20) + 1)):
            arguments = {
                p.name: torch.empty(n, dtype=dtype, device="meta") if p.kind == TENSOR else 1 if p.default is ... else p.default
                for p in self.spec.parameters
            }
            made, laid, typing = self.recipe(arguments, self.launch(arguments), (), chosen)
            found = facts(variant.compile_recipe(made), [n for n, kind in made.signature if kind != "constexpr"])
            inputs = {name.removesuffix("_ptr") for name in laid.align}
            records.append(record(name, self.source(arguments), laid, typing, dtype, found, inputs))
        return records

    def source(self, _arguments: dict[str, Any]) -> str:
        return inspect.getsource(self.function)
