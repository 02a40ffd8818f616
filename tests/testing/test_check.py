"""`rafters.testing.check` and `rafters check`: every op of the library, ops of users, and what is said when something is wrong."""

import json
import textwrap

import checked_ops
import pytest
import torch
from typer.testing import CliRunner

import rafters
from rafters import cli, ops, testing
from rafters.testing import drawing
from rafters.testing.drawing import Space
from rafters.testing.suite import Checker

TABLE = ops.table()
GOOD = ("swish", "packed_gate", "plus_row", "norm", "twice")


@pytest.fixture(scope="module")
def checker():
    """One process that interprets kernels for all tests of this file."""
    with Checker(quick=True, device="cpu") as quick:
        yield quick


@pytest.mark.parametrize("name", TABLE)
def test_every_op_of_the_library_keeps_its_promises(checker, name):
    report = checker.check(TABLE[name])
    assert report.ok, str(report)


@pytest.mark.parametrize("name", GOOD)
def test_an_op_of_ones_own(checker, name):
    report = checker.check(getattr(checked_ops, name))
    assert report.ok, str(report)


def test_what_is_looked_at(checker):
    report = checker.check(checked_ops.swish)
    paths = {(o.check, o.path) for o in report.outcomes if o.status == "passed"}
    for check in ("guard zones", "every element written", "inputs unchanged", "NaN and infinities", "values", "argument strides"):
        assert (check, "CPU") in paths, report
    for check in ("promotion", "out=", "overlap refused", "empty", "result strides", "fake tensors", "opcheck", "threads",
                  "gradient", "gradient of broadcast arguments", "stride-0 and strided gradients", "subsets of gradients",
                  "double gradient", "forward mode"):  # fmt: skip
        assert check in {c for c, _ in paths}, report
    if rafters.lang.has_triton():
        kernel = {check for check, path in paths if path == "kernel"}
        assert {"guard zones", "every element written", "last block", "64-bit offsets"} <= kernel, report
        assert {"access width", "no spills", "dependent launch waits", "index width"} <= {c for c, p in paths if p == "assembly"}


def test_the_smallest_failing_input_is_code_that_rebuilds_it(checker):
    report = checker.check(checked_ops.not_as_it_says)
    # on the CPU the reference is what runs; where a kernel runs it is the kernel that differs
    pytest.importorskip("triton", reason="its interpreter executes the kernel")
    (fault,) = [o for o in report.failed if o.check == "values" and o.path == "kernel"]
    assert "wanted" in fault.reason
    space: dict[str, object] = {}
    exec(fault.code, space)
    x, y = space["x"], space["y"]
    assert x.numel() == y.numel() == 1, fault.code
    assert float(y) != 0


def test_a_kernel_written_by_hand_that_forgets_an_element(checker):
    pytest.importorskip("triton", reason="its interpreter executes the kernel")
    report = checker.check(checked_ops.short)
    assert "last block" in report.failing, str(report)
    (fault,) = [o for o in report.failed if o.check == "last block"]
    assert "1 of 1 elements were not written" in fault.reason


def test_the_same_calls_in_every_run():
    space = Space((torch.float32, torch.bfloat16))
    first = [c.code() for c in drawing.drawn(checked_ops.swish, space, 20)]
    assert first == [c.code() for c in drawing.drawn(checked_ops.swish, space, 20)]
    assert len(set(first)) == len(first) >= 15


def test_only_the_checks_that_are_asked_for():
    report = testing.check(TABLE["add"], quick=True, device="cpu", only=("promotion", "fake tensors"))
    assert {o.check for o in report.outcomes} == {"promotion", "fake tensors"}
    assert report.ok


def test_an_op_in_no_file_is_checked_but_for_its_kernels():
    @rafters.elementwise(name="t_check::local")
    def local(x):
        return x + 1

    report = testing.check(local, quick=True, device="cpu", only=("values", "every call runs", "guard zones"))
    assert report.ok
    if rafters.lang.has_triton():
        (skipped,) = [o for o in report.outcomes if o.path == "kernel"]
        assert skipped.status == "skipped"
        assert "inside a function" in skipped.reason


def test_what_is_no_op_is_refused():
    with pytest.raises(rafters.RaftersError, match="check: got builtin_function_or_method, wanted an op"):
        testing.check(torch.add)


def test_without_hypothesis(run_python):
    program = """
import sys
sys.modules["hypothesis"] = None
from rafters import testing
try:
    testing.check
except Exception as problem:
    print(type(problem).__name__, problem)
"""
    assert "RaftersError check needs hypothesis" in run_python(textwrap.dedent(program))


def test_the_command_line(tmp_path, monkeypatch):
    file = tmp_path / "my_checked_op.py"
    file.write_text(
        "import rafters\nprint('its own output')\n\n@rafters.elementwise\ndef plus(x, y):\n    return x + y\n\n\n"
        "@rafters.elementwise(reference=lambda x: x + 2)\ndef wrong(x):\n    return x + 1\n"
    )
    monkeypatch.chdir(tmp_path)
    fine = CliRunner().invoke(cli.app, ["check", "--quick", "--device", "cpu", "my_checked_op.py:plus"])
    assert fine.exit_code == 0, fine.output
    assert "passed my_checked_op::plus" in fine.output
    assert "guard zones" in fine.output
    both = CliRunner().invoke(cli.app, ["check", "--quick", "--device", "cpu", "--json", "--only", "values", "my_checked_op.py"])
    found = json.loads(both.output[both.output.index("{") :])
    assert [o["op"] for o in found["ops"]] == ["my_checked_op::plus", "my_checked_op::wrong"]
    if rafters.lang.has_triton():
        assert both.exit_code == 1
        assert [o["ok"] for o in found["ops"]] == [True, False]
        wrong = [c for c in found["ops"][1]["checks"] if c["status"] == "failed"]
        assert {c["path"] for c in wrong} == {"kernel"}, [c["reason"] + c["code"] for c in wrong]
        assert all("from my_checked_op import wrong" in c["code"] for c in wrong)


def test_the_command_line_refuses_what_is_not_there():
    result = CliRunner().invoke(cli.app, ["check", "--quick", "ad"])
    assert result.exit_code == 1
    assert "no op is called 'ad'; did you mean add" in result.output + result.stderr


def test_a_kernel_that_ends_the_process_is_reported(checker, monkeypatch):
    """The interpreter reads where it is told to: an address that is none ends its process, and the report says with which call."""
    pytest.importorskip("triton", reason="its interpreter executes the kernel")
    with Checker(quick=True, device="cpu", only=("values",)) as alone:
        report = alone.check(checked_ops.reads_far_off)
    (fault,) = report.failed
    assert "the interpreting process died" in fault.reason
    assert "reads_far_off(x)" in fault.code


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["add", "silu", "where", "scale"])
def test_on_a_gpu(name):
    """The quick form with real kernels; `rafters check` is the full one."""
    report = testing.check(TABLE[name], quick=True)
    assert report.ok, str(report)
    assert ("guard zones", "GPU") in {(o.check, o.path) for o in report.outcomes if o.status == "passed"}
    assert any(o.check == "graph replay" and o.status == "passed" for o in report.outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["silu_mul", "clamp"])
def test_the_full_form(name):
    report = testing.check(TABLE[name])
    assert report.ok, str(report)
