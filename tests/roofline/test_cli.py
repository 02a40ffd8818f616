"""The verbs: what they print, what they write, and the status they end with."""

import json

import made
import pytest
import typer.testing

from rafters import cli
from rafters.roofline import ceiling_cache, write

FUNCTIONS = """
import torch

def swish(x, gate):
    return x * gate * torch.sigmoid(gate)

def wrong(x, gate):
    return x - gate

def make():
    return torch.randn(8, 8), torch.randn(8, 8)

def boom(x):
    raise ValueError("boom")

def keep(x):
    return x

a_number = 3
"""


@pytest.fixture
def rafters(tmp_path, monkeypatch):
    """Runs a command line on a CPU whose ceilings are made up; returns the exit status and what was printed."""
    monkeypatch.setattr(ceiling_cache, "cached", lambda device=None, *, quick=True: made.ceilings())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    runner = typer.testing.CliRunner()

    def run(*words: str) -> tuple[int, str]:
        done = runner.invoke(cli.app, list(words))
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output

    return run


QUICK = ("--device", "cpu", "--time-limit", "0.2")


def test_roofline_prints_and_draws(rafters, tmp_path):
    status, text = rafters("roofline", "--device", "cpu")
    assert status == 0
    assert "Made-up GPU: 100 SMs" in text
    assert "theoretical 3,072 GB/s" in text
    assert "launch floor t0 2.00 µs" in text
    assert "cache: a copy of up to 16.0 MiB runs at 6,000 GB/s" in text
    assert "/ copy 2.5TB/s" in text
    status, text = rafters("roofline", "--device", "cpu", "--json")
    record = json.loads(text)
    assert {c["mix"] for c in record["ceilings"]} == {"read", "write", "copy"}
    assert record["launch_floor_us"] == pytest.approx(2.0)
    status, _ = rafters("roofline", "--device", "cpu", "-o", "roof.jsonl")
    assert status == 0
    assert rafters("report", "roof.jsonl")[0] == 0


def test_measure_writes_results_that_report_draws(rafters):
    cases = ("--shapes", "64x64,32x64+64", "--reference", "mine.py:swish")
    status, text = rafters("measure", "mine.py:swish", *cases, "-o", "r.jsonl", *QUICK)
    assert status == 0, text
    assert "swish 64x64 fp32" in text
    assert "swish 32x64 fp32" in text
    status, text = rafters("report", "r.jsonl", "--json")
    assert [p["call"] for p in json.loads(text)["points"]] == ["swish 64x64 fp32", "swish 32x64 fp32"]


def test_measure_by_declared_bytes_and_own_arguments(rafters):
    cost = ("--bytes", "x.nbytes + gate.nbytes, x.nbytes", "--flops", "3 * 64")
    status, text = rafters("measure", "mine.py:swish", "--args", "mine.py:make", *cost, "--json", *QUICK)
    assert status == 0
    assert json.loads(text)["measurements"][0]["cost"] == {"read_bytes": 512, "written_bytes": 256, "flops": 192}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(("mine.py:wrong", "--shapes", "8", "--reference", "mine.py:swish"), "before timing", id="wrong result"),
        pytest.param(("mine.py:swish", "--shapes", "8", "--bytes", "1000000"), "the byte count is wrong", id="wrong bytes"),
        pytest.param(("mine.py:nothing", "--shapes", "8"), "mine.py has no 'nothing'", id="no function"),
        pytest.param(("mine.py:a_number", "--shapes", "8"), "cannot be called", id="no callable"),
        pytest.param(("other.py:swish", "--shapes", "8"), "no file other.py", id="no file"),
        pytest.param(("no_such_module:swish", "--shapes", "8"), "no module 'no_such_module'", id="no module"),
        pytest.param(("swish", "--shapes", "8"), "names no function", id="no colon"),
        pytest.param(("mine.py:swish",), "say what to call it with", id="no arguments"),
        pytest.param(("mine.py:swish", "--shapes", "8y"), "is no shape", id="no shape"),
        pytest.param(("mine.py:swish", "--shapes", "8", "--dtype", "int64"), "only floating-point", id="integers"),
        pytest.param(("mine.py:swish", "--shapes", "8", "--dtype", "fp7"), "--dtype: ", id="no dtype"),
        pytest.param(("mine.py:boom", "--shapes", "8"), "mine.py:boom failed: ValueError: boom (mine.py, line 14)", id="raises"),
        pytest.param(("mine.py:swish", "--args", "mine.py:boom"), "mine.py:boom failed: TypeError", id="arguments raise"),
        pytest.param(
            ("mine.py:swish", "--shapes", "8", "--reference", "mine.py:boom"), "mine.py:boom failed", id="reference raises"
        ),
        pytest.param(("mine.py:swish", "--shapes", "8+8+8"), "takes 2 positional arguments but 3", id="too many shapes"),
        pytest.param(("mine.py:swish", "--shapes", "99999999999"), "--shapes failed: RuntimeError", id="too large"),
        pytest.param(("torch:add", "--shapes", "8"), "torch:add failed: TypeError", id="no signature"),
        pytest.param(("mine.py:swish", "--shapes", "8", "--bytes", "1, 2, 3"), "wanted one amount or two", id="three amounts"),
        pytest.param(("mine.py:swish", "--shapes", "8", "--bytes", "0"), "the byte count is wrong", id="no bytes"),
        pytest.param(("mine.py:swish", "--shapes", "8", "--flops", "q"), "'q' cannot be computed from x, gate", id="no flops"),
        pytest.param(("mine.py:swish", "--shapes", "8", "--bytes", "y.nbytes"), "cannot be computed from x, gate", id="no name"),
    ],
)
def test_measure_fails_with_a_sentence(rafters, words, sentence):
    status, text = rafters("measure", *words, *QUICK)
    assert status == 1
    assert sentence in text


def test_measure_of_what_moves_nothing_and_of_what_has_no_signature(rafters):
    for words in (("mine.py:keep", "--shapes", "8"), ("mine.py:swish", "--shapes", "4x0"), ("torch:add", "--shapes", "8+8")):
        status, text = rafters("measure", *words, *QUICK)
        assert status == 0, text


def test_flops_alone_leave_the_bytes_to_counting(rafters):
    status, text = rafters("measure", "mine.py:swish", "--shapes", "8", "--flops", "7 * x.numel()", "--json", *QUICK)
    assert status == 0, text
    assert json.loads(text)["measurements"][0]["cost"] == {"read_bytes": 64, "written_bytes": 32, "flops": 56}


@pytest.mark.parametrize("number", ["nan", "inf"])
def test_no_option_takes_what_is_no_number(rafters, number):
    assert rafters("measure", "mine.py:swish", "--shapes", "8", "--time-limit", number)[0] == 2
    assert rafters("compare", "a.jsonl", "b.jsonl", "--threshold", number)[0] == 2


def test_compare_ends_with_1_only_where_something_is_worse(rafters, tmp_path):
    write(tmp_path / "a.jsonl", [made.measurement("same"), made.measurement("changed")])
    write(tmp_path / "b.jsonl", [made.measurement("same"), made.measurement("changed", median=1.2e-3)])
    status, text = rafters("compare", "a.jsonl", "b.jsonl")
    assert status == 1
    assert "2 rows: 1 SLOWER, 1 SAME" in text
    status, text = rafters("compare", "b.jsonl", "a.jsonl", "--json")
    assert status == 0
    assert [r["verdict"] for r in json.loads(text)["rows"]] == ["SAME", "FASTER"]
    assert rafters("compare", "a.jsonl", "b.jsonl", "--threshold", "0.3")[0] == 0
    assert rafters("compare", "a.jsonl", "missing.jsonl")[0] == 1


def test_an_unwritable_place_is_found_before_measuring(rafters, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("rafters.cli.measure.measure", lambda *a, **k: pytest.fail("measured first"))
    status, text = rafters("measure", "mine.py:swish", "--shapes", "8", "-o", "file/r.jsonl", *QUICK)
    assert status == 1
    assert "cannot be written to file/r.jsonl" in text
    assert rafters("roofline", "--device", "cpu", "-o", "file/r.jsonl")[0] == 1
    assert rafters("roofline", "--device", "cpu", "-o", "file/r.svg")[0] == 1


@pytest.mark.parametrize("verb", [("roofline",), ("measure", "mine.py:swish", "--shapes", "8")])
def test_an_unknown_device_is_a_sentence(rafters, verb):
    status, text = rafters(*verb, "--device", "cuda:99")
    assert status == 1
    assert "device 'cuda:99': this machine has" in text


def test_a_recorded_run_is_replayed_and_labelled(rafters, tmp_path):
    status, text = rafters("report", "--recorded", "h200")
    assert status == 0
    assert "recorded on NVIDIA H200" in text
    assert "torch matmul 8192x8192 bf16" in text
    assert rafters("report", "--recorded", "h200", "-o", "h200.html")[0] == 0
    assert "recorded on NVIDIA H200" in (tmp_path / "h200.html").read_text()
    for name in ("h100", "../sweep-add-h200", ""):
        status, text = rafters("report", *(("--recorded", name) if name else ()))
        assert status == 1
        assert ("there are: h200" if name else "say what to draw") in text


def test_report_fails_with_a_sentence(rafters, tmp_path):
    write(tmp_path / "a.jsonl", [made.measurement()])
    assert rafters("report", "a.jsonl", "-o", "r.pdf")[0] == 1
    (tmp_path / "damaged.jsonl").write_text('{"type": "measurement"')
    status, text = rafters("report", "damaged.jsonl")
    assert status == 1
    assert "line 1: not JSON" in text
