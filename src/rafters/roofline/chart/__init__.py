"""The roofline drawn: in a terminal, as a picture, as a page. All three from the same `Chart`."""

from pathlib import Path

from rafters.errors import MeasureError
from rafters.roofline.chart import page, static
from rafters.roofline.chart.model import Chart


def save(chart: Chart, path: str | Path) -> None:
    """Write a chart as its file name says: .html, .svg or .png. Raises MeasureError for another suffix or a place that fails."""
    match Path(path).suffix:
        case ".html":
            page.save(chart, path)
        case ".svg" | ".png":
            static.save(chart, path)
        case other:
            raise MeasureError(f"{path}: cannot draw a {other or 'file without suffix'}; wanted .html, .svg or .png")
