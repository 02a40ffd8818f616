"""Writes a traced graph back as Triton text: in a row-wise kernel, with every reduction under the mask of its row, or as a body.

A value is a tile [ROWS, COLS], a column vector [1, COLS], a row value [ROWS, 1] or a scalar; Triton broadcasts these as PyTorch
does, so nothing is translated but names. What is used once is written where it is used.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from rafters import lang
from rafters.dtypes import TRITON_NAMES
from rafters.errors import CompileError
from rafters.trace.graph import Graph
from rafters.trace.nodes import COLUMN, FILLED, ROW, TILE, filling, kind_of, name_of

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "bitwise_and": "&",
    "bitwise_or": "|", "bitwise_xor": "^", "bitwise_left_shift": "<<",
    "bitwise_right_shift": ">>", "fmod": "%",
}  # fmt: skip
# aten's own names for what Triton or `lang` calls otherwise; an operation named like a word of `lang` is that word.
_CALLS = {"fmax": "tl.maximum", "fmin": "tl.minimum", "round": "lang.rint"}
# Triton's reduction of each; extrema propagate NaN, as PyTorch's do.
_REDUCTIONS = {"sum": "lang.row_sum", "amax": "lang.row_max", "amin": "lang.row_min"}
_STEMS = {"sum": "total", "amax": "peak", "amin": "least", "_to_copy": "rounded"}
_COMPOUND = {"neg", "logical_not", "logical_and", "logical_or", "bitwise_not", "div", "pow", "sgn", "sign"}
_REPEATED = {"pow", "sgn", "sign", "trunc"}  # whose text names an operand more than once
_SPECIAL = {"div", "clamp"}  # written from their keywords and absent arguments
_TRANSPARENT = {"clone", "alias", "detach", "lift_fresh", "expand", "view", "unsqueeze", "squeeze"}


def emit(graph: Graph, inputs: Sequence[str], outputs: Sequence[str], row_length: str, mask: Callable[[str], str]) -> list[str]:
    """Lines that compute `outputs` from `inputs` (names of the values, in the order of the graph's placeholders).

    `row_length` is the name of the number of columns; `mask(kind)` the mask of a tile or a column vector. Without a row length the lines
    are those of a body, in whose words a reduction knows its row itself.
    """
    return _Emitter(graph, inputs, outputs, row_length, mask).lines()


class _Emitter:
    def __init__(
        self, graph: Graph, inputs: Sequence[str], outputs: Sequence[str], row_length: str, mask: Callable[[str], str]
    ) -> None:
        self.module, self.varying = graph.module, graph.varying
        self.nodes = list(graph.module.graph.nodes)
        self.outputs, self.row_length, self.mask = list(outputs), row_length, mask
        self.text: dict[torch.fx.Node, str] = {}
        self.body: list[str] = []
        self.compound: set[Any] = set()  # nodes whose text is an operator expression, to be parenthesised in another
        self.named: dict[str, str] = {}  # what a line has computed already, by its text
        self.taken = set(inputs) | set(outputs)
        placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self.text.update(zip(placeholders, inputs, strict=True))

    def lines(self) -> list[str]:
        for node in self.nodes:
            if node.op == "call_function":
                self._node(node)
            elif node.op == "get_attr":
                constant = getattr(self.module, str(node.target))
                self.text[node] = self._constant(constant.item(), constant.dtype)
            elif node.op == "output":
                for name, value in zip(self.outputs, node.args[0], strict=True):
                    self.body.append(f"{name} = {self.text[value]}")
        return self.body

    def _node(self, node: torch.fx.Node) -> None:
        text = self._expression(node)
        used = sum(_mentions(user, node) for user in node.users)
        if (used > 1 or name_of(node) in _REDUCTIONS) and not text.isidentifier() and not is_literal(text):
            if text not in self.named:
                self.named[text] = self._name(node)
                self.body.append(f"{self.named[text]} = {text}")
            text = self.named[text]
        if (name_of(node) in _INFIX or name_of(node) in _COMPOUND or self._passed_on(node, text)) and not _is_call(text):
            self.compound.add(node)
        self.text[node] = text

    def _passed_on(self, node: torch.fx.Node, text: str) -> bool:
        """Is the text that of a compound operand, as it stands?"""
        first = node.args[0] if node.args else None
        return isinstance(first, torch.fx.Node) and first in self.compound and text == self.text[first]

    def _name(self, node: torch.fx.Node) -> str:
        stem = _STEMS.get(name_of(node), name_of(node).rstrip("_"))
        if stem == "total" and name_of(cast(Any, node.args[0])) in FILLED:
            stem = "length"
        name, count = stem, 1
        while name in self.taken:
            count += 1
            name = f"{stem}_{count}"
        self.taken.add(name)
        return name

    def _argument(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return self.text[value]
        if isinstance(value, float) and not math.isfinite(value):
            return f"float('{value}')"
        return repr(value)

    def _operand(self, value: Any) -> str:
        text = self._argument(value)
        node = value if isinstance(value, torch.fx.Node) else None
        return f"({text})" if node in self.compound and not text.isidentifier() else text

    def _expression(self, node: torch.fx.Node) -> str:
        name = name_of(node)
        arguments = [
            self._operand(a) if name in _INFIX else self._argument(a) for a in node.args if not isinstance(a, list | tuple)
        ]
        if name in _TRANSPARENT:
            return arguments[0]
        if name.startswith("logical_"):
            return self._logical(node, name)
        if name in _INFIX:
            return f"{arguments[0]} {_INFIX[name]} {arguments[1]}"
        if name in _CALLS:
            return f"{_CALLS[name]}({', '.join(arguments)})"
        if name in _REDUCTIONS:
            return self._reduction(node, name)
        if name in lang.WORDS and name not in _SPECIAL:
            return f"lang.{name}({', '.join(arguments)})"
        if name == "neg":
            return f"-{self._operand(node.args[0])}"
        if name == "bitwise_not":
            return f"~{self._operand(node.args[0])}"
        if name == "div":
            return self._division(node, arguments)
        if name == "reciprocal":
            return f"lang.div(1.0, {arguments[0]})"
        if name == "mean" and (not self.row_length or not self._varies_along(node)):
            return f"lang.row_mean({arguments[0]})" if not self.row_length else arguments[0]
        if name == "mean":
            return f"lang.div({self._reduction(node, 'sum')}, {self.row_length})"
        if name == "clamp":
            low, high = (*node.args[1:], None, None)[:2]
            return f"lang.clamp({arguments[0]}, {self._argument(low)}, {self._argument(high)})"
        if name in ("full", "scalar_tensor"):
            value = node.args[1] if name == "full" else node.args[0]
            return self._constant(value, node.meta["val"].dtype)
        if name in FILLED:
            return self._constant(filling(node), node.meta["val"].dtype)
        if name == "_to_copy":
            return self._cast(node)
        if name == "pow":
            return self._power(node)
        if name == "trunc":
            return f"lang.where({arguments[0]} < 0, lang.ceil({arguments[0]}), lang.floor({arguments[0]}))"
        if name == "sgn" or name == "sign":
            x = self._operand(node.args[0])
            return f"({x} > 0).to({x}.dtype) - ({x} < 0).to({x}.dtype)"
        raise CompileError(f"aten.{name} has no Triton form yet")

    def _constant(self, value: Any, dtype: torch.dtype) -> str:
        if dtype is torch.bool:
            return str(bool(value))
        if dtype in (torch.float32, torch.float64, torch.int32):  # beside a float64 value a number is one, exactly
            return self._argument(float(value) if dtype.is_floating_point else int(value))
        return f"tl.full((), {self._argument(value)}, tl.{TRITON_NAMES[dtype]})"

    def _cast(self, node: torch.fx.Node) -> str:
        dtype = node.meta["val"].dtype
        text = self._operand(node.args[0])
        operand: Any = node.args[0]
        if is_literal(text) or operand.meta["val"].dtype is dtype:
            return self._argument(operand)
        return f"{text}.to(tl.{TRITON_NAMES[dtype]})"

    def _division(self, node: torch.fx.Node, arguments: list[str]) -> str:
        rounding = node.kwargs.get("rounding_mode")
        if rounding == "trunc" and node.meta["val"].dtype.is_floating_point:
            quotient = f"lang.div({', '.join(arguments)})"
            return f"lang.where({quotient} < 0, lang.ceil({quotient}), lang.floor({quotient}))"
        if rounding == "trunc":
            return f"{self._operand(node.args[0])} // {self._operand(node.args[1])}"
        if rounding == "floor":
            return f"tl.floor(lang.div({', '.join(arguments)}))"
        divisor = node.args[1]
        if (
            isinstance(divisor, int | float)
            and divisor
            and math.frexp(divisor)[0] in (0.5, -0.5)
            and 2**-60 < abs(divisor) < 2**60
        ):
            return f"{self._operand(node.args[0])} * {1.0 / divisor!r}"  # a power of two: the product is the quotient
        return f"lang.div({', '.join(arguments)})"

    def _logical(self, node: torch.fx.Node, name: str) -> str:
        """Per element; a number is true where it is not 0."""
        terms = []
        for a in node.args:
            truth = not isinstance(a, torch.fx.Node) or a.meta["val"].dtype is torch.bool
            terms.append(self._operand(a) if truth else f"({self._operand(a)} != 0)")
        return f"~{terms[0]}" if name == "logical_not" else (" & " if name == "logical_and" else " | ").join(terms)

    def _power(self, node: torch.fx.Node) -> str:
        x, exponent = self._operand(node.args[0]), cast(Any, node.args[1])
        if exponent in range(2, 9):
            return " * ".join([x] * int(exponent))
        if exponent in range(-8, 0):
            return f"lang.div(1.0, {' * '.join([x] * int(-exponent))})"
        if isinstance(exponent, float) and exponent - 0.5 in range(8):
            return " * ".join([f"lang.sqrt({x})", *[x] * int(exponent)])
        raise CompileError(f"aten.pow with exponent {exponent} has no Triton form; write it with * or lang.exp and lang.log")

    def _reduction(self, node: torch.fx.Node, name: str) -> str:
        operand: Any = node.args[0]
        if kind_of(operand) == TILE and kind_of(node) != ROW:
            raise CompileError(f"aten.{name_of(node)} over rows has no Triton form; only one along the row has")
        if name == "sum" and name_of(operand) in FILLED and filling(operand) == 1:
            return self._length(node, operand)
        if not self._varies_along(node) and (self.row_length or _row_of(operand)):  # a row of equal numbers
            same = f"{self._operand(operand)} * {self._length(node, operand)}"
            return same if name == "sum" else self._argument(operand)
        mask, text = self.mask(self.varying[operand]), self._argument(operand)
        neutral = _neutral(name, operand.meta["val"].dtype)
        return f"{_REDUCTIONS[name]}(tl.where({mask}, {text}, {neutral}))" if mask else f"{_REDUCTIONS[name]}({text})"

    def _varies_along(self, reduction: torch.fx.Node) -> bool:
        """Are the numbers of the row that is reduced not all the same?"""
        operand: Any = reduction.args[0]
        return self.varying[operand] in (TILE, COLUMN)

    def _length(self, node: torch.fx.Node, source: Any) -> str:
        """The length of the row of `source`, in the dtype of `node`."""
        dtype = node.meta["val"].dtype
        if self.row_length:
            return f"tl.cast({self.row_length}, tl.{TRITON_NAMES[dtype]})"
        row = _row_of(source)
        if row is None:
            raise CompileError("the length of a row that no tensor argument has")
        length = f"lang.row_length({self.text[row]})"
        return length if dtype.is_floating_point else f"{length}.to(tl.{TRITON_NAMES[dtype]})"


def _row_of(node: torch.fx.Node) -> torch.fx.Node | None:
    """An input that a value was made of and that is a row."""
    waiting = [node]
    while waiting:
        found = waiting.pop(0)
        if found.op == "placeholder" and kind_of(found) in (TILE, COLUMN):
            return found
        waiting += found.all_input_nodes
    return None


def _mentions(user: torch.fx.Node, node: torch.fx.Node) -> int:
    """How often the text of `user` names `node`; a square names its operand twice."""
    count = sum(a is node for a in _flat(user.args))
    return count * 2 if name_of(user) in _REPEATED else count


def _is_call(text: str) -> bool:
    """Is it one call, `lang.div(x, y)`, that needs no parentheses?"""
    head, opened, _ = text.partition("(")
    depth = 1
    for place, character in enumerate(text[len(head) + 1 :], len(head) + 1):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return bool(opened) and head.replace(".", "").isidentifier() and place == len(text) - 1
    return False


def _flat(arguments: Any) -> list[Any]:
    return [b for a in arguments for b in (_flat(a) if isinstance(a, list | tuple) else [a])]


def _neutral(reduction: str, dtype: torch.dtype) -> str:
    """What a masked lane holds: nothing that its reduction would see, in the dtype of the row (an integer never becomes a float)."""
    if reduction == "sum":
        return "0"
    if dtype.is_floating_point:
        return "-float('inf')" if reduction == "amax" else "float('inf')"
    if dtype is torch.bool:
        return str(reduction == "amin")
    info = torch.iinfo(dtype)
    return str(info.min if reduction == "amax" else info.max)


def is_literal(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text in ("True", "False") or text.startswith("float('")
    return True
