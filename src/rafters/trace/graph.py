"""The torch.fx graph of a body, once per (compile-time values, optionals given, dtypes), and what is counted on it."""

import contextlib
import copy
import functools
import operator
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from rafters import lang
from rafters.lang.elementary import stable_sigmoid
from rafters.trace.body import Body
from rafters.trace.nodes import COLUMN, FILLED, POINT, REDUCTIONS, ROW, SHAPES, TILE, filling, kind_of, name_of
from rafters.trace.run import run

_FREE = {"_to_copy", "clone", "view", "expand", "full", "full_like", "scalar_tensor", "empty_like", "zeros_like", "alias", "detach",
         "lift_fresh", "unsqueeze", "squeeze", "permute", "slice"}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Graph:
    """A traced body. `inputs` names the placeholders in order; each is a tensor or a 0-d scalar.

    `kinds` says how each input varies. It may say less than the shape it was traced with: a row-wise body sees a whole row of an argument
    that is one value a row.
    """

    module: torch.fx.GraphModule
    inputs: tuple[str, ...]
    kinds: tuple[str, ...]

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result: tuple[torch.Tensor, ...] = self.module(*tensors)
        return result

    @functools.cached_property
    def hoisted(self) -> torch.fx.GraphModule:
        """The graph with its constants made once, for calling it block by block."""
        module = copy.deepcopy(self.module)
        for node in module.graph.nodes:
            if node.op == "call_function" and name_of(node) in CPU_FORMS:
                node.target = CPU_FORMS[name_of(node)]
        for number, node in enumerate(list(module.graph.nodes)):
            if node.op == "call_function" and name_of(node) == "full" and not node.args[0]:
                value = node.args[1]
                module.register_buffer(f"constant_{number}", torch.full((), value, dtype=node.meta["val"].dtype))
                with module.graph.inserting_before(node):
                    node.replace_all_uses_with(module.graph.get_attr(f"constant_{number}"))
                module.graph.erase_node(node)
        module.recompile()
        return module

    @functools.cached_property
    def into(self) -> Callable[..., Any] | None:
        """`f(*inputs, out=)` where the whole body is one PyTorch operation that can write into a tensor; else None."""
        work = [n for n in self.module.graph.nodes if n.op not in ("placeholder", "output")]
        inputs = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        returned = next(n for n in self.module.graph.nodes if n.op == "output").args[0]
        if (
            len(work) != 1
            or name_of(work[0]) in CPU_FORMS
            or work[0].kwargs
            or list(work[0].args) != inputs
            or list(returned) != work
        ):
            return None
        same_dtype = {a.meta["val"].dtype for a in inputs} == {work[0].meta["val"].dtype}
        return _out_form(work[0].target) if same_dtype and isinstance(work[0].target, torch._ops.OpOverload) else None

    @functools.cached_property
    def read(self) -> frozenset[str]:
        """The inputs of which more than the shape is used: the length of a row is not in its numbers."""
        placeholders = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        uses = {name: [name_of(user) for user in node.users] for name, node in zip(self.inputs, placeholders, strict=True)}
        return frozenset(name for name, users in uses.items() if any(user not in FILLED for user in users))

    @functools.cached_property
    def varying(self) -> dict[torch.fx.Node, str]:
        """How each value varies (tile, column, row, point), whatever shape it has in the trace."""
        result: dict[torch.fx.Node, str] = {}
        kinds = iter(self.kinds)
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                result[node] = next(kinds)
                continue
            operands = () if node.op != "output" and name_of(node) in FILLED else node.all_input_nodes
            of = {result[n] for n in operands}
            along = bool(of & {TILE, COLUMN}) and name_of(node) not in REDUCTIONS
            down = bool(of & {TILE, ROW})
            result[node] = (TILE if down else COLUMN) if along else (ROW if down else POINT)
        return result

    @property
    def flops(self) -> dict[str, int]:
        """Arithmetic operations per element, by the kind of value they make (a reduction counts on its operand)."""
        counts = {TILE: 0, COLUMN: 0, ROW: 0, POINT: 0}
        for node in self.module.graph.nodes:
            if node.op == "call_function" and name_of(node) not in _FREE and node.target is not operator.getitem:
                operand = node.args[0] if name_of(node) in REDUCTIONS and node.args else node
                counts[self.varying[operand if isinstance(operand, torch.fx.Node) else node]] += 1
        return counts


# Where PyTorch's own CPU kernel is not what the operation means.
CPU_FORMS: dict[str, Callable[..., torch.Tensor]] = {"sigmoid": stable_sigmoid}


def _out_form(target: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """The overload that takes the same arguments and writes into `out`."""
    packet = target.overloadpacket
    wanted = [str(a.type) for a in target._schema.arguments]
    for name in (f"{target._overloadname}_out", "out"):
        form = getattr(packet, name, None)
        if form is not None and [str(a.type) for a in form._schema.arguments if not a.is_out] == wanted:
            return form  # type: ignore[no-any-return]
    return None


# Kept whole: a word of the language has code of its own, better than the formula it would be taken apart into.
WHOLE = {f"aten::{word}" for word in lang.WORDS}


# In a row-wise body every tensor is a row: one that is broadcast along it is a row of equal numbers.
_WHOLE = {TILE: TILE, ROW: TILE, COLUMN: COLUMN, POINT: COLUMN}


def trace(
    body: Body,
    tensors: dict[str, tuple[torch.dtype, str]],
    constants: dict[str, Any],
    rowwise: bool = True,
    numbers: Collection[str] = (),
) -> Graph:
    """Traces `body`.

    `tensors` gives dtype and kind (tile, column, row, point) of every tensor and scalar parameter that is present, of which `numbers`
    are no tensors; `constants` the compile-time values, and None for optionals that are absent. Scalars are traced as 0-d inputs, so that
    no value is baked in.
    """
    names = tuple(tensors)
    whole = {n: (dtype, _WHOLE[kind] if rowwise and n not in numbers else kind) for n, (dtype, kind) in tensors.items()}

    def function(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return run(body, {**dict(zip(names, values, strict=True)), **constants})

    graph = trace_function(function, whole)
    _check_reductions(body, graph.module, rowwise)
    return replace(graph, kinds=tuple(kind for _, kind in tensors.values()))


def trace_function(
    function: Callable[..., tuple[torch.Tensor, ...]],
    tensors: dict[str, tuple[torch.dtype, str]],
    mutates: bool = False,
    also: tuple[Any, ...] = (),
) -> Graph:
    """The graph of a function of tensors. `mutates`: it may write into its intermediate values (some rules of autograd do); `also`:
    operations that count among PyTorch's core, to be taken apart as well.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    with _tracing, alone():
        examples = [torch.zeros(SHAPES[kind], dtype=dtype, device="cpu") for dtype, kind in tensors.values()]
        rules = _decompositions(also)
        pure: Any = torch.func.functionalize(function, remove="mutations_and_views") if mutates else function
        module = make_fx(pure, tracing_mode="fake", decomposition_table=rules)(*examples)
        _clean(module)
    return Graph(module, tuple(tensors), tuple(kind for _, kind in tensors.values()))


@functools.cache
def _decompositions(also: tuple[Any, ...]) -> dict[Any, Callable[..., Any]]:
    """PyTorch's own formulas for what is no word of the language."""
    from torch._decomp import core_aten_decompositions, get_decompositions

    rules = {op: rule for op, rule in core_aten_decompositions().items() if op._schema.name not in WHOLE}
    return rules | get_decompositions(list(also))


def _check_reductions(body: Body, module: torch.fx.GraphModule, rowwise: bool) -> None:
    for node in module.graph.nodes:
        if node.op == "call_function" and name_of(node) in REDUCTIONS and not rowwise:
            raise body.error("an elementwise op has no rows to reduce; decorate the body with @rafters.rowwise", body.tree)
        if node.op == "call_function" and name_of(node) in REDUCTIONS and kind_of(node.args[0]) not in (TILE, COLUMN):
            raise body.error(
                f"a row of a value that has none (a number, or what was reduced already): aten.{name_of(node)}", body.tree
            )


_tracing = threading.RLock()  # make_fx patches torch's globals while it runs: one trace at a time in the process


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """A trace may be asked for in the middle of anything: under modes, transforms, autocast, checkpointing. None of that belongs into
    the graph."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
    from torch.utils._python_dispatch import _disable_current_modes

    with (
        temporarily_clear_interpreter_stack(),
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        torch._C._DisableAutocast(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch._guards.tracing(None),  # Dynamo's makes sizes symbolic
        _without_saved_tensors_hooks(),
    ):
        yield


@contextlib.contextmanager
def _without_saved_tensors_hooks() -> Iterator[None]:
    """Activation checkpointing and offloading set them, and torch.func.vjp refuses to work under them."""
    autograd = torch._C._autograd
    hooks = []
    while (pair := autograd._top_saved_tensors_default_hooks(True)) is not None:  # True: while torch traces as well
        hooks.append(pair)
        autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(hooks):
            autograd._push_saved_tensors_default_hooks(*pair)


def _clean(module: torch.fx.GraphModule) -> None:
    from torch._functorch.compile_utils import fx_graph_cse

    _constants(module.graph)
    graph = fx_graph_cse(module.graph)
    graph.eliminate_dead_code()
    graph.lint()
    module.graph = graph
    module.recompile()


def _reduced_constants(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The filled tensors that are part of what is reduced: a sum of ones is the length of the row, which a number does not have."""
    made_of: dict[torch.fx.Node, set[torch.fx.Node]] = {}
    reduced: set[torch.fx.Node] = set()
    for node in graph.nodes:
        made_of[node] = set().union(*(made_of[n] for n in node.all_input_nodes))
        if node.op == "call_function" and name_of(node) in FILLED:
            made_of[node] = {node}
        elif node.op == "call_function" and name_of(node) in REDUCTIONS:
            reduced |= made_of[node]
    return reduced


def _constants(graph: torch.fx.Graph) -> None:
    """A tensor of one number (`ones_like`, the seed of a rule) as the number itself, which broadcasts."""
    reduced = _reduced_constants(graph)
    for node in list(graph.nodes):
        if node.op != "call_function" or name_of(node) not in FILLED or node in reduced:
            continue
        value, dtype = filling(node), node.meta["val"].dtype
        with graph.inserting_before(node):
            number = graph.call_function(torch.ops.aten.full.default, ([], value), {"dtype": dtype})
        number.meta["val"] = node.meta["val"].new_empty(())
        node.replace_all_uses_with(number)
        graph.erase_node(node)
