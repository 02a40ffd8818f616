"""Generated kernels executed without a GPU (see interpreted.py)."""

from pathlib import Path

import pytest

FORMS = {
    "flat/linear/False/None",
    "rows/linear/False/False",
    "rows/linear/False/True",
    "rows/tiled/False/None",
    "strided/tiled/False/None",
    "strided/tiled/True/None",
    "rows/whole_rows/False/None",
    "strided/whole_rows/True/None",
    "rows/summed/False/None",
    "strided/summed/True/None",
}
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); import interpreted; sys.exit(interpreted.main(int(sys.argv[2]), 2))"


@pytest.mark.parametrize("part", [0, 1])
def test_every_kernel_gives_what_the_cpu_path_gives(run_python, part):
    pytest.importorskip("triton", reason="its interpreter executes the kernels")
    printed = run_python(PROGRAM, str(Path(__file__).parent), str(part), TRITON_INTERPRET="1")
    missing = {form for form in FORMS if form not in printed}
    assert not missing, f"no kernel of these forms (layout/walk/outer/wrap) was run: {missing}\n{printed}"
