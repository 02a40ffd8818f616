"""Twelve faults, each planted in the generator where kernels, calls and gradients are really made; run as a program that interprets.

One new op is checked as it is; then, for each fault, another with the fault planted. Prints one JSON object a check.
"""

import contextlib
import dataclasses
import itertools
import json
import warnings

import torch

import rafters
from rafters.engine import codegen, promotion
from rafters.engine.layouts import layout, tiling
from rafters.engine.layouts.geometry import contiguous_strides
from rafters.operator.calls import gate
from rafters.operator.derivatives import gradient
from rafters.operator.from_body import FromBody
from rafters.testing.suite import Checker

numbers = itertools.count()


def new_op():
    """An op that nothing has been planned, traced or derived for yet."""

    @rafters.elementwise(name=f"t_faults::product_{next(numbers)}")
    def product(x, y):
        return x * y

    return product


def lines_changed(old, new):
    """A wrapper for a function of the code generator that changes lines of what it writes; the text must be there to be changed."""

    def wrap(own):
        def changed(*arguments):
            lines = own(*arguments)
            return [line.replace(old, new) for line in lines]

        return changed

    return wrap


@contextlib.contextmanager
def replaced(place, name, wrap):
    own = getattr(place, name)
    setattr(place, name, wrap(own))
    try:
        yield
    finally:
        setattr(place, name, own)


def wrong_mask():
    """One element too many lies inside."""
    return replaced(codegen, "_linear", lines_changed("m = o < n", "m = o < n + 1"))


def missing_tail():
    """No program for what is left behind the full blocks."""

    def wrap(own):
        def changed(*arguments):
            laid = own(*arguments)
            if laid is None:
                return None
            return dataclasses.replace(laid, grid=max(laid.arguments["n"].value // laid.constants["BLOCK"], 1))

        return changed

    return replaced(layout, "_linear", wrap)


@contextlib.contextmanager
def int32_overflow():
    """Offsets count in 32 bits whatever they reach."""
    with replaced(layout, "INT32_REACH", lambda _: 2**62), replaced(tiling, "INT32_REACH", lambda _: 2**62):
        yield


def ignored_stride():
    """Columns are taken one after another, however far apart they lie."""

    def wrap(own):
        def changed(form, s):
            return own(form, s).replace(f"c * {s.name}_s1", "c")

        return changed

    return replaced(codegen, "_address", wrap)


def wrong_promotion():
    """A 0-d tensor promotes like one with dimensions."""

    def wrap(own):
        def changed(op, arguments):
            return own(op, [dataclasses.replace(a, rank=promotion.DIMENSIONED) for a in arguments])

        return changed

    return replaced(promotion, "common_dtype", wrap)


def silent_nan():
    """NaN is stored as zero."""

    def wrap(own):
        def changed(form, s, mask):
            value = f"{s.name}.to({s.name.upper()}_AS)"
            return own(form, s, mask).replace(value, f"tl.where({s.name} == {s.name}, {s.name}, 0).to({s.name.upper()}_AS)")

        return changed

    return replaced(codegen, "_store", wrap)


def wrong_gradient_of_a_broadcast_input():
    """The sum over the rows leaves the first one out."""
    return replaced(codegen, "_sum_arm", lines_changed("tl.where(m, ", "tl.where(m & (r > 0), "))


def stride_0_gradient_ignored():
    """An upstream gradient that is one number expanded counts as none."""

    def wrap(own):
        def changed(rule, names, arguments, gradients):
            return own(
                rule, names, arguments, [torch.zeros_like(g) if g is not None and 0 in g.stride() else g for g in gradients]
            )

        return changed

    return replaced(gradient, "_derived", wrap)


def alias_written():
    """The result goes into the first argument as well."""

    def wrap(own):
        def changed(form, compute, mask):
            lines = own(form, compute, mask)
            first = next((s for s in form.inputs if s.kind == "tile"), None)
            extra = [
                line.replace(f"{form.outputs[0].name}_", f"{first.name}_", 1) for line in lines if "tl.store" in line and first
            ]
            return [*lines, *(line.replace(f".to({form.outputs[0].name.upper()}_AS)", "") for line in extra)]

        return changed

    return replaced(codegen, "_arm", wrap)


def fake_stride_wrong():
    """The fake function promises contiguous results."""

    def wrap(own):
        def changed(self, arguments):
            return [(shape, contiguous_strides(shape), dtype) for shape, _, dtype in own(self, arguments)]

        return changed

    return replaced(FromBody, "new_results", wrap)


def zero_tangent():
    """Forward mode takes the plain call."""
    return replaced(gate, "needs_composite", lambda _: lambda arguments: False)


def unwritten_column():
    """The last column of a tile lies outside."""
    return replaced(codegen, "_tiled", lines_changed("m_col = c < cols", "m_col = c < cols - 1"))


FAULTS = [
    wrong_mask, missing_tail, int32_overflow, ignored_stride, wrong_promotion, silent_nan, wrong_gradient_of_a_broadcast_input,
    stride_0_gradient_ignored, alias_written, fake_stride_wrong, zero_tangent, unwritten_column,
]  # fmt: skip


def main(named):
    """`named`: the check that each fault is to fail."""
    warnings.filterwarnings("ignore")  # numpy's, of overflows that are meant
    with Checker(quick=True, device="cpu", only=tuple(named.values())) as checker:
        print(json.dumps({"fault": None, "report": checker.check(new_op()).to_json()}))
    for fault in FAULTS:
        with Checker(quick=True, device="cpu", only=(named[fault.__name__],)) as checker, fault():
            print(json.dumps({"fault": fault.__name__, "report": checker.check(new_op()).to_json()}))


if __name__ == "__main__":
    main()
