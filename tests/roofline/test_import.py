"""What importing the instrument must not do, and what a project gets from its pytest plugin."""

import ast
from pathlib import Path

import pytest

import rafters.roofline

FOLDER = Path(rafters.roofline.__file__).parent


def test_import_loads_no_triton_no_plotting_and_opens_no_gpu(run_python):
    said = run_python(
        "import sys, torch, rafters.device, rafters.roofline, rafters.roofline.chart\n"
        "loaded = [m for m in ('triton', 'matplotlib', 'plotly') if m in sys.modules]\n"
        "print(loaded, torch.cuda.is_initialized())"
    )
    assert said.strip() == "[] False"


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda p: str(p.relative_to(FOLDER)))
def test_the_instrument_knows_no_op(path):
    allowed = ("rafters.errors", "rafters.dtypes", "rafters.device", "rafters.cost", "rafters.roofline")
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{a.name}" if node.module == "rafters" else str(node.module) for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        for name in names:
            assert not name.startswith("rafters") or name.startswith(allowed), name


def test_the_fixture_measures_and_judges(run_python, tmp_path):
    """A project's own tests, with the plugin loaded as its entry point does it (which is off: an installed one would be a second)."""
    (tmp_path / "test_mine.py").write_text(
        "import pytest, torch\n"
        "@pytest.mark.parametrize('least', [0.0, 1000.0])\n"
        "def test_add(roofline, least):\n"
        "    m = roofline(torch.add, (torch.ones(1 << 16), torch.ones(1 << 16)), reference=torch.add, time_limit_s=0.1)\n"
        "    assert m.verdict != 'WRONG' and m.share_of_attainable > least\n"
    )
    said = run_python(
        f"import sys; sys.path.append(r'{Path(__file__).parent}')\n"
        "import pytest, made\n"
        "import rafters.roofline as r, rafters.roofline.plugin as plugin\n"
        "r.ceilings = lambda *a, **k: made.ceilings()\n"
        f"pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'no:rafters', '--rootdir={tmp_path}', r'{tmp_path}'], plugins=[plugin])"
    )
    assert said.strip().splitlines()[-1].startswith("1 failed, 1 passed")
