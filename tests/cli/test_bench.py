"""`rafters bench`: what it refuses, what it measures, and that a wrong op has no speed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rafters
from rafters import ops
from rafters.cli import _arguments, _correct, _peers, _shapes
from rafters.cli import bench as verb
from rafters.cli._shapes import Case
from rafters.errors import RaftersError
from rafters.roofline import check as checking
from rafters.roofline.results import read

OWN = """
import rafters
from rafters import lang

@rafters.elementwise
def own_swish(x, gate, alpha: float = 1.0):
    return x * gate * lang.sigmoid(alpha * gate)

@rafters.rowwise
def own_norm(x, weight, eps: float = 1e-6):
    return x * lang.rsqrt(lang.row_mean(x * x) + eps) * weight
"""


@pytest.fixture
def own(run) -> Path:
    path = Path("own_ops_of_bench.py")
    path.write_text(OWN)
    return path


def test_an_op_of_the_library(run) -> None:
    result = run("bench", "add", "--shapes", "1025", "--dtype", "fp32", "--json", "--out", "found.jsonl")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [r["provider"] for r in found["rows"]] == ["rafters", "torch"]
    assert all(r["verdict"] == "VALID" and r["seconds"]["median"] > 0 for r in found["rows"])
    assert found["rows"][0]["cost"] == {"read_bytes": 8200, "written_bytes": 4100, "flops": 1025}
    assert found["environment"]["device"]["kind"] == ("cuda" if torch.cuda.is_available() else "cpu")
    # what `rafters report` and `compare` read
    results = read("found.jsonl")
    assert [m.name for m in results.measurements] == ["rafters::add"] * 2
    assert results.roof is not None


@pytest.mark.gpu
def test_on_a_gpu(run) -> None:
    result = run("bench", "add", "silu_mul", "--shapes", "1025,2^20", "--json", "--peers")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert len(rows) == 2 * 2 * 3
    assert all(r["verdict"] == "VALID" and r["host_us"] > 0 and r["timer"] == "graph" for r in rows)
    assert {r["dtype"] for r in rows} == {"bf16"}


def test_the_table_says_where_it_ran_and_where_it_wrote(run) -> None:
    result = run("bench", "silu", "--shapes", "4096", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "No GPU is used" in result.stdout
    file = next(Path().glob("rafters-bench-*.jsonl"))
    assert str(file) in result.stdout
    for word in ("µs", "GB/s", "theoretical", "ceiling", "attainable", "host µs", "eager µs"):
        assert word in result.stdout


def test_a_file_of_ones_own(run, own: Path) -> None:
    result = run("bench", f"{own}:own_swish", f"{own}:own_norm", "--shapes", "16x256", "--dtype", "fp32,bf16", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert {(r["name"], r["dtype"]) for r in rows} == {
        (f"own_ops_of_bench::{op}", dtype) for op in ("own_swish", "own_norm") for dtype in ("fp32", "bf16")
    }
    assert {r["provider"] for r in rows} == {"rafters", "traced"}
    norm = next(r for r in rows if r["name"].endswith("own_norm") and r["dtype"] == "fp32")
    assert norm["cost"]["read_bytes"] == (16 * 256 + 256) * 4  # the weight is a vector


def test_a_wrong_op_has_no_speed_and_fails_the_run(run, own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(ops.add), "_slow", lambda self, arguments, out: torch.sub(*arguments))
    ops.add._plans.clear()
    result = run("bench", "add", "--shapes", "64", "--device", "cpu", "--json")
    assert result.exit_code == 1
    ours = json.loads(result.stdout)["rows"][0]
    assert ours["verdict"] == "WRONG"
    assert ours["seconds"] is None
    assert "values differ" in ours["reasons"][0]


def test_an_op_that_cannot_be_called_is_a_row_and_fails_the_run(run) -> None:
    result = run("bench", "add", "--shapes", "3x4+5", "--json")
    assert result.exit_code == 1
    (row,) = json.loads(result.stdout)["rows"]
    assert row["type"] == "error"
    assert "broadcast" in row["error"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ad",), "no op is called 'ad'; did you mean add"),
        (("nowhere.py",), "there is no file"),
        (("json:loads",), "'loads' there is a function, not an op"),
        (("no_such_module:op",), "module 'no_such_module' cannot be imported"),
        (("add", "--shapes", "3xx4"), "'3xx4' is no shape"),
        (("add", "--shapes", ","), "names no shape"),
        (("add", "--model", "gpt-9"), "--model 'gpt-9' is not known; known: llama3-8b"),
        (("add", "--model", "llama3-8b", "--tokens", "1;2"), "--tokens '1;2'"),
        (("add", "--shapes", "8", "--model", "llama3-8b"), "exclude each other"),
        (("add", "--dtype", "bf17"), "unknown dtype 'bf17'"),
        (("add", "--shapes", "8", "--device", "meta"), "--device meta"),
    ],
)
def test_refusals(run, arguments: tuple[str, ...], says: str) -> None:
    result = run("bench", *arguments)
    assert result.exit_code == 1
    assert says in result.stderr


def test_an_unwritable_place_is_found_before_measuring(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "race", lambda *a, **k: pytest.fail("measured first"))
    Path("file").write_text("")
    result = run("bench", "add", "--shapes", "8", "--device", "cpu", "--out", "file/new.jsonl")
    assert result.exit_code == 1
    assert "cannot be written to file/new.jsonl" in result.stderr


@pytest.mark.parametrize(("file", "namespace"), [("own_name_of_bench", "own_name_of_bench"), ("string", "string_file")])
def test_a_file_keeps_its_name_unless_a_module_has_it(run, monkeypatch: pytest.MonkeyPatch, file: str, namespace: str) -> None:
    monkeypatch.syspath_prepend(str(Path.cwd()) if file != "string" else "")
    Path(f"{file}.py").write_text("import rafters\n\n\n@rafters.elementwise\ndef twice(x):\n    return x + x\n")
    result = run("bench", f"{file}.py", "--shapes", "8", "--json")
    assert json.loads(result.stdout)["rows"][0]["name"] == f"{namespace}::twice"


def test_an_error_in_a_file_names_its_line(run) -> None:
    Path("broken_ops.py").write_text("import rafters\n\nrafters.elementwize\n")
    result = run("bench", "broken_ops.py")
    assert result.exit_code == 1
    assert "broken_ops.py: AttributeError" in result.stderr
    assert "(line 3)" in result.stderr


def test_shapes() -> None:
    assert _shapes.parse("16x4096, 2^10+1024,7") == [Case(((16, 4096),)), Case(((1024,), (1024,))), Case(((7,),))]
    assert [c.label for c in _shapes.of_model("llama3-8b", "1,16", ops.silu_mul)] == [
        "1x4096", "16x4096", "1x14336", "16x14336",
    ]  # fmt: skip


def test_default_sizes_are_a_quarter_of_memory_at_most_and_some_are_odd() -> None:
    found = [c.numel for c in _shapes.default(ops.add, torch.float32, 23 << 30)]
    assert max(found) == 2**27
    assert max(found) * 3 * 4 * 2 <= (23 << 30) // 4
    assert any(n % 2 for n in found)
    assert min(found) == 2**10
    assert max(c.numel for c in _shapes.default(ops.add, torch.bfloat16, 140 << 30)) == 2**28


@pytest.mark.parametrize("name", sorted(ops.table()))
def test_arguments_are_made_for_every_op(name: str) -> None:
    """Generic: a new op needs nothing here."""
    op, cpu = ops.table()[name], torch.device("cpu")
    make = _arguments.maker(op, Case(((3, 129),)), torch.float32, cpu)
    assert checking.run(op, _correct.reference(op), make(), _correct.strict) is None
    same = _arguments.maker(op, Case(((3, 129),)), torch.float32, cpu)
    first, again = make(), (same(), same())[1]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True) if isinstance(a, torch.Tensor))


@pytest.mark.parametrize("name", sorted(_peers.TORCH))
def test_the_peer_does_the_same_maths(name: str) -> None:
    op = ops.table()[name]
    arguments = _arguments.maker(op, Case(((129,),)), torch.float32, torch.device("cpu"))()
    assert _correct.close(_peers.TORCH[name](*arguments), _correct.reference(op)(*arguments)) is None


def test_large_results_on_a_cpu_are_compared_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_correct, "_WHOLE", 1000)
    monkeypatch.setattr(_correct, "_WINDOW", 100)
    x, y = torch.randn(2, 5000).unbind()
    truth = _correct.reference(ops.add)(x, y)
    assert isinstance(truth, _correct.Sampled)
    right = x + y
    assert _correct.strict(right, truth) is None
    for place in (0, 4999):  # both ends are always looked at
        wrong = right.clone()
        wrong[place] += 1
        assert "differ" in str(_correct.strict(wrong, truth))


def test_a_run_that_would_take_too_long_leaves_the_largest_out(monkeypatch: pytest.MonkeyPatch, roof, run) -> None:
    monkeypatch.setattr(verb, "_CPU_BUDGET_S", 0.0)
    monkeypatch.setattr(_shapes, "SIZES", (2**10, 2**11))
    monkeypatch.setattr(verb.devices, "facts", lambda _: type("Facts", (), {"memory_bytes": 2**11 * 6 * 4 * 4})())
    result = verb.bench(["add"], device="cpu", roof=roof)
    assert all(row.left_out for row in result.rows)
    assert not result.ok
    assert "left out, so that the run ends within two minutes" in result.remarks[0]


def test_nothing_ran_is_a_failure(run) -> None:
    with pytest.raises(RaftersError, match="defines no op"):
        verb.bench([_empty_module()], device="cpu")


def _empty_module() -> str:
    Path("empty_ops.py").write_text("import rafters\n")
    return "empty_ops.py"


def test_results_show_in_a_notebook(roof, run) -> None:
    result = verb.bench([ops.add], shapes="64", device="cpu", roof=roof)
    text = result._repr_html_()
    assert "<td>rafters::add</td>" in text
    assert text.count("<tr>") == 2
    assert rafters.add is ops.add


def test_a_figure_above_the_ceiling_is_withheld(roof) -> None:
    result = verb.bench([ops.add], shapes="64", device="cpu", roof=roof)
    (row,) = result.rows
    assert row.ours is not None
    above = replace(row, ours=replace(row.ours, verdict="INVALID", reasons=("120% of the ceiling",)))
    doubted = replace(result, rows=(above,))
    assert not doubted.ok  # nothing is left that counts
    assert doubted.cells(above)[3:5] == ["INVALID", "–"]
    assert any("rafters INVALID: 120% of the ceiling" in line for line in doubted.remarks)
