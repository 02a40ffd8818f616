"""What README, docs and examples say is true: their lines run, also where triton is not installed, and what is generated is current."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_TRITON = (
    "import runpy, sys; sys.modules['triton'] = None; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
WITH_TRITON = WITHOUT_TRITON.replace("sys.modules['triton'] = None; ", "")
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}  # where there is no triton there is no GPU build of torch
MACHINES = pytest.mark.parametrize(
    ("program", "machine"), [(WITH_TRITON, {}), (WITHOUT_TRITON, NO_GPU)], ids=["as installed", "without triton"]
)


def blocks(file: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / file).read_text(), flags=re.MULTILINE | re.DOTALL)


def loaded(name: str) -> ModuleType:
    """A script of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lines_of_the_readme_run_without_triton(run_python, tmp_path: Path) -> None:
    (block,) = blocks("README.md")
    (tmp_path / "pasted.py").write_text(block)
    printed = run_python(WITHOUT_TRITON, str(tmp_path / "pasted.py"), **NO_GPU)
    assert re.fullmatch(r"\d+ GB/s, \d+% of what is attainable on this device\n", printed)


def test_the_op_of_the_readme_is_ten_lines() -> None:
    (block,) = blocks("README.md")
    assert len([line for line in block.splitlines() if line.strip()]) <= 11


def test_the_readme_names_two_commands_that_the_makefile_has() -> None:
    named = re.findall(r"^(make \w+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert named == ["make bench", "make test"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {"bench", "test"} <= set(targets)


@MACHINES
@pytest.mark.parametrize("file", ["docs/getting_started.md", "docs/writing_ops.md"])
def test_the_lines_of_the_docs_run(run_python, tmp_path: Path, file: str, program: str, machine: dict[str, str]) -> None:
    (tmp_path / "pasted.py").write_text("\n".join(blocks(file)))
    run_python(program, str(tmp_path / "pasted.py"), **machine)


@pytest.mark.parametrize("file", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(file: str) -> None:
    here = ROOT / file
    targets = [t.split("#")[0] for t in re.findall(r"\]\(([^)]+)\)", here.read_text()) if not t.startswith("http")]
    assert [t for t in targets if t and not (here.parent / t).exists()] == []


@MACHINES
def test_the_first_kernel(run_python, program: str, machine: dict[str, str]) -> None:
    printed = run_python(program, str(ROOT / "examples" / "01_first_kernel.py"), "4096", **machine)
    for way in ("torch.add", "@rafters.kernel", "@rafters.elementwise", "rafters.add"):
        assert len(re.findall(rf"^  {re.escape(way)} +[\d.]+ µs +[\d.]+ GB/s", printed, flags=re.MULTILINE)) == 2


def test_the_generated_parts_are_current() -> None:
    made = loaded("readme_table")
    text = made.README.read_text()
    wanted = made.replaced(made.replaced(text, "figures", made.figures(made.newest())), "ops", made.op_table())
    assert wanted == text, "run `python benchmarks/readme_table.py`"


def measurement(name: str, provider: str, us: float, ratio: float | None = None) -> dict[str, object]:
    return {
        "type": "measurement", "name": name, "provider": provider, "timer": "events", "ratio": ratio, "ceiling": 4.4e12, "sm_mhz": 1980,
        "cost": {"read_bytes": 2**30, "written_bytes": 2**29, "flops": 0}, "seconds": {"median": us * 1e-6},
    }  # fmt: skip


def test_the_figures_are_those_of_the_file(tmp_path: Path) -> None:
    from rafters.device import DeviceFacts, environment

    made = loaded("readme_table")
    gpu = DeviceFacts("cuda", "NVIDIA H200", None, 132, 60 << 20, 140 << 30, 3.2e9, 6016, "9.0", "580", 700.0)
    record = environment("cpu").to_json() | {"device": {k: getattr(gpu, k) for k in DeviceFacts.__slots__}}
    name = f"add {2**28 + 1} bf16"
    rows = [
        record,
        measurement(name, "rafters", 400.0),
        measurement(name, "torch", 404.0, 1.01),
        measurement(name, "triton", 1120.0, 2.8),
        {"type": "host_cost", "name": "host cost of add(x, y)", "us": {"rafters": 8.0, "torch": 7.0}, "ratio": 1.14},
        {"type": "requirement", "name": "transposed", "wanted": ">= 0.80", "got": 0.7, "met": False},
        {"type": "requirement", "name": "dense", "wanted": ">= 0.90", "got": 0.97, "met": True},
    ]
    file = tmp_path / "speed-1.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    text = made.figures(file)
    assert "On one NVIDIA H200, `rafters.add` of 2^28 + 1 bfloat16 values moves 4,027 GB/s: 91.5%" in text
    assert f"| {name} | 400.0 | 4,027 | 83.7% | 91.5% | 1.01× | 2.80× |" in text
    assert "driver 580, 700 W, SM clock 1980-1980 MHz" in text
    assert "8.0 µs, torch 7.0 µs (1.14×)" in text
    assert "- transposed: wanted >= 0.80, got 0.700" in text
    assert "dense" not in text
    assert text.index(name) < text.index("<details>") < text.index("transposed")  # one screen first


def test_the_speed_benchmark_runs_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, roof) -> None:
    """Every part that needs a GPU, on the CPU at small sizes, so that it cannot rot."""
    import torch

    speed = loaded("speed")
    textbook = ModuleType("plain_add")
    textbook.textbook = textbook.masked = torch.add  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "plain_add", textbook)
    monkeypatch.setattr(speed, "SIZES", (2**12, 2**12 + 1))
    monkeypatch.setattr(speed, "FOOTPRINT", 2**18)
    monkeypatch.setattr(speed, "CASE", {"min_samples": 2, "min_time_s": 0.0, "time_limit_s": 0.02, "warm_up_s": 0.0})
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _=None: None)
    monkeypatch.setattr(speed.host_cost, "__defaults__", (5, 5))
    run = speed.Run(tmp_path / "rows.jsonl", torch.device("cpu"))
    speed.adds(run, roof)
    speed.layouts(run, roof)
    speed.host_costs(run)
    assert run.wrong == 0
    records = [json.loads(line) for line in run.path.read_text().splitlines()]
    providers = {(r["name"], r["provider"]) for r in records if r["type"] == "measurement"}
    assert {p for name, p in providers if name == "add 4096 bf16"} == {"rafters", "torch", "triton", "triton masked"}
    assert len([r for r in records if r["type"] == "requirement"]) == 2 + 2 * 6 * 2 + 2
