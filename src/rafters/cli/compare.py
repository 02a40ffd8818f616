"""`rafters compare`: two runs side by side."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rafters.cli._judged import Judged
from rafters.cli._options import finite
from rafters.roofline import read


def main(
    before: Annotated[Path, typer.Argument(help="Results to compare with.")],
    after: Annotated[Path, typer.Argument(help="Results to judge.")],
    threshold: Annotated[
        float, typer.Option(min=0.0, callback=finite, help="Share of the time within which a row is the same.")
    ] = 0.02,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Judge each row of two result files: SAME, FASTER, SLOWER, AMBIGUOUS or FAILED. Exit status 1 on SLOWER or FAILED."""
    judged = Judged(read(before), read(after), threshold)
    typer.echo(json.dumps(judged.to_json()) if as_json else "\n".join(judged.lines()))
    if not judged.ok:
        raise typer.Exit(1)
