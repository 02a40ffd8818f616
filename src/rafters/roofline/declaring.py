"""`@measured`: the cost of a function, said by the one who wrote it."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from rafters.cost import Cost
from rafters.errors import MeasureError

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
# A number, or a function of the call's own arguments.
Amount = int | Callable[..., int]


class Measured(Protocol[P, R_co]):
    """A function that knows its cost: it is called as before, and `cost(*args)` says what a call moves and computes."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def cost(self, *args: P.args, **kwargs: P.kwargs) -> Cost: ...


def measured(
    *,
    bytes: Amount | tuple[Amount, Amount],  # noqa: A002  (the word of the field is worth a shadowed builtin)
    flops: Amount = 0,
) -> Callable[[Callable[P, R]], Measured[P, R]]:
    """Declare what a call moves: `bytes` in all, or (read, written); a number, or a function of the call's arguments.

        @rafters.roofline.measured(bytes=(lambda x: x.nbytes, lambda x: x.nbytes), flops=lambda x: x.numel())
        def double(x): ...

    A single number is taken as half read and half written. `measure(double, (x,))` then uses it; nothing else changes.
    Raises MeasureError, at the first use, if an amount is negative or no number.
    """

    def decorate(fn: Callable[P, R]) -> Measured[P, R]:
        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return fn(*args, **kwargs)

        def cost(*args: P.args, **kwargs: P.kwargs) -> Cost:
            name = getattr(fn, "__name__", "function")
            amount = functools.partial(_amount, name, args=args, kwargs=kwargs)
            if isinstance(bytes, tuple):
                return Cost(amount(bytes[0]), amount(bytes[1]), amount(flops))
            total = amount(bytes)
            return Cost(total - total // 2, total // 2, amount(flops))

        call.cost = cost  # type: ignore[attr-defined]
        return cast(Measured[P, R], call)

    return decorate


def declared_cost(fn: Callable[..., Any], args: tuple[Any, ...]) -> Cost | None:
    """The cost that a function carries as `cost(*args)`, by `measured` or of its own; None if it has none."""
    cost = getattr(fn, "cost", None)
    if not callable(cost) or inspect.isclass(fn):
        return None
    found = cost(*args)
    return found if isinstance(found, Cost) else None


def _amount(name: str, amount: Amount, *, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    value = amount(*args, **kwargs) if callable(amount) else amount
    try:
        number = int(value)
    except (TypeError, ValueError) as error:
        raise MeasureError(f"{name}: a cost must be a number, got {value!r}") from error
    if number < 0:
        raise MeasureError(f"{name}: a cost must not be negative, got {number}")
    return number
