"""Is an op right on the very arguments that are timed? The truth is its traced form in float64."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rafters.operator import Op
from rafters.operator.traced import traced_form
from rafters.roofline import check as checking
from rafters.roofline.rotation import tensors_in

# On a CPU the truth in float64 takes longer than all the timing: large results are compared in windows.
_WHOLE = 1 << 21
_WINDOW = 1 << 16
_WINDOWS = 16


@dataclass(frozen=True)
class Sampled:
    """What the op should give, worked out only where it is looked at."""

    op: Op
    arguments: tuple[Any, ...]


def reference(op: Op) -> Callable[..., Any]:
    """A function with the op's arguments that gives what it should: in float64, and in place where the op works in place."""

    def truth(*arguments: Any) -> Any:
        if _can_sample(op, arguments):
            return Sampled(op, arguments)
        return _truth(op, arguments)

    return truth


def is_sampled(op: Op, arguments: tuple[Any, ...]) -> str:
    """A remark for the row, or ''."""
    return f"compared in {_WINDOWS} windows of {_WINDOW} elements" if _can_sample(op, arguments) else ""


def _can_sample(op: Op, arguments: tuple[Any, ...]) -> bool:
    found = tensors_in(arguments)
    plain = not op.spec.rowwise and not any(v.part or v.rows for v in op.spec.views.values())
    fresh = not any(o.into or o.part or o.rows for o in op.spec.outputs)
    large = all(t.device.type == "cpu" and t.numel() > _WHOLE and t.is_contiguous() for t in found)
    return plain and fresh and large and len({t.shape for t in found}) == 1


def _truth(op: Op, arguments: tuple[Any, ...]) -> Any:
    if op.spec.reference is not None and not any(p.mutated for p in op.spec.parameters):
        return op.spec.reference(*arguments)
    named = dict(zip((p.name for p in op.spec.parameters), arguments, strict=True))
    fresh = []
    for group, value in zip(op.spec.results, traced_form(op.spec, named, exact=True), strict=True):
        if group[0].into is None:
            fresh.append(value)
        else:
            named[group[0].into].copy_(value)
    return None if not fresh else fresh[0] if len(fresh) == 1 else tuple(fresh)


def strict(result: Any, expected: Any) -> str | None:
    """The op's own bound: 1 ulp of a 16-bit result, 4 ulp in float32."""
    return _compare(result, expected, checking.compare)


def close(result: Any, expected: Any) -> str | None:
    """The bound for peers, which may round between steps: four units of the result's dtype, of the largest value."""
    return _compare(result, expected, _close)


def _compare(result: Any, expected: Any, check: checking.Check) -> str | None:
    if not isinstance(expected, Sampled):
        return check(result, expected)
    got = tensors_in(result)
    if any(g.shape != tensors_in(expected.arguments)[0].shape for g in got):
        return f"shapes {[tuple(g.shape) for g in got]} came back"
    flat = [g.reshape(-1) for g in got]
    count = flat[0].numel()
    random = torch.randint(count - _WINDOW, (_WINDOWS - 2,), generator=torch.Generator().manual_seed(count)).tolist()
    for start in (0, count - _WINDOW, *random):
        here = slice(start, start + _WINDOW)
        window = tuple(a.reshape(-1)[here] if isinstance(a, torch.Tensor) else a for a in expected.arguments)
        if wrong := check([f[here] for f in flat], _truth(expected.op, window)):
            return f"from element {start}: {wrong}"
    return None


def _close(result: Any, expected: Any) -> str | None:
    got, want = tensors_in(result), tensors_in(expected)
    if [g.shape for g in got] != [w.shape for w in want]:
        return f"shapes {[tuple(g.shape) for g in got]} came back, wanted {[tuple(w.shape) for w in want]}"
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        if not g.is_floating_point():
            if not torch.equal(g, w.to(g.dtype)):
                return f"output {i} ({g.dtype}) differs"
            continue
        large = float(w.abs().nan_to_num(nan=0.0, posinf=0.0).max()) if w.numel() else 0.0
        limit = 4 * torch.finfo(g.dtype).eps * max(large, 1.0)
        for a, b in zip(g.reshape(-1).split(1 << 24), w.reshape(-1).split(1 << 24), strict=True):
            same = (a.double() == b.double()) | (a.isnan() & b.isnan()) | ((a.double() - b.double()).abs() <= limit)
            if not bool(same.all()):
                return f"output {i} ({g.dtype}): {int((~same).sum())} values are further than {limit:.2g} from the truth"
    return None
