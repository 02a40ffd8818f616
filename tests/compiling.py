"""What Inductor made of a call."""

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.utils import run_and_get_code


def code_of(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[str]]:
    """The result of a call, and the code of each graph that it compiled (a graph from a cache would have none)."""
    with torch._inductor.config.patch(fx_graph_cache=False):
        result, code = run_and_get_code(function, *arguments)
    return result, list(code)
