"""The roofline drawn: in a terminal, as a picture, as a page. All three from the same `Chart`."""

from pathlib import Path

from rafters.errors import MeasureError
from rafters.roofline.chart import page, static
from rafters.roofline.chart.model import Chart

_WRITERS = {".html": page.save, ".svg": static.save, ".png": static.save}


def drawable(path: str | Path) -> None:
    """Raises MeasureError if `save` knows no such file, so that this is known before the measuring."""
    suffix = Path(path).suffix
    if suffix not in _WRITERS:
        raise MeasureError(f"{path}: cannot draw a {suffix or 'file without suffix'}; wanted .html, .svg or .png")


def save(chart: Chart, path: str | Path) -> None:
    """Write a chart as its file name says: .html, .svg or .png. Raises MeasureError for another suffix or a place that fails."""
    drawable(path)
    _WRITERS[Path(path).suffix](chart, path)
