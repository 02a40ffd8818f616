"""The chart as one HTML file that works offline: plotly, hover, filters, a table that sorts, light and dark.

Nothing from the data is ever markup or program: it travels as JSON with every `<` escaped, and reaches the page as text.
"""

import html
import importlib.resources
import json
from pathlib import Path
from typing import Any

from rafters.errors import MeasureError
from rafters.roofline.chart.model import Chart, columns

_STEPS = 200


def save(chart: Chart, path: str | Path) -> None:
    """Write the page to `path`. Raises MeasureError without plotly or if it cannot be written."""
    text = render(chart)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise MeasureError(f"the report cannot be written to {path}: {error.strerror or error}") from error


def render(chart: Chart) -> str:
    """The page as text."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MeasureError("an HTML report needs plotly: pip install 'rafters[report]'") from error
    folder = importlib.resources.files("rafters.roofline.chart")
    template = folder.joinpath("page.html").read_text(encoding="utf-8")
    # In this order: what is filled in later must not be looked for in what was filled in before.
    for mark, text in (
        ("{{title}}", html.escape(chart.title)),
        ("{{style}}", folder.joinpath("page.css").read_text(encoding="utf-8")),
        ("{{script}}", folder.joinpath("page.js").read_text(encoding="utf-8")),
        ("{{data}}", _as_script_data(_data(chart))),
        ("{{plotly}}", get_plotlyjs()),
    ):
        before, _, after = template.partition(mark)
        template = before + text + after
    return template


def _as_script_data(value: Any) -> str:
    """JSON that cannot close the script element it stands in."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(chart: Chart) -> dict[str, Any]:
    """What the page draws, with hover text and table cells ready: the script places and filters, it computes nothing."""
    sizes = [p.bytes for p in chart.points if p.bytes > 0] or [1, 1 << 30]
    low, high = min(sizes) / 3, max(sizes) * 3
    at = [low * (high / low) ** (i / _STEPS) for i in range(_STEPS + 1)]
    return {
        "title": chart.title,
        "roofs": [{"name": r.name, "value": r.value, "slope": r.is_slope, "solid": r.solid} for r in chart.roofs],
        "ridges": [{"name": r.name, "x": r.intensity, "y": r.flops} for r in chart.ridges],
        "arrows": chart.arrows,
        "attainable": {"x": at, "y": [chart.attainable_share(v) for v in at]} if chart.ceilings else None,
        "points": [_point(p) for p in chart.points],
    }


def _point(p: Any) -> dict[str, Any]:
    m = p.measurement
    cells = columns(p)
    remarks = [*m.reasons, *m.notes]
    return {
        "number": p.number,
        "label": p.label,
        "family": p.family,
        "dtype": m.dtype,
        "intensity": p.intensity,
        "bytes": p.bytes,
        "flops": p.flops,
        "attainable": p.attainable_flops,
        "share": p.share,
        "microseconds": m.seconds.median * 1e6 if m.seconds else None,
        "cells": cells,
        "hover": [f"{k}: {v}" for k, v in cells.items() if v and k != "#"] + remarks,
        "remarks": remarks,
    }
