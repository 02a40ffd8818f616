"""`check(op)`: everything that an op promises, on the device that is there and on the kernels that can be run without one."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from rafters.dtypes import FLOAT8
from rafters.errors import RaftersError
from rafters.operator.from_kernel import FromKernel
from rafters.operator.op import Op
from rafters.testing import assembly, citizen, drawing, gradient_checks, interpreter, kernel_checks, promotions
from rafters.testing.calls import Call, listed_call, takes_any_shapes
from rafters.testing.cases import CASES
from rafters.testing.drawing import Space
from rafters.testing.examine import LAST_BLOCK, Bounds, Refused, on_device, promised
from rafters.testing.kernel_checks import dtypes_for, listed, space_of
from rafters.testing.layouts import FAR
from rafters.testing.report import FAILED, PASSED, SKIPPED, Outcome, Report, merged
from rafters.testing.torture import RUNS, Torture
from rafters.testing.worker import Worker

# Checks that fall out of every call, on the device and of interpreted kernels; and those that only kernels are asked.
VALUES = (
    RUNS, "guard zones", "every element written", "inputs unchanged", "NaN and infinities", "values", "argument strides",
    "alignment", "broadcasting", "numbers", LAST_BLOCK, kernel_checks.OFFSETS, kernel_checks.BATCH,
)  # fmt: skip
KERNELS = (*VALUES, *kernel_checks.AS_GRADIENTS.values())
GRADIENTS: dict[str, Any] = {
    "gradient": gradient_checks.gradient,
    "gradient of broadcast arguments": gradient_checks.gradient,
    "stride-0 and strided gradients": gradient_checks.strided,
    "subsets of gradients": gradient_checks.subsets,
    "double gradient": gradient_checks.double,
    "forward mode": gradient_checks.forward,
    "gradient in bfloat16": gradient_checks.narrow,
}
CITIZEN: dict[str, Any] = {
    "repeated calls": citizen.repeated,
    "result strides": citizen.result_strides,
    "out=": citizen.into_out,
    "overlap refused": citizen.overlap,
    "fake tensors": citizen.fake,
    "threads": citizen.in_threads,
    "graph replay": citizen.replayed,
}


class Checker:
    """Checks ops one after another, with one process that interprets kernels for all of them. Use it in a `with`."""

    def __init__(
        self, quick: bool = False, device: str | None = None, bounds: Bounds | None = None, only: Sequence[str] = ()
    ) -> None:
        self.quick, self.bounds, self.only = quick, bounds or Bounds(), tuple(only)
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._worker = Worker(quick, self.bounds, self.only) if self.device == "cpu" and not interpreter.active() else None

    def __enter__(self) -> "Checker":
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.close()

    def ahead(self, ops: Sequence[Op]) -> None:
        """Lets the kernels of these ops be interpreted while others are checked."""
        for op in ops:
            if self._worker is not None and self._asked(*KERNELS):
                self._worker.ask(op)

    def check(self, op: Op) -> Report:
        """Every promise of one op."""
        if not isinstance(op, Op):
            raise RaftersError(f"check: got {type(op).__name__}, wanted an op (what @rafters.elementwise and its like make)")
        start = time.perf_counter()
        self.ahead([op])
        found: list[Outcome] = []
        for part in (self._values, self._citizen, self._gradients, self._compiled, self._assembly, self._kernels):
            found += part(op)
        broken = [o for o in merged(found) if o.check == RUNS and o.status == FAILED]  # said even where it was not asked
        outcomes = [o for o in merged(found) if not self.only or o.check in self.only or o in broken]
        where = "cpu" if self.device == "cpu" else torch.cuda.get_device_name()
        return Report(op.qualified_name, where, tuple(outcomes), time.perf_counter() - start)

    def _asked(self, *names: str) -> bool:
        """Is any of these checks wanted?"""
        return not self.only or bool(set(names) & set(self.only))

    @property
    def _path(self) -> str:
        return "CPU" if self.device == "cpu" else "GPU"

    # -- values on the device --------------------------------------------------------------------------------------------------

    def _values(self, op: Op) -> Iterator[Outcome]:
        gpu = self.device != "cpu"
        count = (4 if gpu else 16) if self.quick else (24 if gpu else 250)

        def torture(space: Space) -> Torture:
            seconds = 0.6 if self.quick else 15.0
            return Torture(op, self._path, on_device, space, self.device, self.bounds, seconds, only=self.only)

        if self._asked("promotion"):
            yield promotions.promotions(op)
        if not self._asked(*VALUES):
            return
        dtypes = _floats_first(dtypes_for(op))
        whole = space_of(op, dtypes)
        yield from torture(whole).outcomes(self._listed(op, dtypes), count)
        if takes_any_shapes(op) and len(op.spec.tensors) > 1 and not op.spec.rowwise:
            yield from torture(replace(whole, numbers=True, layouts=("contiguous",))).outcomes([], count // 3)
        if gpu:
            yield from self._on_gpu(op, dtypes, torture)
        if op.spec.rowwise and takes_any_shapes(op) and gpu:
            yield from self._rows(op, dtypes)

    def _listed(self, op: Op, dtypes: Sequence[torch.dtype]) -> list[Call]:
        names = kernel_checks.LISTED[:4] if self.quick and self.device != "cpu" else kernel_checks.LISTED
        calls = listed(op, dtypes[0], names)
        return calls + [c for dtype in dtypes[1:] for c in listed(op, dtype, ("1025",))]

    def _on_gpu(self, op: Op, dtypes: Sequence[torch.dtype], torture: Callable[[Space], Torture]) -> Iterator[Outcome]:
        ends = Space(tuple(dtypes[:1]), ("contiguous",), ("counting",), False, ranks=(1, 1), label=LAST_BLOCK)
        yield from torture(ends).outcomes([kernel_checks._ending(op, n, dtypes[0]) for n in kernel_checks.ENDS], 0)
        if self.quick or not takes_any_shapes(op):
            return
        narrow = min((d for d in dtypes if d not in FLOAT8), key=lambda d: d.itemsize)
        wanted = 16 * 2**30 * narrow.itemsize
        if torch.cuda.mem_get_info()[0] < wanted:
            yield Outcome(kernel_checks.OFFSETS, "GPU", SKIPPED, reason=f"needs {wanted >> 30} GiB of free memory")
            return
        space = Space((narrow,), (FAR,), ("counting",), False, sizes=(2, 3), ranks=(2, 3), label=kernel_checks.OFFSETS)
        yield from torture(space).outcomes(kernel_checks._apart(op, narrow), 0)
        torch.cuda.empty_cache()

    def _rows(self, op: Op, dtypes: Sequence[torch.dtype]) -> Iterator[Outcome]:
        start = time.perf_counter()

        def run(arguments: Sequence[Any]) -> Sequence[torch.Tensor]:
            made = op(*arguments)
            return made if isinstance(made, tuple) else (made,)

        faults = kernel_checks.rows_differ(op, dtypes[0], self.device, run)
        status = FAILED if faults else PASSED
        yield Outcome(kernel_checks.BATCH, "GPU", status, 1, time.perf_counter() - start, "; ".join(faults))

    # -- what PyTorch expects --------------------------------------------------------------------------------------------------

    def _citizen(self, op: Op) -> Iterator[Outcome]:
        if not self._asked(*CITIZEN, "opcheck", "empty"):
            return
        gpu = self.device != "cpu"  # where every layout is a compile
        calls = self._calls(op, _floats_first(dtypes_for(op)), 6 if self.quick else 12 if gpu else 60)
        finite = self._calls(
            op, _floats_first(dtypes_for(op))[:3], 2, values=("counting", "ordinary")
        )  # opcheck knows no equal NaN
        for name, check in {**CITIZEN, "opcheck": citizen.opcheck(self.quick)}.items():
            if self._asked(name):
                chosen = finite if name == "opcheck" else calls
                few = name in ("opcheck", "threads", "graph replay")
                yield citizen.judged(name, "PyTorch", check, op, chosen[: (1 if self.quick else 4) if few else None], self.device)
        if self._asked("empty"):
            calls = (
                [listed_call(op, CASES[n].operands, dtypes_for(op)[-1], "counting") for n in ("0", "3x0x5")]
                if takes_any_shapes(op)
                else []
            )
            yield citizen.judged("empty", "PyTorch", citizen.empty, op, calls, self.device)

    def _calls(self, op: Op, dtypes: Sequence[torch.dtype], count: int, **options: Any) -> list[Call]:
        """Named situations and drawn calls that the op takes."""
        space = replace(space_of(op, dtypes), **options)
        first = listed(op, dtypes[0], ("pitched rows", "transposed beside contiguous", "broadcast both ways", "17x129"))
        taken = []
        for call in [*(first if not options else []), *drawing.drawn(op, space, count)]:
            try:
                promised(call, call.make())
            except Refused:
                continue
            taken.append(call)
        return taken

    # -- gradients -------------------------------------------------------------------------------------------------------------

    def _gradients(self, op: Op) -> Iterator[Outcome]:
        if not self._asked(*GRADIENTS):
            return
        if torch.float64 not in dtypes_for(op):
            yield Outcome("gradient", "PyTorch", SKIPPED, reason="it takes no float64 arguments")
            return
        count = 2 if self.quick or self.device != "cpu" else 12
        small = {
            "elements": 12, "long": 7, "sizes": (2, 3, 1, 4), "ranks": (1, 3), "values": ("smooth",), "outside": False,
            "varied": False,
        }  # fmt: skip
        double = (torch.float64,)
        same = self._calls(op, double, count, broadcast=False, layouts=("contiguous", "transposed", "pitched"), **small)
        apart = self._calls(op, double, 4 * count, layouts=("contiguous", "transposed"), **small)
        apart = [c for c in apart if len({t.shape for t in c.tensors}) > 1][: 2 * count]
        narrow = self._calls(op, (torch.bfloat16,), count, **{**small, "layouts": ("contiguous",)})
        for name, check in GRADIENTS.items():
            calls = {"gradient": same, "double gradient": apart[:2] or same[:2], "gradient in bfloat16": narrow}.get(
                name, apart if name == "gradient of broadcast arguments" else [*apart[:count], *same[:count]]
            )
            if name == "gradient of broadcast arguments" and (isinstance(op.form, FromKernel) or len(op.spec.tensors) < 2):
                continue
            if self._asked(name):
                yield citizen.judged(name, "PyTorch", check, op, calls, self.device)

    # -- compiled --------------------------------------------------------------------------------------------------------------

    def _compiled(self, op: Op) -> Iterator[Outcome]:
        if not self._asked("torch.compile"):
            return
        dtypes = [d for d in _floats_first(dtypes_for(op)) if d.itemsize > 1][: 1 if self.quick else 3] or list(dtypes_for(op))[
            :1
        ]
        # fused by Inductor an op has PyTorch's own accuracy, which at the ends of the range is less than ours
        calls = self._calls(op, dtypes, 2 if self.quick else 6, values=("ordinary", "counting"))
        backend = "aot_eager" if self.quick else "inductor"
        if backend == "inductor" and self.device == "cpu" and not _has_compiler():
            backend = "aot_eager"
        yield citizen.judged(
            "torch.compile", backend, citizen.compiled(backend), op, calls[: 1 if self.quick else 6], self.device
        )

    # -- kernels ---------------------------------------------------------------------------------------------------------------

    def _assembly(self, op: Op) -> Iterator[Outcome]:
        if interpreter.active():
            yield Outcome("access width", assembly.ASSEMBLY, SKIPPED, reason="this process interprets kernels, it compiles none")
        elif self._asked("access width", "no spills", "dependent launch waits", "index width"):
            # other GPUs are as well looked at where there is none
            yield from assembly.checked(op, self.quick, assembly.QUICK if self.quick or self.device != "cpu" else assembly.FULL)

    def _kernels(self, op: Op) -> Iterator[Outcome]:
        if not self._asked(*KERNELS):
            return
        if interpreter.active():
            yield from kernel_checks.checked(op, self.quick, self.bounds, only=self.only)
        elif self._worker is not None:
            yield from self._worker.answer(op)


def _floats_first(dtypes: Sequence[torch.dtype]) -> tuple[torch.dtype, ...]:
    """float32 first, 16-bit floats, then the others: what stands first is asked most."""
    return tuple(
        sorted(dtypes, key=lambda d: (d is not torch.float32, not d.is_floating_point, d.itemsize == 1, d.itemsize, str(d)))
    )


def _has_compiler() -> bool:
    import shutil

    return any(shutil.which(c) for c in ("g++", "clang++", "c++"))


def check(
    op: Op, *, quick: bool = False, device: str | None = None, ulp: float | None = None, only: Sequence[str] = ()
) -> Report:
    """Everything that an op promises: values, memory, strides, gradients, torch.compile and its kernels; ours or yours.

        report = rafters.testing.check(my_op)
        assert report.ok, report

    quick: a few seconds. device: "cuda" where there is one, else "cpu" (kernels are then run by Triton's interpreter).
    ulp: how many units in the last place results may be off, where that is more than 1 of 16-bit results, 4 of wider ones and twice
        the error of the same maths in PyTorch operations.
    only: names of checks.
    """
    with Checker(quick, device, Bounds(ulp, ulp), only) as checker:
        return checker.check(op)
