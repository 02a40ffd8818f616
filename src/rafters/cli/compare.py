"""`rafters compare`: two runs side by side."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rafters.roofline import compare, read
from rafters.roofline.chart import terminal
from rafters.roofline.judging import FAILED, SLOWER, Judgement, summary


def main(
    before: Annotated[Path, typer.Argument(help="Results to compare with.")],
    after: Annotated[Path, typer.Argument(help="Results to judge.")],
    threshold: Annotated[float, typer.Option(min=0.0, help="Share of the time within which a row is the same.")] = 0.02,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Judge each row of two result files: SAME, FASTER, SLOWER, AMBIGUOUS or FAILED. Exit status 1 on SLOWER or FAILED."""
    rows = compare(read(before), read(after), threshold=threshold)
    bad = any(r.verdict in (SLOWER, FAILED) for r in rows)
    if as_json:
        typer.echo(json.dumps({"threshold": threshold, "rows": [r.to_json() for r in rows], "summary": summary(rows)}))
    else:
        typer.echo("\n".join(terminal.table([_row(r) for r in rows], 100)))
        typer.echo(summary(rows))
    if bad:
        raise typer.Exit(1)


def _row(r: Judgement) -> dict[str, str]:
    def microseconds(s: float | None) -> str:
        return f"{s * 1e6:,.2f}" if s is not None else "-"

    known = r.ratio is not None and r.low is not None and r.high is not None
    return {
        "call": f"{r.name} ({r.provider}) {r.shape} {r.dtype}",
        "before µs": microseconds(r.before_s),
        "after µs": microseconds(r.after_s),
        "time": f"{r.ratio - 1:+.1%}" if r.ratio is not None else "-",
        "between": f"{r.low - 1:+.1%} and {r.high - 1:+.1%}" if known and r.low is not None and r.high is not None else "",
        "verdict": r.verdict,
        "why": r.reason,
    }
