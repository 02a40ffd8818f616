"""`check(op)`, and what it is made of: awkward tensors, guard zones and float64 truth, for tests of ops, ours and yours."""

from typing import Any

from rafters.testing.cases import CASES, Case, arguments_for, dtypes_of
from rafters.testing.compare import same_bits, ulp_error, wrong_values
from rafters.testing.contract import Sample, faults_of
from rafters.testing.guards import Guarded
from rafters.testing.layouts import LAYOUTS, place, torch_strides
from rafters.testing.reference import exact
from rafters.testing.report import Outcome, Report
from rafters.testing.values import awkward, counting, ordinary, smooth, specials

__all__ = ["CASES", "LAYOUTS", "Case", "Guarded", "Outcome", "Report", "Sample", "arguments_for", "awkward", "check", "counting",
           "dtypes_of", "exact", "faults_of", "ordinary", "place", "same_bits", "smooth", "specials", "torch_strides", "ulp_error",
           "wrong_values"]  # fmt: skip


def __getattr__(name: str) -> Any:
    """`check` draws its inputs with hypothesis, which only it needs."""
    if name != "check":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rafters.errors import RaftersError

    try:
        from rafters.testing.suite import check
    except ModuleNotFoundError as missing:
        if missing.name != "hypothesis":
            raise
        raise RaftersError("check needs hypothesis, which draws its inputs: pip install 'rafters[test]'") from None
    return check
