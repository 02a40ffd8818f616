"""`rafters sweep`: what it compiles, what it says, and the recorded rows."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rafters import device as devices
from rafters import ops
from rafters.cli import _sweep, _sweep_plot
from rafters.engine.study import blocks as study
from rafters.engine.study.blocks import MASKED, PROVABLE, SPLIT, Choice
from rafters.engine.target import Target
from rafters.lang import has_triton
from rafters.roofline import Ceilings

SM_90 = Target("cuda", 90, 32)
needs_triton = pytest.mark.skipif(not has_triton(), reason="needs triton to compile")


def row(mode: str, us: float, block: int = 1024, warps: int = 4, aligned: bool = True) -> _sweep.SweepRow:
    return _sweep.SweepRow("rafters::add", "bf16", "sm_90", mode, aligned, block, warps, n=97, seconds=us * 1e-6, gbps=4e5 / us)


@needs_triton
def test_a_mask_that_cannot_be_proved_makes_narrow_accesses_and_the_split_does_not() -> None:
    found = {mode: study.inspect(ops.add.spec, torch.bfloat16, Choice(mode, 1024, 4), SM_90).hot for mode in study.MODES}
    assert set(found[MASKED].loads.values()) == {16}
    assert set(found[PROVABLE].loads.values()) == {128}
    assert found[PROVABLE].predicated > 0
    assert set(found[SPLIT].loads.values()) == set(found[SPLIT].stores.values()) == {128}
    assert found[SPLIT].predicated == 0


@needs_triton
def test_pointers_off_by_one_element_make_narrow_loads() -> None:
    found = study.inspect(ops.add.spec, torch.bfloat16, Choice(SPLIT, 1024, 4, aligned=False), SM_90).hot
    assert set(found.loads.values()) == {16}


@needs_triton
@pytest.mark.parametrize(("dtype", "block"), [(torch.bfloat16, 1024), (torch.float32, 512)])
def test_the_closed_form_is_sixteen_bytes_a_thread(dtype: torch.dtype, block: int) -> None:
    assert study.closed_form(ops.add.spec, dtype, SM_90) == (block, 4)


def test_every_choice_is_there_once_and_holds_the_closed_form() -> None:
    found = list(study.choices())
    assert len(set(found)) == len(found)
    assert {Choice(mode, 1024, 4, aligned) for mode in study.MODES for aligned in (True, False)} <= set(found)


@needs_triton
def test_the_kernel_that_is_timed_is_the_one_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of `runner` but the launch itself."""
    launched: list[tuple[object, ...]] = []
    monkeypatch.setattr(study, "common_device", lambda *_: torch.device("cuda", 0))
    monkeypatch.setattr(study, "device_target", lambda _: SM_90)
    monkeypatch.setattr(
        study, "kernel_runner", lambda *arguments: launched.append(arguments) or SimpleNamespace(run=lambda: torch.add)
    )
    x = torch.randn(4097).bfloat16()
    _, read_off = study.runner(ops.add.spec, {"x": x, "y": x.clone()}, Choice(MASKED, 2048, 8))
    (_, _, _, _, (stage,), (found,), *_), *rest = launched
    assert not rest
    laid = stage.layout
    assert (laid.constants["BLOCK"], laid.warps, laid.grid) == (2048, 8, 3)
    assert not laid.form.split
    assert found.compiled.metadata.num_warps == 8
    assert set(read_off.hot.loads.values()) == {16}


def test_findings_name_the_sweet_spot_and_what_the_mask_costs() -> None:
    rows = (row(MASKED, 280), row(PROVABLE, 100), row(SPLIT, 100), row(SPLIT, 96, 512, 2), row(SPLIT, 300, aligned=False))
    text = "\n".join(_sweep.Sweep(rows, (1024, 4)).findings())
    assert "sweet spot: 512 elements on 2 warps" in text
    assert "96.0% of that speed" in text
    assert "a mask that cannot be proved costs 2.80x" in text
    assert "the split removes it: 1.00x" in text
    assert "off by one element cost 3.00x" in text


def test_the_sweet_spot_is_no_row_that_failed() -> None:
    rows = (row(SPLIT, 100), replace(row(SPLIT, 1, 512), seconds=None, verdict="WRONG: 3 values differ"))
    best = _sweep.Sweep(rows, (1024, 4)).sweet_spot
    assert best is not None
    assert best.block == 1024


def test_bars_are_as_long_as_the_bandwidth() -> None:
    lines = _sweep_plot.bars(_sweep.Sweep((row(SPLIT, 100), row(SPLIT, 200, 512)), (1024, 4)))
    assert [line.count("█") for line in lines if "×" in line] == [24, 48]


def test_rows_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the verb writes is what it shows as recorded elsewhere."""
    from rafters.cli import sweep as verb

    written = _sweep.Sweep((row(MASKED, 280), row(SPLIT, 100)), (1024, 4), devices.environment("cpu"))
    (tmp_path / "recorded").mkdir()
    verb._write(written, tmp_path / "recorded" / "sweep.jsonl")
    monkeypatch.setattr(_sweep.resources, "files", lambda _package: tmp_path)
    found = _sweep.recorded("rafters::add", "bf16")
    assert found is not None
    assert found.recorded
    assert found.rows == written.rows
    assert found.environment == written.environment
    assert _sweep.recorded("rafters::add", "fp32") is None


@needs_triton
def test_without_a_gpu_the_assembly_is_read(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(study, "BLOCKS", (1024,))
    monkeypatch.setattr(study, "WARPS", (4,))
    result = run("sweep", "silu_mul", "--json", "--out", "rows.jsonl")
    assert result.exit_code == 0, result.output
    sweep = json.loads(result.stdout)["sweeps"][0]
    assert len(sweep["rows"]) == 6
    assert any(f.startswith("split: loads of 128 bits") for f in sweep["findings"])
    kinds = [json.loads(line)["type"] for line in Path("rows.jsonl").read_text().splitlines()]
    assert kinds == ["sweep_of", *["sweep"] * 6]


@pytest.mark.gpu
def test_on_a_gpu_the_kernels_are_timed(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "BLOCKS", (1024, 2048))
    monkeypatch.setattr(study, "WARPS", (4,))
    result = run("sweep", "silu_mul", "--size", "1000000", "--json", "--out", "rows.jsonl")
    assert result.exit_code == 0, result.output
    (sweep,) = json.loads(result.stdout)["sweeps"]
    assert len(sweep["rows"]) == 12
    assert all(r["verdict"] == "VALID" and r["seconds"] > 0 and r["load_bits"] for r in sweep["rows"])
    assert sweep["sweet_spot"]["mode"] == SPLIT
    assert {r["n"] for r in sweep["rows"]} == {1000000, 1000001}


@pytest.mark.parametrize(
    ("arguments", "says"), [(("ad",), "did you mean add"), (("add", "--dtype", "bf17"), "unknown dtype 'bf17'")]
)
def test_refusals(run, arguments: tuple[str, ...], says: str) -> None:
    result = run("sweep", *arguments)
    assert result.exit_code == 1
    assert says in result.stderr


def test_timing_keeps_what_is_wrong_out_of_the_figures(monkeypatch: pytest.MonkeyPatch, roof: Ceilings) -> None:
    """The whole of the timed study, with the op itself in the kernels' place; one of them is broken."""
    cpu = torch.device("cpu", 0)
    facts = study.Facts("sm_90", study.facts.__globals__["Arm"]({"x": 128}, {"out": 128}, 0, 3), 16, 0, 0, False, None)
    seen: set[tuple[int, bool]] = set()

    def runner(spec, arguments, choice):
        x = arguments["x"]
        seen.add((x.numel(), x.data_ptr() % 16 == 0))
        return (torch.sub if choice == Choice(SPLIT, 1024, 4) else torch.add), facts

    monkeypatch.setattr(study, "runner", runner)
    monkeypatch.setattr(study, "BLOCKS", (1024,))
    monkeypatch.setattr(study, "WARPS", (4,))
    monkeypatch.setattr(study, "closed_form", lambda *_: (1024, 4))
    monkeypatch.setattr(_sweep, "device_target", lambda _: SM_90)
    monkeypatch.setattr(_sweep, "_RULE", {"min_samples": 2, "min_time_s": 0.0, "time_limit_s": 0.02, "warm_up_s": 0.0})
    found = _sweep.time_all(ops.add, torch.float32, 4096, cpu, roof, lambda _: None)
    assert seen == {(4097, True), (4097, False), (4096, True), (4096, False)}
    assert {r.mode: r.seconds is None for r in found.rows if r.aligned} == {MASKED: False, PROVABLE: False, SPLIT: True}
    assert next(r for r in found.rows if r.seconds is None).verdict.startswith("WRONG")
    assert all(r.n == (4096 if r.mode == PROVABLE else 4097) for r in found.rows)
