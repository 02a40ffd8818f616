"""`@rafters.kernel`: a Triton kernel written by hand, as an equal citizen.

The same checks, plans, registration, fake function, `reference=` and cost as a derived op; what the author adds is how to launch it.
"""

import inspect
from collections.abc import Callable
from typing import Any

from rafters.engine.spec import CONSTEXPR, TENSOR, Output, Parameter, Spec, View
from rafters.operator.declare import qualified_name
from rafters.operator.from_kernel import FromKernel, Launch
from rafters.operator.op import Op, make_op
from rafters.trace import body as bodies


def kernel(
    jitted: Any,
    /,
    *,
    reference: Callable[..., Any],
    name: str | None = None,
    outputs: int = 1,
    flops: int | Callable[..., int] = 0,
    contiguous: bool = True,
    backward: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Launch]], Op]:
    """An op from a hand-written Triton kernel and a function that says how to launch it.

        @triton.jit
        def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr): ...

        @rafters.kernel(add_kernel, reference=torch.add)
        def add(x, y):
            return rafters.Launch(out=torch.empty_like(x), grid=triton.cdiv(x.numel(), 1024), n=x.numel(), BLOCK=1024)

    The decorated function's parameters are the op's (tensors without annotation, scalars float or int). It is called with tensors
    that have shape, strides and dtype but no data, once for each kind of call. The kernel's parameters are matched by name: `x_ptr`
    or `x` is the argument x, `out_ptr` (or `out0_ptr`, ...) a result, the rest comes from the Launch or from scalars of the op.

    jitted: the kernel, decorated with triton.jit or a plain function in Triton's dialect (then no triton is needed to define it).
    reference: the same op in torch operations: the CPU path, the gradient, and what the kernel is checked against.
    flops: arithmetic operations an element of the first result, or a function of the arguments.
    contiguous: refuse arguments that are not contiguous (a kernel that takes no strides reads such memory in the wrong order).
    backward: the gradient, as of `rafters.elementwise`; without one it is that of `reference`.
    """
    return lambda describe: make_op(
        _spec(describe, name, outputs, reference, backward), FromKernel(jitted, describe, reference, flops, contiguous)
    )


def _spec(
    describe: Callable[..., Any],
    name: str | None,
    outputs: int,
    reference: Callable[..., Any],
    backward: Callable[..., Any] | None,
) -> Spec:
    body = bodies.signature(describe)
    namespace, short = qualified_name(describe, name)
    parameters = []
    for p in body.parameters:
        if p.kind == bodies.CONSTEXPR and p.type is None:
            raise body.error(f"parameter {p.name!r}: compile-time values of a hand-written kernel are chosen in the Launch")
        default = ... if p.default is inspect.Parameter.empty else p.default
        # the launch may depend on any number (a size, the grid), so each value is a plan of its own
        kind = TENSOR if p.kind == bodies.TENSOR else CONSTEXPR
        parameters.append(Parameter(p.name, kind, p.type, default, p.optional))
    views = {p.name: View(p.name) for p in parameters if p.kind == TENSOR}
    return Spec(short, namespace, body, False, tuple(parameters), views, (Output(),) * outputs, {}, reference, backward)
