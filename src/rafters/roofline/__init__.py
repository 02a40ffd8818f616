"""Measures any callable that has a `Cost`, and judges it against the measured ceilings of its device. Knows no op."""

from rafters.roofline.ceiling import Ceilings, ceilings
from rafters.roofline.counting import Counted, count
from rafters.roofline.measurement import Measurement
from rafters.roofline.measuring import measure, race

__all__ = ["Ceilings", "Counted", "Measurement", "ceilings", "count", "measure", "race"]
