"""Many calls, one table: which promises held on all of them, and the smallest call that broke each of the others."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rafters.errors import ArgumentError
from rafters.operator.op import Op
from rafters.testing import drawing
from rafters.testing.calls import Call, takes_any_shapes
from rafters.testing.drawing import Space
from rafters.testing.examine import Bounds, Execute, Faults, Refused, examine
from rafters.testing.report import FAILED, PASSED, SKIPPED, Outcome

RUNS = "every call runs"


def unannounced(_call: Call) -> None:
    """Nobody is told."""


@dataclass
class Torture:
    """One way of running an op."""

    op: Op
    path: str
    execute: Execute
    space: Space
    device: str = "cpu"
    bounds: Bounds = field(default_factory=Bounds)
    seconds: float = 60.0  # of the processor: no further call is made after so long
    announce: Callable[[Call], None] = unannounced  # is told of every call before it is made
    only: tuple[str, ...] = ()  # promises that are reported, if not all

    def outcomes(self, listed: Iterable[Call], count: int) -> list[Outcome]:
        """Judges the listed calls and `count` drawn ones."""
        failing: dict[str, list[Call]] = {}
        examined: dict[str, int] = {}
        refusals: list[str] = []
        # processor time: on a busy machine the same calls are made
        start, begun = time.perf_counter(), time.process_time()
        for call in self._calls(listed, count):
            if time.process_time() - begun > self.seconds:
                break
            try:
                faults = self.faults(call)
            except Refused as refusal:
                refusals.append(str(refusal))
                continue
            if not examined:  # the first call loads what all calls need
                begun = time.process_time()
            for promise, found in faults.items():
                examined[promise] = examined.get(promise, 0) + 1
                if found:
                    failing.setdefault(promise, []).append(call)
        if not examined:
            reason = f"no call could be made up: {refusals[0]}" if refusals else "no call could be made up for its arguments"
            return [Outcome(RUNS, self.path, SKIPPED, 0, time.perf_counter() - start, reason)]
        spent = (time.perf_counter() - start) / len(examined)
        return [
            self._outcome(promise, n, failing.get(promise, []), spent)
            for promise, n in examined.items()
            if not self.only or promise in self.only or (promise == RUNS and promise in failing)
        ]

    def _calls(self, listed: Iterable[Call], count: int) -> Iterable[Call]:
        yield from listed
        if count:
            yield from drawing.drawn(self.op, self.space, count)

    def faults(self, call: Call) -> Faults:
        """What is wrong with one call; that it raises is wrong, too, once the op has said that it takes it."""
        self.announce(call)
        try:
            return {RUNS: [], **examine(call, self.execute, self.device, self.bounds)}
        except Refused:
            raise
        except Exception as problem:
            refused = isinstance(problem, ArgumentError) and not takes_any_shapes(self.op)
            # the author's reference runs on the CPU, and PyTorch lacks an operation of it for this dtype
            lacking = isinstance(problem, NotImplementedError) and self.op.spec.reference is not None
            if refused or lacking:
                raise Refused(str(problem)) from problem
            text = str(problem).strip().splitlines() or [""]
            return {RUNS: [f"{type(problem).__name__}: {text[0][:300]}"]}

    def _outcome(self, promise: str, count: int, failing: list[Call], seconds: float) -> Outcome:
        if not failing:
            return Outcome(promise, self.path, PASSED, count, seconds)

        end = time.process_time() + min(self.seconds, 5.0)
        known = dict.fromkeys(failing, True)

        def fails(call: Call) -> bool:
            if call not in known:
                known[call] = time.process_time() < end and self._breaks(call, promise)
            return known[call]

        call = drawing.smallest(self.op, self.space, fails, failing)
        reason = "; ".join(self.faults(call)[promise]) + f" ({len(failing)} of {count} calls)"
        return Outcome(promise, self.path, FAILED, count, seconds, reason, call.code(self.device))

    def _breaks(self, call: Call, promise: str) -> bool:
        try:
            return bool(self.faults(call).get(promise))
        except Refused:
            return False
