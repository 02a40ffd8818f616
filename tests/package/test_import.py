"""`import rafters` is cheap and quiet: it loads nothing heavy, touches no device and prints nothing."""

import pytest

HEAVY = ("triton", "matplotlib", "plotly", "torch.distributed.tensor", "torch._dynamo", "torch._inductor", "typer")

# What an import adds to `import torch`, one module a line.
LOADED = """
import importlib, sys
import torch
before = set(sys.modules)
importlib.import_module(sys.argv[1])
assert not torch.cuda.is_initialized(), "a CUDA context was made"
print(*sorted(set(sys.modules) - before), sep="\\n")
"""


@pytest.mark.parametrize("module", ["rafters", "rafters.errors", "rafters.lang"])
def test_import_loads_nothing_heavy(run_python, module: str) -> None:
    loaded = run_python(LOADED, module).splitlines()
    assert module in loaded
    assert [name for name in loaded if any(name == top or name.startswith(f"{top}.") for top in HEAVY)] == []


def test_import_prints_nothing(run_python) -> None:
    assert run_python("import os; os.dup2(1, 2); import rafters") == ""  # standard error counts too


def test_import_needs_no_torch_until_a_name_is_used(run_python) -> None:
    assert run_python("import sys, rafters; print('torch' in sys.modules, rafters.__version__)").startswith("False ")


def test_the_command_line_starts_without_torch(run_python) -> None:
    program = "import sys; import rafters.cli; print([name for name in ('torch', 'triton', 'matplotlib') if name in sys.modules])"
    assert run_python(program).strip() == "[]"


def test_tl_is_a_stand_in_without_triton(run_python) -> None:
    program = """
import sys
sys.modules["triton"] = None
import rafters
tl = rafters.tl
assert tl is rafters.tl
def body(x, BLOCK: tl.constexpr): return tl.where(x > 0, x, tl.float32)
print(tl.constexpr.__module__)
"""
    assert run_python(program).strip() == "rafters.lang.standin"


def test_tl_is_tritons_language(run_python) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    assert run_python("import rafters, triton.language; print(rafters.tl is triton.language)").strip() == "True"
