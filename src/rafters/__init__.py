"""Write the maths once, in Triton's Python dialect; get a PyTorch operator that sits on the roofline.

Every public name is loaded on first use, so that `import rafters` costs next to nothing and loads neither triton nor torch.
A new public name is one word in `_HOMES` (and, for a type checker, one line below it).
"""

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rafters._version import __version__ as __version__

# Home module -> the public names it defines. No submodule of rafters may bear one of these names: loading it would overwrite
# the name (tests/package/test_public_api.py).
_HOMES: dict[str, tuple[str, ...]] = {
    "rafters.errors": ("ArgumentError", "BodyError", "CompileError", "MeasureError", "RaftersError"),
    "rafters.cost": ("Cost",),
    "rafters.operator": (
        *("Launch", "Op", "Output", "View", "elementwise", "from_torch", "kernel", "no_compile", "options", "rowwise"),
        *("variants", "warm"),
    ),
    "rafters.roofline": ("measure", "measured"),
    "rafters.ops": (
        *("add", "clamp", "div", "gelu", "gelu_tanh", "lerp", "maximum", "minimum", "mul", "mul_add", "relu", "scale"),
        *("scale_bias", "sigmoid", "silu", "silu_mul", "softcap", "sub", "tanh", "where"),
    ),
}
_MODULES = ("lang", "ops", "roofline")  # public as modules
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    from rafters import lang as lang
    from rafters import ops as ops
    from rafters import roofline as roofline
    from rafters.cost import Cost as Cost
    from rafters.errors import ArgumentError as ArgumentError
    from rafters.errors import BodyError as BodyError
    from rafters.errors import CompileError as CompileError
    from rafters.errors import MeasureError as MeasureError
    from rafters.errors import RaftersError as RaftersError
    from rafters.operator import Launch as Launch
    from rafters.operator import Op as Op
    from rafters.operator import Output as Output
    from rafters.operator import View as View
    from rafters.operator import elementwise as elementwise
    from rafters.operator import from_torch as from_torch
    from rafters.operator import kernel as kernel
    from rafters.operator import no_compile as no_compile
    from rafters.operator import options as options
    from rafters.operator import rowwise as rowwise
    from rafters.operator import variants as variants
    from rafters.operator import warm as warm
    from rafters.roofline import measure as measure
    from rafters.roofline import measured as measured


def _load(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(importlib.import_module(_HOME_OF[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"rafters.{name}")
    if name == "tl":  # Triton's language, or a stand-in with the same names where triton is not installed
        if find_spec("triton"):
            return importlib.import_module("triton.language")
        return importlib.import_module("rafters.lang.standin").tl
    raise AttributeError(f"module 'rafters' has no attribute {name!r}")


def __getattr__(name: str) -> Any:
    value = globals()[name] = _load(name)
    return value


def __dir__() -> list[str]:
    return sorted((*_HOME_OF, *_MODULES, "tl", "__version__"))
