"""Measures any callable that has a `Cost`, and judges it against the measured ceilings of its device. Knows no op.

Names are loaded on first use: the pytest plugin lives here, and a test run that does not measure should not pay for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rafters.roofline.ceiling import Ceilings as Ceilings
    from rafters.roofline.ceiling_cache import ceilings as ceilings
    from rafters.roofline.counting import Counted as Counted
    from rafters.roofline.counting import count as count
    from rafters.roofline.declaring import measured as measured
    from rafters.roofline.judging import Judgement as Judgement
    from rafters.roofline.judging import compare as compare
    from rafters.roofline.measurement import Measurement as Measurement
    from rafters.roofline.measuring import measure as measure
    from rafters.roofline.measuring import race as race
    from rafters.roofline.results import Results as Results
    from rafters.roofline.results import read as read
    from rafters.roofline.results import write as write
    from rafters.roofline.sandwich import sandwiched as sandwiched

# Home module -> the public names it defines; none of them is the name of a module here, which would overwrite it.
_HOMES = {
    "ceiling": ("Ceilings",),
    "ceiling_cache": ("ceilings",),
    "counting": ("Counted", "count"),
    "declaring": ("measured",),
    "judging": ("Judgement", "compare"),
    "measurement": ("Measurement",),
    "measuring": ("measure", "race"),
    "results": ("Results", "read", "write"),
    "sandwich": ("sandwiched",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'rafters.roofline' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"rafters.roofline.{_HOME_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
