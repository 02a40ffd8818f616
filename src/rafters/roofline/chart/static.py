"""The chart as a picture: SVG or PNG by matplotlib, which is imported when there is something to draw."""

from pathlib import Path
from typing import Any

from rafters.errors import MeasureError
from rafters.roofline.chart.model import Chart, columns, quantity

_LIMITS = 10.0


def save(chart: Chart, path: str | Path) -> None:
    """Write both views and the table to `path`, SVG or PNG by its suffix. Raises MeasureError without matplotlib or a place."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MeasureError("an SVG or PNG needs matplotlib: pip install 'rafters[report]'") from error
    # Text stays text in the SVG, and the same chart gives the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "rafters", "text.parse_math": False}):
        rows = max(len(chart.points), 1)
        figure = Figure(figsize=(13, 5.5 + 0.24 * rows), layout="constrained")
        grid = figure.add_gridspec(2, 2, height_ratios=[5.0, 0.24 * rows + 0.4])
        colours = {f: f"C{i % 10}" for i, f in enumerate(chart.families)}
        _roofline(figure.add_subplot(grid[0, 0]), chart, colours)
        _shares(figure.add_subplot(grid[0, 1]), chart, colours)
        _table(figure.add_subplot(grid[1, :]), chart)
        figure.suptitle(chart.title, fontsize=10)
        try:
            figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)
        except (OSError, ValueError) as error:
            raise MeasureError(f"the chart cannot be written to {path}: {error}") from error


def _roofline(axes: Any, chart: Chart, colours: dict[str, str]) -> None:
    """FLOP/s against FLOP/byte; hollow marks are what each call could attain at its size."""
    placed = [p for p in chart.points if p.flops]
    slopes = [r for r in chart.roofs if r.is_slope]
    flats = [r for r in chart.roofs if not r.is_slope]
    solid = [r.value for r in slopes if r.solid]
    inner = [p.intensity for p in placed] + [r.intensity for r in chart.ridges] + [0.1, 10.0]
    x = (min(inner) / _LIMITS, max(inner) * _LIMITS)
    top = max((f.value for f in flats), default=float("inf"))
    steps = [x[0] * (x[1] / x[0]) ** (i / 200) for i in range(201)]
    if solid:
        low, high = ([min(v * i, top) for i in steps] for v in (min(solid), max(solid)))
        axes.fill_between(steps, low, high, color="0.85", label="between the mixes")
    for roof in slopes:
        style = "-" if roof.solid else "--"
        label = f"{roof.name} {roof.value / 1e9:,.0f} GB/s"
        axes.plot(steps, [min(roof.value * i, top) for i in steps], style, color="0.3", linewidth=0.8, label=label)
    for roof in flats:
        axes.axhline(roof.value, color="0.3", linewidth=0.8)
        axes.annotate(f"  {roof.name} {quantity(roof.value)}FLOP/s", (x[0], roof.value), fontsize=7, ha="left", va="bottom")
    for ridge in chart.ridges:
        axes.plot([ridge.intensity], [ridge.flops], "k|", markersize=8)
        axes.annotate(
            f"{ridge.intensity:.3g}",
            (ridge.intensity, ridge.flops),
            fontsize=6,
            va="top",
            xytext=(4, -2),
            textcoords="offset points",
        )
    for p in placed:
        axes.plot([p.intensity], [p.flops], "o", color=colours[p.family], markersize=5)
        axes.annotate(str(p.number), (p.intensity, p.flops), fontsize=7, xytext=(4, -3), textcoords="offset points")
        if p.attainable_flops:
            axes.plot([p.intensity], [p.attainable_flops], "o", color=colours[p.family], markersize=5, fillstyle="none")
    by_number = {p.number: p for p in placed}
    for start, end in chart.arrows:
        if start in by_number and end in by_number:
            a, b = by_number[start], by_number[end]
            axes.annotate("", (b.intensity, b.flops), (a.intensity, a.flops), arrowprops={"arrowstyle": "->", "color": "0.4"})
    axes.set(xscale="log", yscale="log", xlim=x, xlabel="FLOP per byte", ylabel="FLOP/s", title="Roofline")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda v, _: quantity(v))
    if slopes:
        axes.legend(fontsize=7, loc="lower right")


def _shares(axes: Any, chart: Chart, colours: dict[str, str]) -> None:
    """Share of attainable against bytes moved, and what a copy can attain of the ceiling."""
    sized = [p for p in chart.points if p.share is not None]
    if not sized:
        axes.set_axis_off()
        return
    x = (min(p.bytes for p in sized) / 3, max(p.bytes for p in sized) * 3)
    steps = [x[0] * (x[1] / x[0]) ** (i / 200) for i in range(201)]
    axes.axhline(1.0, color="0.3", linewidth=0.8)
    if chart.ceilings:
        curve = [chart.attainable_share(v) for v in steps]
        axes.plot(steps, curve, "-", color="0.6", linewidth=0.8, label="ceiling share a copy attains: (V/B) / (t0 + V/B)")
    for family in chart.families:
        mine = [p for p in sized if p.family == family]
        axes.plot([p.bytes for p in mine], [p.share for p in mine], "o", color=colours[family], markersize=5, label=family)
        for p in mine:
            axes.annotate(str(p.number), (p.bytes, p.share), fontsize=7, xytext=(4, -3), textcoords="offset points")
    axes.set(
        xscale="log", xlim=x, ylim=(0, None), xlabel="bytes moved", ylabel="share of attainable", title="Share of attainable"
    )
    axes.xaxis.set_major_formatter(lambda v, _: quantity(v))
    axes.yaxis.set_major_formatter(lambda v, _: f"{v:.0%}")
    axes.legend(fontsize=7, loc="best")


def _table(axes: Any, chart: Chart) -> None:
    axes.set_axis_off()
    rows = [columns(p) for p in chart.points]
    if not rows:
        return
    names = [n for n in rows[0] if any(r[n] for r in rows)]
    widths = [max(len(n), *(len(r[n]) for r in rows)) for n in names]
    cells = axes.table(
        [[r[n] for n in names] for r in rows], colLabels=names, colWidths=[w / sum(widths) for w in widths], loc="upper center"
    )
    cells.auto_set_font_size(False)
    cells.set_fontsize(7)
    for (_, column), cell in cells.get_celld().items():
        cell.set_linewidth(0.2)
        cell.set_text_props(ha="left" if names[column] == "call" else "right")
