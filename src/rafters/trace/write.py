"""Writes a graph as the body of an op: a function in Triton's dialect that a person can read, keep and edit."""

from collections.abc import Sequence

from rafters.trace.emit import emit, is_literal
from rafters.trace.graph import Graph


def used_inputs(graph: Graph) -> list[str]:
    """The inputs that the graph's results depend on."""
    placeholders = [node for node in graph.module.graph.nodes if node.op == "placeholder"]
    return [name for name, node in zip(graph.inputs, placeholders, strict=True) if node.users]


def passed_on(graph: Graph) -> list[str | None]:
    """For each output the input that it is, or None where it is computed."""
    placeholders = [node for node in graph.module.graph.nodes if node.op == "placeholder"]
    names = dict(zip(placeholders, graph.inputs, strict=True))
    output = next(node for node in graph.module.graph.nodes if node.op == "output")
    return [names.get(value) for value in output.args[0]]


def body_text(name: str, graph: Graph, parameters: Sequence[str], outputs: Sequence[str], doc: str) -> str:
    """`def name(parameters): ... return outputs`. `parameters` carry the annotations of numbers (`alpha: float`)."""
    lines = emit(graph, graph.inputs, outputs, "", lambda _kind: "")
    tensor = parameters[0]
    for i, line in enumerate(lines):
        target, _, value = line.partition(" = ")
        if target in outputs and is_literal(value):  # a number has no element; the result of a body has
            lines[i] = f"{target} = tl.zeros_like({tensor})" + ("" if float(value) == 0 else f" + {value}")
    lines = [f'"""{doc}"""', *lines, f"return {', '.join(outputs)}"]
    return "\n    ".join([f"def {name}({', '.join(parameters)}):", *lines]) + "\n"
