"""An operator: a call, and everything that can be asked of it."""

from collections.abc import Sequence
from typing import Any

import torch

from rafters import roofline
from rafters.cost import Cost
from rafters.engine import plan as plans
from rafters.engine import variant
from rafters.engine.results import check_given
from rafters.engine.spec import CONSTEXPR, INDEX, SCALAR, TENSOR, Spec
from rafters.engine.target import Target
from rafters.errors import ArgumentError, RaftersError, argument_error
from rafters.operator import switches
from rafters.operator.calls import call_text, gate, planning, warming
from rafters.operator.calls.table import Table
from rafters.operator.derivatives import derive
from rafters.operator.derivatives.forward import forward_mode
from rafters.operator.derivatives.own_backward import torch_form
from rafters.operator.from_body import FromBody
from rafters.operator.pytorch import compiled, pickling, registration, sharding
from rafters.operator.switches import current


class Op:
    """A PyTorch operator made from one body.

    `op(*arguments)` calls it; `out=` takes the caller's result tensors. A subclass per op carries the generated `__call__`.
    """

    _key: Any  # generated for the op's signature, as __call__ is
    _any_key: Any
    _size_key: Any
    _first: Any
    _registered: Any
    _below: Any  # the same below autograd
    _record: Any  # a known call whose gradient is wanted; set by gradient.py

    def __call__(self, *arguments: Any, out: Any = None) -> Any:
        raise NotImplementedError  # generated

    def __init__(self, spec: Spec, form: Any, compile_: str | None = None) -> None:
        self.spec = spec
        self.compile = compiled.checked(spec, compile_)  # what the declaration asks of torch.compile
        self.form = form  # FromBody or FromKernel: how the op's derived forms come about
        self.name = spec.name
        self.__name__ = spec.name
        self.__qualname__ = spec.name
        self.__module__ = spec.body.function.__module__
        self.__doc__ = spec.body.function.__doc__
        self.__wrapped__ = spec.body.function
        self.writes = any(p.mutated for p in spec.parameters)
        self._plans = Table()
        self._variants = variant.Store(self.name)
        self._registration = registration.register(self)
        switches.ops.add(self)

    def forget_plans(self) -> None:
        """Drops every plan; the next call of each kind plans anew."""
        self._plans.clear()

    @property
    def qualified_name(self) -> str:
        return f"{self.spec.namespace}::{self.spec.name}"

    def __repr__(self) -> str:
        return f"<rafters op {self.qualified_name}({', '.join(p.name for p in self.spec.parameters)})>"

    def __reduce__(self) -> Any:
        return pickling.by_name(self, Op)

    def __copy__(self) -> "Op":
        return self

    def __deepcopy__(self, memo: Any) -> "Op":
        return self

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{v['layout']}</td><td>{v['target']}</td><td>{v['dtype']}</td></tr>" for v in self.variants())
        return f"<p><b>{self.qualified_name}</b></p><table><tr><th>layout</th><th>target</th><th>dtype</th></tr>{rows}</table>"

    # -- the call --------------------------------------------------------------------------------------------------------------

    def _slow(self, arguments: tuple[Any, ...], out: Any) -> Any:
        """Every call that the generated function does not know: the first of its kind, numbers for tensors, out=, gradients."""
        self._check_arguments(arguments)
        arguments = gate.without_negative_bit(arguments)
        given = self._given(out)
        if gate.needs_dispatch((*arguments, *given)):
            return self._dispatched(arguments, out)
        return self._run(arguments, given)

    def _run(self, arguments: tuple[Any, ...], given: tuple[torch.Tensor, ...] = ()) -> Any:
        """Plain tensors to their plan."""
        return planning.ready(self, arguments, given).run(*arguments, *given)

    def _named(self, arguments: Sequence[Any]) -> dict[str, Any]:
        return dict(zip((p.name for p in self.spec.parameters), arguments, strict=True))

    def _bound(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
        """Arguments in the order of the parameters, with defaults; TypeError as a Python function would raise."""
        parameters = self.spec.parameters
        values = dict(zip((p.name for p in parameters), arguments, strict=False))
        if len(arguments) > len(parameters):
            raise ArgumentError(f"{self.name}: takes {len(parameters)} arguments, got {len(arguments)}")
        for name in keywords:
            if name in values or name not in (p.name for p in parameters):
                raise ArgumentError(f"{self.name}: argument {name!r} is unknown or given twice")
        values |= keywords
        for p in parameters:
            if p.name not in values and p.default is ...:
                raise ArgumentError(f"{self.name}: argument {p.name!r} is missing")
        return tuple(values.get(p.name, p.default) for p in parameters)

    def _check_arguments(self, arguments: tuple[Any, ...]) -> None:
        for p, value in zip(self.spec.parameters, arguments, strict=True):
            if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
                raise argument_error(self.name, p.name, f"layout {value.layout}", "a strided (dense) tensor")
            if p.mutated and isinstance(value, torch.Tensor) and value.is_neg():
                raise argument_error(self.name, p.name, "a lazily negated tensor", "plain memory to write to (.resolve_neg())")
            if p.kind == SCALAR and not isinstance(value, bool | int | float | torch.SymInt | torch.SymFloat):
                raise argument_error(self.name, p.name, type(value).__name__, f"a Python {p.type.__name__}")
            if p.kind == SCALAR and p.type is int and isinstance(value, float):
                raise argument_error(self.name, p.name, repr(value), "an int")
            if p.kind == CONSTEXPR and isinstance(value, torch.Tensor):
                raise argument_error(self.name, p.name, "a tensor", "a compile-time value (a Python number, bool or string)")
            if p.kind == CONSTEXPR and p.type is bool and not isinstance(value, bool):
                raise argument_error(self.name, p.name, repr(value), "True or False")

    def _given(self, out: Any) -> tuple[torch.Tensor, ...]:
        if out is None:
            return ()
        fresh = sum(1 for group in self.spec.results if group[0].into is None)
        given = (out,) if isinstance(out, torch.Tensor) else out
        if not isinstance(given, tuple | list) or not all(isinstance(g, torch.Tensor) for g in given):
            raise argument_error(
                self.name, "out", type(out).__name__, "a tensor" if fresh == 1 else f"a tuple of {fresh} tensors"
            )
        given = tuple(given)
        if len(given) != fresh:
            raise argument_error(self.name, "out", f"{len(given)} tensors", f"{fresh}, one a result")
        return given

    def opaque(self, *arguments: Any, out: Any = None, **keywords: Any) -> Any:
        """The same call, kept one call of the kernel under torch.compile (`torch.ops.<namespace>.<name>.opaque`); eagerly the same."""
        if not gate.is_compiling():
            return self(*arguments, out=out, **keywords)
        return self._dispatched(self._bound(arguments, keywords), out, self._registration.opaque)

    def _dispatched(self, arguments: tuple[Any, ...], out: Any, overload: Any = None) -> Any:
        """The call through PyTorch's dispatcher."""
        if not gate.is_compiling() and gate.forward_only(arguments) and (dual := forward_mode(self, arguments)) is not None:
            result = dual
        elif not gate.is_compiling() and gate.needs_composite(arguments):
            made = torch_form(self, self._named(arguments))
            result = made[0] if len(made) == 1 else made
        else:
            if not gate.is_compiling():  # Dynamo traces no lock; what it compiles hands over at the Autograd key
                sharding.hand_over()
            result = (overload or self._registration.overload)(*self._registration.tensorized(arguments))
        if out is None:
            return result
        targets, results = self._given(out), result if isinstance(result, tuple) else (result,)
        for target, value in zip(targets, results, strict=True):
            if torch.is_grad_enabled() and (target.requires_grad or value.requires_grad):
                raise RaftersError(f"{self.name}: out= takes no part in autograd; call it without out=, or under torch.no_grad()")
            check_given(self.name, target, tuple(value.shape), value.dtype, value.device)
            target.copy_(value)
        return out

    # -- what can be asked -----------------------------------------------------------------------------------------------------

    def reference(self, *arguments: Any, **keywords: Any) -> Any:
        """The op in PyTorch operations: its traced form, or the `reference=` it was given."""
        return self.form.reference(self._named(self._bound(arguments, keywords)))

    def cost(self, *arguments: Any, **keywords: Any) -> Cost:
        """Minimum bytes and FLOPs of this call; nothing is run."""
        cost: Cost = self.form.cost(self._named(self._bound(arguments, keywords)))
        return cost

    def plan(self, *arguments: Any, **keywords: Any) -> plans.Plan:
        """What such a call would do: layout, variant, argument values. Compiles the kernel if it is not there yet."""
        plan: plans.Plan = self.form.build(self._named(self._bound(arguments, keywords)), (), self._variants, current.pdl)
        return plan

    def source(self, *arguments: Any, **keywords: Any) -> str:
        """The generated Triton module of such a call, on any machine; with no arguments, that of contiguous float32 tensors."""
        if not arguments and not keywords:
            arguments = self._examples()
        return str(self.form.source(self._named(self._bound(arguments, keywords))))

    def inspect(self, target: Target, dtype: torch.dtype) -> list[dict[str, Any]]:
        """Every kind of variant compiled for a target that need not be here, and what its assembly does to memory."""
        records: list[dict[str, Any]] = self.form.inspect(target, dtype)
        return records

    def body_source(self) -> str:
        """The body in Triton's dialect, with what it imports: of an op made by `from_torch`, what its function became."""
        return f"import rafters\nfrom rafters import lang, tl\n\n\n{self.spec.body.source}\n"

    def backward_op(self, *arguments: Any, **keywords: Any) -> "Op":
        """The op that gives the gradients of all floating-point tensors of such a call: `grad_out`, then what it needs of the call.

        RaftersError where PyTorch derives the op's torch form instead (rows, gathered arguments, a `reference=`), with the reason.
        """
        made: Op = derive.backward_op(self.spec, self._named(self._bound(arguments, keywords)))
        return made

    def backward_source(self, *arguments: Any, **keywords: Any) -> str:
        """The derived backward of such a call as a body that can be read, kept and edited; by default of float32 tensors."""
        if not arguments and not keywords:
            arguments = self._examples()
        return derive.backward_source(self.spec, self._named(self._bound(arguments, keywords)))

    def _examples(self) -> tuple[Any, ...]:
        """Contiguous float32 tensors, and 1 for a number without a default."""
        return tuple(
            torch.empty(16, 64) if p.kind in (TENSOR, INDEX) else p.default if p.default is not ... else (p.type or int)(1)
            for p in self.spec.parameters
        )

    def report(self, *arguments: Any, **keywords: Any) -> "roofline.Measurement":
        """Measures this call, checked against the reference: time, bandwidth, share of the measured ceiling. Takes some seconds."""
        values = self._bound(arguments, keywords)
        return roofline.measure(self, values, self.cost(*values), reference=self.reference, name=self.name)

    def variants(self) -> list[dict[str, Any]]:
        """The compiled variants of this op in this process."""
        return [v.describe() for v in self._variants]

    def warm(
        self,
        *calls: Sequence[Any],
        dtypes: Sequence[Any] = (),
        layouts: Sequence[str | Sequence[str]] = ("flat",),
        widths: Sequence[int] = (),
        align: Sequence[int] = (16,),
        **values: Any,
    ) -> int:
        """Compiles ahead, runs nothing; returns how many variants there are. Afterwards no such call compiles, whatever its row count.

            op.warm((x, y), (x, z))                                          # these calls
            op.warm(dtypes=[torch.bfloat16], layouts=["flat", "rows"], widths=[4096])

        dtypes: of all tensors, or a tuple with one for each.
        layouts: "flat" (all tensors dense, of one shape), "rows" (dense ones with vectors of the last dimension, values per row or
            0-d tensors, in every mix), "numbers" (Python numbers in tensors' places, in every mix), "pitched" (rows with gaps of a
            multiple of 16 bytes between them), "strided" (transposed operands, in every mix); or one word for each tensor: "dense",
            "vector", "per_row", "scalar", "number", "pitched", "transposed". docs/serving.md says what each covers.
        widths: lengths of the last dimension; needed for row-wise ops and for "pitched" and "strided". Without them "rows" is warmed
            for every class of width.
        align: classes of addresses in bytes (16, 8, 4, 2, 1), in every mix; memory from PyTorch's allocator is in class 16.
        values: scalars and compile-time arguments by name; otherwise their defaults.

        On a machine without a GPU there is nothing to compile. Raises ArgumentError for a layout that the op does not have.
        """
        for call in calls:
            if isinstance(call, torch.Tensor):
                raise argument_error(self.name, "calls", "a tensor", "sequences of arguments: op.warm((x, y), (x, z))")
            planning.ready(self, self._bound(tuple(call), {}))
        for example in warming.examples(self.spec, dtypes, layouts, widths, align, values) if dtypes else ():
            planning.warm(self, example.arguments, example.elsewhere, warming.MOST)
        return len(self._variants)


def make_op(spec: Spec, form: Any = None, compile_: str | None = None) -> Op:
    """The op of a spec, with a call written for its signature. `compile_`: `compile=` of `elementwise`."""
    form = form or FromBody(spec)
    form.spec = spec
    functions = call_text.functions(spec.name, spec.parameters, gate.NAMES, gate.GUARDS is not None)
    members = {
        "__call__": functions["__call__"],
        "_key": staticmethod(functions["key"]),
        "_any_key": staticmethod(functions["any_key"]),
        "_size_key": staticmethod(functions["size_key"]),
        "_first": staticmethod(functions["first"]),
        "_registered": staticmethod(functions["registered"]),
        "_below": staticmethod(functions["below"]),
    }
    kind = type(f"Op_{spec.name}", (Op,), members)
    return kind(spec, form, compile_)  # type: ignore[no-any-return]
