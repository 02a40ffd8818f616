"""Measures any callable that has a `Cost`, and judges it against the measured ceilings of its device. Knows no op."""

from rafters.roofline.ceiling import Ceilings, ceilings
from rafters.roofline.counting import Counted, count
from rafters.roofline.declaring import measured
from rafters.roofline.judging import Judgement, compare
from rafters.roofline.measurement import Measurement
from rafters.roofline.measuring import measure, race
from rafters.roofline.results import Results, read, write
from rafters.roofline.sandwich import sandwiched

__all__ = [
    "Ceilings",
    "Counted",
    "Judgement",
    "Measurement",
    "Results",
    "ceilings",
    "compare",
    "count",
    "measure",
    "measured",
    "race",
    "read",
    "sandwiched",
    "write",
]
