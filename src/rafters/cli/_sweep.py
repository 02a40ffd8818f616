"""The block-size study of one op: its rows, measured here, read off the assembly, or recorded elsewhere; and what they say."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import torch

from rafters import device as devices
from rafters.cli import _arguments, _correct
from rafters.device import Environment
from rafters.dtypes import dtype_name
from rafters.engine.study import blocks as study
from rafters.engine.study.blocks import MASKED, PROVABLE, SPLIT, Choice
from rafters.engine.study.facts import Facts
from rafters.engine.target import Target, device_target
from rafters.errors import RaftersError
from rafters.operator import Op
from rafters.roofline import Ceilings, race

# Many variants race at once: what each may take.
_RULE: dict[str, Any] = {"min_samples": 20, "min_time_s": 0.05, "time_limit_s": 0.25, "warm_up_s": 0.05}
_SHARE_OF_MEMORY = 0.4

Progress = Callable[[str], None]


@dataclass(frozen=True)
class SweepRow:
    """One configuration. `seconds` is a median, None where nothing was timed; `load_bits` the narrowest load of the hot arm."""

    op: str
    dtype: str
    target: str
    mode: str
    aligned: bool
    block: int
    warps: int
    n: int | None = None
    seconds: float | None = None
    gbps: float | None = None
    share_of_ceiling: float | None = None
    verdict: str = ""
    load_bits: int | None = None
    store_bits: int | None = None
    predicated: int | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    environment: str = ""
    date: str = ""

    @property
    def key(self) -> tuple[str, bool, int, int]:
        return self.mode, self.aligned, self.block, self.warps

    def to_json(self) -> dict[str, Any]:
        return {"type": "sweep", **asdict(self)}

    @staticmethod
    def from_json(record: dict[str, Any]) -> "SweepRow":
        return SweepRow(**{f.name: record[f.name] for f in fields(SweepRow) if f.name in record})


@dataclass(frozen=True)
class Sweep:
    """Rows of one op on one device (or target), and the configuration that calls get."""

    rows: tuple[SweepRow, ...]
    chosen: tuple[int, int]
    environment: Environment | None = None
    recorded: bool = False

    def find(self, mode: str, block: int, warps: int, aligned: bool = True) -> SweepRow | None:
        return next((r for r in self.rows if r.key == (mode, aligned, block, warps)), None)

    @property
    def timed(self) -> bool:
        return any(r.seconds for r in self.rows)

    @property
    def sweet_spot(self) -> SweepRow | None:
        """The fastest aligned split kernel."""
        return min((r for r in self.rows if r.seconds and r.aligned and r.mode == SPLIT), key=_seconds, default=None)

    def ratio(self, first: tuple[str, bool], second: tuple[str, bool]) -> float | None:
        """Time of one way over that of another, both as calls are configured."""
        a, b = (self.find(mode, *self.chosen, aligned) for mode, aligned in (first, second))
        return a.seconds / b.seconds if a and b and a.seconds and b.seconds else None

    def findings(self) -> list[str]:
        """What the rows say, a sentence each."""
        return list(self._timed_findings() if self.timed else self._read_findings())

    def _timed_findings(self) -> Iterator[str]:
        block, warps = self.chosen
        if best := self.sweet_spot:
            share = f", {best.share_of_ceiling:.1%} of the ceiling" if best.share_of_ceiling else ""
            yield f"sweet spot: {best.block} elements on {best.warps} warps, {best.gbps:,.0f} GB/s{share}"
            ours = self.find(SPLIT, block, warps)
            if ours and ours.seconds and best.seconds:
                yield f"a call gets {block} elements on {warps} warps: {best.seconds / ours.seconds:.1%} of that speed"
        if cost := self.ratio((MASKED, True), (SPLIT, True)):
            yield f"a mask that cannot be proved costs {cost:.2f}x ({block} on {warps}, one element more than a multiple of 16)"
        if cost := self.ratio((SPLIT, True), (PROVABLE, True)):
            yield f"the split removes it: {cost:.2f}x the time of a mask that can be proved"
        if cost := self.ratio((SPLIT, False), (SPLIT, True)):
            yield f"pointers off by one element cost {cost:.2f}x"

    def _read_findings(self) -> Iterator[str]:
        for mode in (MASKED, PROVABLE, SPLIT):
            for aligned in (True, False):
                row = self.find(mode, *self.chosen, aligned)
                if row and row.load_bits is not None:
                    where = f"{mode}{'' if aligned else ', pointers off by one element'}"
                    yield f"{where}: loads of {row.load_bits} bits, stores of {row.store_bits}, {row.predicated} predicated"


def _seconds(row: SweepRow) -> float:
    return row.seconds or float("inf")


def read(op: Op, dtype: torch.dtype, target: Target, progress: Progress) -> Sweep:
    """What the assembly of every configuration says, for a target that need not be here."""
    rows = []
    todo = list(study.choices(target.warp_size))
    for i, choice in enumerate(todo, 1):
        progress(f"{op.qualified_name} for {target.name}: {choice.label} ({i} of {len(todo)})")
        rows.append(_row(op, dtype, target, choice, study.inspect(op.spec, dtype, choice, target)))
    return Sweep(tuple(rows), study.closed_form(op.spec, dtype, target))


def _row(op: Op, dtype: torch.dtype, target: Target, choice: Choice, found: Facts, **more: Any) -> SweepRow:
    return SweepRow(
        op=op.qualified_name,
        dtype=dtype_name(dtype),
        target=target.name,
        mode=choice.mode,
        aligned=choice.aligned,
        block=choice.block,
        warps=choice.warps,
        load_bits=min(found.hot.loads.values(), default=None),
        store_bits=min(found.hot.stores.values(), default=None),
        predicated=found.hot.predicated,
        registers=found.registers,
        spill_bytes=found.spill_bytes,
        **more,
    )


def time_all(op: Op, dtype: torch.dtype, size: int, where: torch.device, roof: Ceilings, progress: Progress) -> Sweep:
    """Every configuration, timed: those that can take the same tensors race each other."""
    target = device_target(where.index)
    todo = list(study.choices(target.warp_size))
    size = _affordable(op, dtype, size, len(todo), where)
    rows: list[SweepRow] = []
    for provable in (False, True):
        for aligned in (True, False):
            group = [c for c in todo if c.aligned is aligned and (c.mode == PROVABLE) is provable]
            n = size if provable else size + 1
            rows += _race(op, dtype, target, group, n, where, roof, progress)
    return Sweep(tuple(rows), study.closed_form(op.spec, dtype, target), devices.environment(where))


def _affordable(op: Op, dtype: torch.dtype, size: int, variants: int, where: torch.device) -> int:
    """A multiple of 16; every racing kernel keeps two results beside the two sets of arguments."""
    each = dtype.itemsize * 2 * (len(op.spec.tensors) + variants // 2 * len(op.spec.results))
    most = int(_SHARE_OF_MEMORY * devices.facts(where).memory_bytes) // each
    return max(min(size, most) // 16 * 16, 16)


def _race(
    op: Op,
    dtype: torch.dtype,
    target: Target,
    group: Sequence[Choice],
    n: int,
    where: torch.device,
    roof: Ceilings,
    progress: Progress,
) -> Iterator[SweepRow]:
    generator = torch.Generator(where).manual_seed(_arguments.SEED)
    offset = 0 if group[0].aligned else 1

    def tensor(own: torch.dtype) -> torch.Tensor:
        return _arguments.tensor((n + offset,), own, where, generator)[offset:]

    def make() -> tuple[Any, ...]:
        return tuple(study.arguments_for(op.spec, dtype, tensor).values())

    arguments = study.arguments_for(op.spec, dtype, tensor)
    kernels: dict[str, Callable[..., Any]] = {}
    read_off: dict[str, Facts] = {}
    for i, choice in enumerate(group, 1):
        progress(f"compiling {choice.label} ({i} of {len(group)})")
        kernels[choice.label], read_off[choice.label] = study.runner(op.spec, arguments, choice)
    progress(f"timing {len(group)} kernels on {n} elements, pointers {'aligned' if group[0].aligned else 'off by one element'}")
    found = race(
        kernels,
        make,
        op.cost(*arguments.values()),
        reference=_correct.reference(op),
        check=_correct.strict,
        name=op.qualified_name,
        device=where,
        ceilings=roof,
        **_RULE,
    )
    for choice in group:
        m = found[choice.label]
        yield _row(
            op,
            dtype,
            target,
            choice,
            read_off[choice.label],
            n=n,
            seconds=m.seconds.median if m.seconds and m.verdict != "INVALID" else None,
            gbps=m.bandwidth / 1e9 if m.bandwidth else None,
            share_of_ceiling=m.share_of_ceiling,
            verdict=m.verdict if m.ok else f"{m.verdict}: {'; '.join(m.reasons)}",
            environment=m.environment,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def recorded(op: str, dtype: str) -> Sweep | None:
    """The committed rows of an op, measured on our own device; the newest file that has them."""
    folder = resources.files("rafters.roofline") / "recorded"
    files = [f for f in folder.iterdir() if f.name.endswith((".json", ".jsonl"))] if folder.is_dir() else []
    found = None
    for file in sorted(files, key=lambda f: f.name):
        try:
            records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        except ValueError as error:
            raise RaftersError(f"recorded file {file.name} is damaged: {error}") from error
        rows = [SweepRow.from_json(r) for r in records if isinstance(r, dict) and r.get("type") == "sweep"]
        rows = [r for r in rows if r.op == op and r.dtype == dtype]
        if rows:
            machine = next((r for r in records if r.get("type") == "environment"), None)
            chosen = next((tuple(r["chosen"]) for r in records if r.get("type") == "sweep_of" and r["op"] == op), (1024, 4))
            found = Sweep(tuple(rows), chosen, Environment.from_json(machine) if machine else None, recorded=True)
    return found
