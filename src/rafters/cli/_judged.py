"""Two runs judged row by row, as `compare` and `bench --baseline` show it."""

from typing import Any

from rafters.roofline import Judgement, Results, compare
from rafters.roofline.chart import terminal
from rafters.roofline.judging import FAILED, SLOWER, missing, summary

_NAMED = 5  # rows left out that are named; of more there is a count


class Judged:
    """The rows of a comparison, and what `before` holds that `after` did not measure."""

    def __init__(self, before: Results, after: Results, threshold: float):
        self.rows = compare(before, after, threshold=threshold)
        self._left, self._source, self._threshold = missing(before, after), before.source, threshold

    @property
    def ok(self) -> bool:
        """Nothing is slower beyond the threshold, and nothing that was right fails."""
        return not any(r.verdict in (SLOWER, FAILED) for r in self.rows)

    def lines(self) -> list[str]:
        found = [*terminal.table([_row(r) for r in self.rows], 100), summary(self.rows)]
        if self._left:
            more = f" and {len(self._left) - _NAMED} more" if len(self._left) > _NAMED else ""
            found.append(f"in {self._source} alone, so not judged: {', '.join(self._left[:_NAMED])}{more}")
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "before": self._source,
            "threshold": self._threshold,
            "rows": [r.to_json() for r in self.rows],
            "summary": summary(self.rows),
            "not_judged": self._left,
        }


def _row(r: Judgement) -> dict[str, str]:
    def microseconds(s: float | None) -> str:
        return f"{s * 1e6:,.2f}" if s is not None else "-"

    def change(ratio: float | None) -> str:
        return f"{ratio - 1:+.1%}" if ratio is not None else "-"

    return {
        "call": f"{r.name} ({r.provider}) {r.shape} {r.dtype}",
        "before µs": microseconds(r.before_s),
        "after µs": microseconds(r.after_s),
        "time": change(r.ratio),
        "between": f"{change(r.low)} and {change(r.high)}" if r.ratio is not None else "",
        "verdict": r.verdict,
        "why": r.reason,
    }
