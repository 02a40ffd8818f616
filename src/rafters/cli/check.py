"""`rafters check OP`: does an op keep every promise? Ours, or one of yours; exit status 1 if it does not."""

import json
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rafters import testing
from rafters.cli._ops import find
from rafters.testing import Report

_PATHS = ("CPU", "GPU", "kernel", "backward kernel", "assembly", "PyTorch")


def main(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP...]", help="Names of our ops (all, if none is named), my_op.py, my_op.py:name."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few seconds an op: what CI runs.")] = False,
    device: Annotated[str | None, typer.Option(help="cuda or cpu; by default the GPU if there is one.")] = None,
    ulp: Annotated[
        float | None,
        typer.Option(help="Units in the last place that results may be off, where that is more than the usual limits."),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="A check by its name; may be given several times.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Values, memory, strides, dtypes, gradients, torch.compile and the kernels of ops, on drawn inputs that are the same in every run."""
    testing.check  # noqa: B018  (says in one line what is missing, if hypothesis is)
    from rafters.ops import table
    from rafters.testing.examine import Bounds
    from rafters.testing.suite import Checker

    chosen = find(ops or list(table()))
    reports = []
    console = Console()
    with Checker(quick, device, Bounds(ulp, ulp), only or ()) as checker:
        checker.ahead(chosen)
        for op in chosen:
            reports.append(checker.check(op))
            if not as_json:
                _print(console, reports[-1], brief=len(chosen) > 1)
    if as_json:
        typer.echo(json.dumps({"ok": all(r.ok for r in reports), "ops": [r.to_json() for r in reports]}, indent=1))
    if not all(r.ok for r in reports):
        raise typer.Exit(1)


def _print(console: Console, report: Report, brief: bool) -> None:
    """One op: a line if it passed beside others, else its table; then every failure with the code that shows it."""
    if not brief or not report.ok:
        console.print(_table(report))
    skipped = [o for o in report.outcomes if o.status == "skipped"]
    passed = sum(o.status == "passed" for o in report.outcomes)
    verdict = "[green]passed[/]" if report.ok else "[red]FAILED[/]"
    counts = f"{passed} passed, {len(report.failed)} failed, {len(skipped)} skipped"
    console.print(f"{verdict} {report.op}: {counts} in {report.seconds:.1f} s on {report.device}", highlight=False)
    for o in report.failed:
        console.print(f"[red]{escape(o.check)}[/] ({o.path}): {escape(o.reason)}", highlight=False, soft_wrap=True)
        if o.code:
            console.print(escape("\n".join(f"    {line}" for line in o.code.splitlines())), highlight=False, soft_wrap=True)
    if not brief:
        for o in skipped:
            console.print(f"[yellow]skipped[/] {escape(o.check)} ({o.path}): {escape(o.reason)}", highlight=False, soft_wrap=True)


def _table(report: Report) -> Table:
    """Checks down, ways of running the op across; a cell says how many calls kept the promise."""
    paths = [p for p in _PATHS if any(_column(o.path) == p for o in report.outcomes)]
    table = Table(
        "check", *paths, box=SIMPLE, padding=(0, 1), title=f"{report.op}: calls that kept the promise", title_justify="left"
    )
    cells: dict[str, dict[str, str]] = {}
    for o in report.outcomes:
        mark = {"passed": f"[green]{o.calls}[/]", "failed": "[red]FAILED[/]", "skipped": "[yellow]skipped[/]"}[o.status]
        cells.setdefault(o.check, {})[_column(o.path)] = mark
    for check, marks in cells.items():
        table.add_row(check, *(marks.get(path, "") for path in paths))
    return table


def _column(path: str) -> str:
    return path if path in _PATHS else "PyTorch"
