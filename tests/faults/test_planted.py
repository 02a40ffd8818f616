"""`rafters check` catches each of twelve faults planted in the generator, by the name of the check that fails (see planted.py)."""

import json
from pathlib import Path

import pytest

# fault -> the check that has to fail
NAMED = {
    "wrong_mask": "guard zones",
    "missing_tail": "last block",
    "int32_overflow": "64-bit offsets",
    "ignored_stride": "argument strides",
    "wrong_promotion": "promotion",
    "silent_nan": "NaN and infinities",
    "wrong_gradient_of_a_broadcast_input": "gradient of broadcast arguments",
    "stride_0_gradient_ignored": "stride-0 and strided gradients",
    "alias_written": "inputs unchanged",
    "fake_stride_wrong": "fake tensors",
    "zero_tangent": "forward mode",
    "unwritten_column": "every element written",
}
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); import json, planted; planted.main(json.loads(sys.argv[2]))"


@pytest.fixture(scope="module")
def reports(run_python):
    """Fault (None: none planted) -> report of the check, from one process that interprets kernels."""
    pytest.importorskip("triton", reason="its interpreter executes the kernels")
    printed = run_python(PROGRAM, str(Path(__file__).parent), json.dumps(NAMED), TRITON_INTERPRET="1")
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return {one["fault"]: one["report"] for one in found}


def test_the_clean_generator_passes_all_of_these_checks(reports):
    clean = reports[None]
    assert clean["ok"], clean
    passed = {c["check"] for c in clean["checks"] if c["status"] == "passed"}
    assert set(NAMED.values()) <= passed


@pytest.mark.parametrize("fault", NAMED)
def test_a_planted_fault_is_caught_by_name(reports, fault):
    failed = [c for c in reports[fault]["checks"] if c["status"] == "failed"]
    assert {c["check"] for c in failed} == {NAMED[fault]}, reports[fault]
    assert all(c["reason"] for c in failed)
