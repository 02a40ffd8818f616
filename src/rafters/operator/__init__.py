"""Op and the decorators, and what PyTorch has to know of an op."""

from rafters.engine.spec import Output, View
from rafters.operator.converted import from_torch
from rafters.operator.declare import elementwise, rowwise
from rafters.operator.from_kernel import Launch
from rafters.operator.handwritten import kernel
from rafters.operator.op import Op
from rafters.operator.switches import no_compile, options, variants, warm

__all__ = [
    "Launch",
    "Op",
    "Output",
    "View",
    "elementwise",
    "from_torch",
    "kernel",
    "no_compile",
    "options",
    "rowwise",
    "variants",
    "warm",
]
