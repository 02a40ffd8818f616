"""What `rafters check` found: one outcome a promise and way of running the op."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Outcome:
    """One promise on one path.

    `path`: "CPU", "GPU", "kernel" (executed by Triton's interpreter), "assembly" (of the compiled kernel) or "PyTorch".
    `reason`: what is wrong, or why it was skipped. `code` rebuilds the smallest failing input found.
    """

    check: str
    path: str
    status: str
    calls: int = 0
    seconds: float = 0.0
    reason: str = ""
    code: str = ""


@dataclass(frozen=True)
class Report:
    """What one op kept of its promises."""

    op: str
    device: str
    outcomes: tuple[Outcome, ...]
    seconds: float = 0.0

    @property
    def failed(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.status == FAILED]

    @property
    def ok(self) -> bool:
        """Nothing failed, and something passed."""
        return not self.failed and any(o.status == PASSED for o in self.outcomes)

    @property
    def failing(self) -> list[str]:
        """Names of the checks that failed, each once."""
        return list(dict.fromkeys(o.check for o in self.failed))

    def of(self, check: str) -> list[Outcome]:
        return [o for o in self.outcomes if o.check == check]

    def to_json(self) -> dict[str, Any]:
        return {
            "op": self.op, "device": self.device, "ok": self.ok, "seconds": round(self.seconds, 3),
            "checks": [asdict(o) for o in self.outcomes],
        }  # fmt: skip

    def __str__(self) -> str:
        counts = {status: sum(o.status == status for o in self.outcomes) for status in (PASSED, FAILED, SKIPPED)}
        lines = [f"{self.op}: " + ", ".join(f"{n} {status}" for status, n in counts.items())]
        for o in self.failed:
            lines += [f"FAILED {o.check} ({o.path}): {o.reason}", *(f"    {line}" for line in o.code.splitlines())]
        lines += [f"skipped {o.check} ({o.path}): {o.reason}" for o in self.outcomes if o.status == SKIPPED]
        return "\n".join(lines)


def from_json(record: dict[str, Any]) -> Outcome:
    return Outcome(**record)


def merged(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """One outcome a check and path: a failure stands before a pass, a pass before a skip."""
    found: dict[tuple[str, str], Outcome] = {}
    rank = {FAILED: 2, PASSED: 1, SKIPPED: 0}
    for o in outcomes:
        known = found.get((o.check, o.path))
        if known is None:
            found[(o.check, o.path)] = o
            continue
        first = known if rank[known.status] >= rank[o.status] else o
        found[(o.check, o.path)] = Outcome(
            o.check, o.path, first.status, known.calls + o.calls, known.seconds + o.seconds, first.reason, first.code
        )
    return list(found.values())
