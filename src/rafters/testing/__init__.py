"""Awkward tensors, guard zones and float64 truth: what tests of an op are made of, ours and `rafters check`."""

from rafters.testing.cases import CASES, Case, arguments_for, dtypes_of
from rafters.testing.compare import same_bits, ulp_error, wrong_values
from rafters.testing.contract import Sample, check
from rafters.testing.guards import Guarded
from rafters.testing.layouts import LAYOUTS, place, torch_strides
from rafters.testing.reference import exact
from rafters.testing.values import awkward, ordinary, specials

__all__ = ["CASES", "LAYOUTS", "Case", "Guarded", "Sample", "arguments_for", "awkward", "check", "dtypes_of", "exact", "ordinary",
           "place", "same_bits", "specials", "torch_strides", "ulp_error", "wrong_values"]  # fmt: skip
