"""The page in a real browser: what it shows is what the results say, and nothing from the data runs."""

import html
import json
import os
import re
import shutil
import subprocess

import made
import pytest

from rafters.cost import Cost
from rafters.roofline import Results
from rafters.roofline.chart import model, page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\"><b>bold</b>"

# Runs after the page's own script, and writes what it finds where `--dump-dom` shows it.
PROBE = """
<script>
const found = { errors: window.problems || [] };
for (const id of ["roofline", "shares"]) {
  const plot = document.getElementById(id);
  found[id] = plot.data.filter((t) => t.customdata).flatMap((t) =>
    t.customdata.map((number, i) => ({ number, x: t.x[i], y: t.y[i], hover: t.hovertext[i] })));
  found[id + " marks"] = plot.querySelectorAll(".point").length;
}
const rows = () => [...document.querySelectorAll("#points tbody tr")].map((r) => [...r.cells].map((c) => c.textContent));
found.rows = rows();
const curve = document.getElementById("shares").data.findIndex((t) => t.customdata);
Plotly.Fx.hover("shares", [{ curveNumber: curve, pointNumber: 0 }]);
found.hovered = [...document.querySelectorAll("#shares .hoverlayer text")].map((t) => t.textContent).join(" ");
[...document.querySelectorAll("#points th button")].find((b) => b.textContent.startsWith("µs")).click();
found.sorted = rows().map((r) => r[0]);
const family = document.getElementById("family");
family.value = "moves";
family.dispatchEvent(new Event("change"));
found.filtered = rows().map((r) => r[0]);
family.value = "";
const smallest = document.getElementById("smallest");
smallest.value = "1000000";
smallest.dispatchEvent(new Event("change"));
found.large = rows().map((r) => r[0]);
const before = getComputedStyle(document.body).backgroundColor;
document.getElementById("theme").click();
found.themes = [before, getComputedStyle(document.body).backgroundColor];
found.title = document.title;
found.images = document.images.length;
found.requests = performance.getEntriesByType("resource").length;
const probe = document.createElement("pre");
probe.id = "probe";
probe.textContent = JSON.stringify(found);
document.body.append(probe);
</script>
"""
LISTENER = "<script>window.problems = []; addEventListener('error', (e) => window.problems.push(String(e.message)));</script>"


@pytest.fixture(scope="module")
def chart() -> model.Chart:
    if not os.environ.get("CI"):
        pytest.importorskip("plotly")
    return model.chart(
        Results(
            [
                made.measurement("add", median=2e-3),
                made.measurement("add", median=1e-3, shape="8x8"),
                made.measurement("copy", median=1.5e-3, family="moves", cost=Cost(4 * 10**5, 4 * 10**5, 8 * 10**5)),
                made.measurement("broken", median=None, verdict="WRONG", family="moves"),
                made.measurement(HOSTILE, family=HOSTILE, shape="1", dtype="float32", reasons=(HOSTILE,)),
            ],
            [made.ceilings()],
        )
    )


@pytest.fixture(scope="module")
def found(chart, tmp_path_factory):
    if CHROMIUM is None:
        absent = pytest.fail if os.environ.get("CI") else pytest.skip  # CI installs one: there a skip would hide that it did not
        absent("needs a Chromium: apt-get install chromium")
    folder = tmp_path_factory.mktemp("page")
    text = page.render(chart)
    text = text.replace("<head>", "<head>" + LISTENER, 1)
    text = text[: text.rindex("</body>")] + PROBE + text[text.rindex("</body>") :]
    (folder / "report.html").write_text(text, encoding="utf-8")
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile", "--virtual-time-budget=8000"]
    command = [CHROMIUM, *flags, "--dump-dom", (folder / "report.html").as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    probe = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
    assert probe, dom[-2000:]
    return json.loads(html.unescape(probe.group(1)))


def test_points_are_where_the_results_say(found, chart):
    want = {p.number: p for p in chart.points}
    assert {p["number"] for p in found["roofline"]} == {1, 2, 3, 5}
    assert found["roofline marks"] >= 4
    for drawn in found["roofline"]:
        point = want[drawn["number"]]
        assert drawn["x"] == pytest.approx(point.intensity)
        assert drawn["y"] == pytest.approx(point.flops)
    for drawn in found["shares"]:
        point = want[drawn["number"]]
        assert drawn["x"] == pytest.approx(point.bytes)
        assert drawn["y"] == pytest.approx(point.share)


def test_table_is_the_results(found, chart):
    assert found["rows"] == [list(model.columns(p).values()) for p in chart.points]


def test_hover_shows_the_row(found, chart):
    drawn = found["shares"][0]
    row = model.columns(chart.points[drawn["number"] - 1])
    hovered = html.unescape(found["hovered"])
    for name in ("µs", "GB/s", "of attainable"):
        assert f"{name}: {row[name]}" in hovered


def test_sorting_and_filtering(found):
    assert found["sorted"] == ["4", "2", "5", "3", "1"]  # what was not timed first, then by time (2 and 5 are equal)
    assert found["filtered"] == ["4", "3"]
    assert found["large"] == ["4", "2", "5", "1"]  # all but the copy of less than 1 MB


def test_light_and_dark_differ(found):
    assert len(set(found["themes"])) == 2


def test_nothing_from_the_data_runs_and_nothing_is_fetched(found):
    assert found["errors"] == []
    assert "taken" not in found["title"]
    assert found["images"] == 0
    assert found["requests"] == 0
