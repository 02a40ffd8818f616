"""`rafters bench --baseline`: every row judged against an earlier run."""

import json
from pathlib import Path

import pytest

from rafters.cli import bench as verb

ONE_ROW = ("bench", "add", "--shapes", "1025", "--dtype", "fp32", "--device", "cpu")


def _baseline(run, factor: float) -> None:
    """base.jsonl: a run of this machine, its times scaled, so that a new run is 1 / factor as slow."""
    assert run(*ONE_ROW, "--out", "first.jsonl").exit_code == 0
    records = [json.loads(line) for line in Path("first.jsonl").read_text().splitlines()]
    for m in (r for r in records if r["type"] == "measurement"):
        m["seconds"] = {name: value * factor for name, value in m["seconds"].items()}
    Path("base.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


@pytest.mark.parametrize(("factor", "verdict", "status"), [(1e3, "FASTER", 0), (1e-3, "SLOWER", 1)])
def test_every_row_is_judged_against_a_baseline(run, factor: float, verdict: str, status: int) -> None:
    _baseline(run, factor)
    result = run(*ONE_ROW, "--baseline", "base.jsonl")
    assert result.exit_code == status, result.output
    assert f"2 rows: 2 {verdict}" in result.stdout
    assert "before µs" in result.stdout
    result = run(*ONE_ROW, "--baseline", "base.jsonl", "--json")
    assert result.exit_code == status
    judged = json.loads(result.stdout)["baseline"]
    assert [r["verdict"] for r in judged["rows"]] == [verdict] * 2
    assert (judged["before"], judged["not_judged"], judged["threshold"]) == ("base.jsonl", [], 0.02)


def test_the_threshold_decides_what_is_slower(run) -> None:
    _baseline(run, 0.5)
    assert run(*ONE_ROW, "--baseline", "base.jsonl", "--threshold", "1e9").exit_code == 0


def test_a_row_that_fails_now_and_one_that_is_left_out_are_said(run) -> None:
    assert run("bench", "add", "--shapes", "64,128", "--dtype", "fp32", "--device", "cpu", "--out", "base.jsonl").exit_code == 0
    text = Path("base.jsonl").read_text().replace('"shape": "128"', '"shape": "3x4+5"')
    Path("base.jsonl").write_text(text)
    result = run("bench", "add", "--shapes", "3x4+5", "--dtype", "fp32", "--device", "cpu", "--baseline", "base.jsonl")
    assert result.exit_code == 1
    assert "2 rows: 2 FAILED" in result.stdout
    assert "in base.jsonl alone, so not judged: rafters::add (rafters) 64 fp32, rafters::add (torch) 64 fp32" in result.stdout


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "results cannot be read from base.jsonl"),
        ("", "no measurement and no ceilings"),
        ("{", "line 1: not JSON"),
        ('{"type": "measurement", "name": "x"}', "not a measurement"),
        ("ceilings", "--baseline base.jsonl: no measurement in it"),
        ("elsewhere", "different devices"),
    ],
)
def test_a_baseline_that_is_none_is_refused_before_anything_is_measured(run, monkeypatch, roof, content, says: str) -> None:
    if content == "ceilings":
        content = json.dumps(roof.to_json())
    if content == "elsewhere":
        _baseline(run, 1.0)
        content = Path("base.jsonl").read_text().replace('"name": "' + roof.device.name, '"name": "another ' + roof.device.name)
    if content is not None:
        Path("base.jsonl").write_text(content)
    monkeypatch.setattr(verb, "race", lambda *a, **k: pytest.fail("measured first"))
    result = run(*ONE_ROW, "--baseline", "base.jsonl", "--out", "new.jsonl")
    assert result.exit_code == 1
    assert says in result.stderr
    assert not Path("new.jsonl").exists()


def test_a_baseline_of_other_rows_is_an_error_after_the_table(run) -> None:
    assert run("bench", "add", "--shapes", "64", "--dtype", "fp32", "--device", "cpu", "--out", "base.jsonl").exit_code == 0
    result = run(*ONE_ROW, "--baseline", "base.jsonl", "--out", "new.jsonl")
    assert result.exit_code == 1
    assert "base.jsonl and this run have no row in common" in result.stderr
    assert "1025" in result.stdout
    assert Path("new.jsonl").exists()
