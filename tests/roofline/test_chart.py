"""What the drawings say must be what the results say."""

import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree

import made
import pytest

from rafters import device as devices
from rafters.cost import Cost
from rafters.errors import MeasureError
from rafters.roofline import Results, read, write
from rafters.roofline.chart import model, page, save, terminal

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"


@pytest.fixture
def results() -> Results:
    return Results(
        [
            made.measurement("add", provider="torch"),
            made.measurement("add", median=0.9e-3, provider="ours", ratio_to="torch", ratio=0.9, ratio_low=0.89, ratio_high=0.91),
            made.measurement("copy", cost=Cost(10**9, 10**9, 0), family="moves"),
            made.measurement("broken", median=None, verdict="WRONG", reasons=("after timing",), family="moves"),
        ],
        [made.ceilings()],
        {"e1": dataclasses.replace(devices.environment("cpu"), device=made.GPU)},
    )


def test_points_roofs_ridges_and_arrows(results):
    chart = model.chart(results)
    assert [(r.name, r.is_slope, r.solid) for r in chart.roofs] == [
        ("write", True, True),
        ("copy", True, True),
        ("read", True, True),
        ("theoretical", True, False),
        ("bf16 matmul, sustained", False, True),
    ]
    assert chart.roofs[3].value == 2 * 3e9 * 4096 / 8
    assert chart.ridges[0].intensity == pytest.approx(7e14 / 2.8e12, rel=1e-3)
    assert chart.arrows == ((1, 2),)
    first, _, moves, broken = chart.points
    assert (first.intensity, first.flops) == (0.5, pytest.approx(1e12))
    assert first.share == pytest.approx((made.T0 + 2e9 / 2.5e12) / 1e-3, rel=1e-4)
    assert (moves.flops, broken.flops, broken.share) == (None, None, None)
    assert chart.families == ["moves", "pointwise"]


def test_arrows_lead_from_before_to_after():
    runs = [
        made.measurement("add"),
        made.measurement("mul"),
        made.measurement("add", median=2e-3),
        made.measurement("add", dtype="fp32"),
    ]
    assert model.chart(Results(runs)).arrows == ((1, 3),)


def test_latency_curve(results):
    chart = model.chart(results)
    assert chart.attainable_share(5e6) == pytest.approx(0.5, rel=1e-3)  # V / B = t0
    assert model.chart(Results([made.measurement()])).attainable_share(1e6) is None


def test_title_names_where_it_comes_from(results):
    title = results.label()
    assert title.startswith("Made-up GPU; driver 1.2; 700 W; torch ")
    assert title.endswith("2026-01-02")


def test_the_cache_plateau_is_found():
    bandwidth, edge = made.ceilings().cache_plateau
    assert bandwidth == pytest.approx(6e12)
    assert edge == 2**24


def test_terminal_fits_and_places_points(results):
    text = terminal.draw(model.chart(results))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    first_view = lines[: next(i for i, line in enumerate(lines) if line.startswith("share of"))]
    assert len(first_view) <= 24
    assert "bf16 matmul" in text
    assert "ridges (FLOP/byte): bf16 matmul 250" in text
    assert sum("2" in line.partition("│")[2] for line in first_view) >= 1
    table = [line.split() for line in lines if line.lstrip().startswith(("1 ", "2 ", "3 ", "4 "))]
    assert [row[0] for row in table] == ["1", "2", "3", "4"]
    assert table[0][-3:] == ["2,000", "80.2%", "VALID"]
    assert table[3][-1] == "WRONG"


def test_terminal_without_anything_measured_by(results):
    assert "add" in terminal.draw(model.chart(Results([made.measurement(attainable_s=None, ceiling=None)])))


def test_grid_puts_values_where_they_belong():
    grid = terminal.Grid(11, 11, (1.0, 10.0**10), (1.0, 10.0**10))
    grid.put(1.0, 1.0, "a")
    grid.put(1e10, 1e10, "b")
    grid.put(1e5, 1e5, "c")
    grid.put(1e11, 1.0, "d")
    assert (grid.cells[10][0], grid.cells[0][10], grid.cells[5][5]) == ("a", "b", "c")
    assert not any("d" in row for row in grid.cells)


def test_results_survive_the_file(results, tmp_path):
    path = tmp_path / "r.jsonl"
    write(path, results.measurements, environment=results.environments["e1"], ceilings=results.roof)
    again = read(path)
    assert again.measurements == results.measurements
    assert again.roof.points == results.roof.points
    assert again.label() == results.label()
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(MeasureError, match="no measurement and no ceilings"):
        read(tmp_path / "empty.jsonl")


def test_svg_holds_the_table_as_text(results, tmp_path):
    pytest.importorskip("matplotlib")
    chart = model.chart(results)
    save(chart, tmp_path / "a.svg")
    save(chart, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    words = {t.text for t in ElementTree.parse(tmp_path / "a.svg").iter("{http://www.w3.org/2000/svg}text")}
    for point in chart.points:
        assert model.columns(point)["µs"] in words
        assert point.label in words
    save(chart, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_page_holds_the_data_and_runs_none_of_it(results):
    plotly = pytest.importorskip("plotly")
    results.measurements.append(made.measurement(HOSTILE, family=HOSTILE, provider=HOSTILE))
    text = page.render(model.chart(results))
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL).group(1)
    points = json.loads(data)["points"]
    assert [p["number"] for p in points] == [1, 2, 3, 4, 5]
    assert points[4]["family"] == HOSTILE
    assert points[0]["microseconds"] == pytest.approx(1000.0)
    assert HOSTILE not in text
    own = text.replace(plotly.offline.get_plotlyjs(), "")
    assert own.count("<script") == own.count("</script>") == 3
    assert "http" not in own.replace("http-equiv", "")


@pytest.mark.parametrize("name", ["r.pdf", "r"])
def test_other_suffixes_are_refused(results, tmp_path, name):
    with pytest.raises(MeasureError, match=r"wanted .html, .svg or .png"):
        save(model.chart(results), tmp_path / name)


@pytest.mark.parametrize("name", ["no/r.html", "no/r.svg"])
def test_unwritable_places_are_clear(results, tmp_path, name):
    pytest.importorskip("matplotlib")
    pytest.importorskip("plotly")
    with pytest.raises(MeasureError, match="cannot be written"):
        save(model.chart(results), tmp_path / name)
