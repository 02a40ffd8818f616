"""The torch.fx graph of a body, once per (compile-time values, optionals given, dtypes), and what is counted on it."""

import contextlib
import copy
import functools
import operator
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rafters import lang
from rafters.lang.elementary import stable_sigmoid
from rafters.trace.body import Body
from rafters.trace.run import run

# Sizes that occur nowhere else, so that the kind of a node (tile, column vector, row scalar, scalar) shows in its shape.
SOME_ROWS, SOME_COLS = 5, 7
TILE, COLUMN, ROW, POINT = "tile", "column", "row", "point"
SHAPES: dict[str, tuple[int, ...]] = {TILE: (SOME_ROWS, SOME_COLS), COLUMN: (1, SOME_COLS), ROW: (SOME_ROWS, 1), POINT: ()}

_FREE = {"_to_copy", "clone", "view", "expand", "full", "full_like", "scalar_tensor", "empty_like", "zeros_like", "alias", "detach",
         "lift_fresh", "unsqueeze", "squeeze", "permute", "slice"}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Graph:
    """A traced body. `inputs` names the placeholders in order; each is a tensor or a 0-d scalar."""

    module: torch.fx.GraphModule
    inputs: tuple[str, ...]

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

    @property
    def flops(self) -> dict[str, int]:
        """Arithmetic operations per element, by the kind of value they make (a reduction counts on its operand)."""
        counts = {TILE: 0, COLUMN: 0, ROW: 0, POINT: 0}
        for node in self.module.graph.nodes:
            if node.op == "call_function" and name_of(node) not in _FREE and node.target is not operator.getitem:
                operand = node.args[0] if name_of(node) in REDUCTIONS and node.args else node
                counts[kind_of(operand if isinstance(operand, torch.fx.Node) else node)] += 1
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
REDUCTIONS = {"sum", "amax", "amin", "mean", "prod"}


def name_of(node: torch.fx.Node) -> str:
    """'mul' of aten.mul.Tensor; 'view' of aten.view_copy, which functionalization writes for a view."""
    target = node.target
    name = (
        target._schema.name.split("::")[-1]
        if isinstance(target, torch._ops.OpOverload)
        else getattr(target, "__name__", str(target))
    )
    return name if name == "_to_copy" else name.removesuffix("_copy")


def kind_of(node: torch.fx.Node) -> str:
    """tile, column, row or point, from the shape the node had in the trace."""
    shape = tuple(node.meta["val"].shape)
    if shape[-2:] == (SOME_ROWS, SOME_COLS):
        return TILE
    if shape[-1:] == (SOME_COLS,):
        return COLUMN
    return ROW if shape[-2:] == (SOME_ROWS, 1) else POINT


def trace(body: Body, tensors: dict[str, tuple[torch.dtype, str]], constants: dict[str, Any], rowwise: bool = True) -> Graph:
    """Traces `body`.

    `tensors` gives dtype and kind (tile, column, row, point) of every tensor and scalar parameter that is present; `constants` the
    compile-time values, and None for optionals that are absent. Scalars are traced as 0-d inputs, so that no value is baked in.
    """
    names = tuple(tensors)

    def function(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return run(body, {**dict(zip(names, values, strict=True)), **constants})

    graph = trace_function(function, tensors)
    _check_reductions(body, graph.module, rowwise)
    return graph


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
    return Graph(module, tuple(tensors))


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
            raise body.error(f"lang.row_{name_of(node)} of a value that does not vary along the row", body.tree)


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
        _without_saved_tensors_hooks(),
    ):
        yield


@contextlib.contextmanager
def _without_saved_tensors_hooks() -> Iterator[None]:
    """Activation checkpointing and offloading set them, and torch.func.vjp refuses to work under them."""
    autograd = torch._C._autograd
    hooks = []
    while (pair := autograd._top_saved_tensors_default_hooks(False)) is not None:
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


def _constants(graph: torch.fx.Graph) -> None:
    """A tensor of one number (`ones_like`, the seed of a rule) as the number itself, which broadcasts."""
    numbers = {"zeros_like": 0, "ones_like": 1}
    for node in list(graph.nodes):
        name = name_of(node) if node.op == "call_function" else ""
        if (name != "full_like" and name not in numbers) or any(name_of(user) in REDUCTIONS for user in node.users):
            continue  # a sum of ones is the length of the row
        value, dtype = node.args[1] if name == "full_like" else numbers[name], node.meta["val"].dtype
        with graph.inserting_before(node):
            number = graph.call_function(torch.ops.aten.full.default, ([], value), {"dtype": dtype})
        number.meta["val"] = node.meta["val"].new_empty(())
        node.replace_all_uses_with(number)
        graph.erase_node(node)
