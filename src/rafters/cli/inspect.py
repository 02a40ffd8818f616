"""`rafters inspect OP --target sm_90`: every variant of an op, compiled for a target with no GPU, and what is in it."""

import json
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rafters.cli._ops import find
from rafters.dtypes import parse_dtype
from rafters.engine.module import no_triton
from rafters.engine.target import parse_target
from rafters.errors import ArgumentError
from rafters.lang import has_triton


def main(
    ops: Annotated[list[str], typer.Argument(metavar="OP...", help="Names of our ops, or my_module.py:my_op.")],
    target: Annotated[
        str, typer.Option(help="sm_80, sm_90, sm_100, sm_120 or gfx942 (sm_75 where Triton compiles it).")
    ] = "sm_90",
    dtype: Annotated[str, typer.Option(help="dtype of the tensors.")] = "bf16",
    source: Annotated[bool, typer.Option("--source", help="Print the generated kernels too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one document an op.")] = False,
) -> None:
    """Compile every kind of variant and read its assembly: access widths, predicates, registers, spills, dependent launch."""
    chosen = parse_target(target)
    try:
        element = parse_dtype(dtype)
    except ValueError as problem:
        raise ArgumentError(f"inspect: argument '--dtype': {problem}") from None
    if not has_triton():
        raise no_triton()
    failed = False
    documents = []
    for op in find(ops):
        variants = op.inspect(chosen, element)
        failed = failed or not variants or any("error" in v for v in variants)
        documents.append({"op": op.name, "target": chosen.name, "variants": variants})
    if as_json:
        typer.echo(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
    else:
        for document in documents:
            _print(document, source)
    if failed:
        raise typer.Exit(1)


def _print(document: dict[str, Any], source: bool) -> None:
    console = Console()
    title = (
        f"{document['op']} for {document['target']}: bits of an access in the hot arm, predicates there, registers, bytes spilled"
    )
    table = Table("situation", "layout", "load", "store", "pred", "regs", "spill", "PDL", title=title, box=SIMPLE, padding=(0, 1))
    for v in document["variants"]:
        if "error" in v:
            table.add_row(v["situation"], v["layout"], f"[red]{escape(v['error'].splitlines()[0])}")
            continue
        hot, wide = v["hot"], " i64" if v["index_bits"] == 64 else ""
        pdl = "no" if not v["pdl"] else "wait 1st" if v["wait_first"] else "[red]late wait"
        numbers = (hot["load_bits"], hot["store_bits"], hot["predicated"], v["registers"], v["spill_bytes"])
        situation = v["situation"] if v["aligned"] or "unaligned" in v["situation"] else f"{v['situation']} (unaligned)"
        table.add_row(situation, v["layout"] + wide, *map(str, numbers), pdl)
    console.print(table)
    if source:
        for text in dict.fromkeys(v["source"] for v in document["variants"] if "source" in v):
            console.print(text, highlight=False, markup=False)
