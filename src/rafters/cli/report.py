"""`rafters report`: results drawn, on any machine."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from rafters.errors import MeasureError
from rafters.roofline import read
from rafters.roofline.chart import model, save, terminal
from rafters.roofline.results import recorded


def main(
    results: Annotated[list[Path] | None, typer.Argument(help="Files of JSON lines from bench, measure or roofline.")] = None,
    replay: Annotated[str, typer.Option("--recorded", help="A run that comes with Rafters, by its device: h200.")] = "",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A .html, .svg or .png file; else the terminal.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what would be drawn as JSON.")] = False,
) -> None:
    """Draw results: the roofline, the shares of attainable, the table. Of several files, arrows lead from before to after."""
    files = [*([recorded(replay)] if replay else []), *(results or [])]
    if not files:
        raise MeasureError("report: say what to draw: a file of JSON lines, or --recorded h200")
    found = read(*files)
    chart = dataclasses.replace(model.chart(found), title=f"recorded on {found.label()}")
    if output is not None:
        save(chart, output)
    if as_json:
        rows = [{**model.columns(p), "reasons": p.measurement.reasons, "notes": p.measurement.notes} for p in chart.points]
        typer.echo(json.dumps({"title": chart.title, "points": rows}))
    elif output is None:
        typer.echo(terminal.draw(chart, width=max(60, min(shutil.get_terminal_size().columns, 120))))
    else:
        typer.echo(f"{output}: {len(chart.points)} measurements, {chart.title}")
