"""Compiles the variants of an op for a target that need not be here, and tells what each does to memory."""

from collections.abc import Container, Iterator
from typing import Any

import torch

from rafters.dtypes import dtype_name
from rafters.engine import variant
from rafters.engine.call import resolve
from rafters.engine.layouts.form import COLUMN, TILE
from rafters.engine.layouts.layout import Layout
from rafters.engine.prepare import prepare
from rafters.engine.results import outputs_of
from rafters.engine.spec import CONSTEXPR, INDEX, SCALAR, Spec
from rafters.engine.study.facts import Facts, facts
from rafters.engine.target import Target
from rafters.errors import RaftersError

Situation = tuple[str, dict[str, Any], dict[str, int]]


def situations(spec: Spec, dtype: torch.dtype) -> Iterator[Situation]:
    """(name, arguments, addresses) of the calls that together need every kind of variant; tensors are on the meta device."""
    rows, cols = 1000, 4096
    yield "contiguous", _arguments(spec, dtype, (rows, cols)), {}
    yield "contiguous, unaligned", _arguments(spec, dtype, (rows, cols)), {p.name: dtype.itemsize for p in spec.tensors}
    several = len([p for p in spec.tensors if p.kind != INDEX and not p.optional]) > 1
    if several and not spec.rowwise and not any(v.rows for v in spec.views.values()):
        for length in (cols, 3420, 4097):
            yield f"vector of the last dimension, {length}", _arguments(spec, dtype, (rows, length), last="vector"), {}
        yield "one value a row", _arguments(spec, dtype, (rows, cols), last="row"), {}
        yield "transposed operand", _arguments(spec, dtype, (rows, cols), last="transposed"), {}
    yield "strided rows", _arguments(spec, dtype, (rows, cols), first="pitched"), {}
    if not spec.rowwise:
        yield "three strided dimensions", _arguments(spec, dtype, (8, 100, cols), first="pitched"), {}
    yield "more than 2^31 elements", _arguments(spec, dtype, (1 << 20, cols)), {}


def _arguments(spec: Spec, dtype: torch.dtype, shape: tuple[int, ...], first: str = "", last: str = "") -> dict[str, Any]:
    """Meta tensors for every parameter: the first and the last tensor as asked, the rest dense."""
    tensors = [p for p in spec.tensors if p.kind != INDEX]
    rowwise_vectors = spec.rowwise
    result: dict[str, Any] = {}
    for p in spec.parameters:
        own = torch.bool if spec.accepts.get(p.name) == "bool" else dtype
        if p.kind == INDEX:
            result[p.name] = torch.empty(shape[0], dtype=torch.int64, device="meta")
        elif p.kind in (SCALAR, CONSTEXPR):
            result[p.name] = p.default if p.default is not ... else (p.type or int)(2)
        elif p is tensors[0]:
            result[p.name] = _pitched(shape, own) if first == "pitched" else torch.empty(shape, dtype=own, device="meta")
        elif rowwise_vectors:
            result[p.name] = torch.empty(shape[-1], dtype=own, device="meta")
        elif p is tensors[-1] and last:
            result[p.name] = {
                "vector": lambda own=own: torch.empty(shape[-1], dtype=own, device="meta"),
                "row": lambda own=own: torch.empty(*shape[:-1], 1, dtype=own, device="meta"),
                "transposed": lambda own=own: torch.empty(shape[::-1], dtype=own, device="meta").t(),
            }[last]()
        else:
            result[p.name] = torch.empty(shape, dtype=own, device="meta")
    return result


def _pitched(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Rows with a gap behind each: a slice of a wider tensor; a gap between planes as well."""
    wide = (*(n + 1 for n in shape[:-1]), shape[-1] * 2)
    return torch.empty(wide, dtype=dtype, device="meta")[tuple(slice(n) for n in shape)]


def inspect(
    spec: Spec, target: Target, dtype: torch.dtype, pdl: bool | None = None, names: Container[str] | None = None
) -> list[dict[str, Any]]:
    """One record a variant: layout, aligned, index_bits, dtype, source, hot, registers, spill_bytes, mul64, pdl, reduce_layout.

    `names`: the situations to look at, if not all.
    """
    records = []
    seen: set[Any] = set()
    for name, arguments, addresses in situations(spec, dtype):
        if names is not None and name not in names:
            continue
        resolved = resolve(spec, arguments)
        outputs = outputs_of(spec, resolved)
        use_pdl = target.has_pdl if pdl is None else pdl and target.has_pdl
        where = addresses | {p.argument: dtype.itemsize for p in outputs if addresses}
        (made, typing), laid = prepare(spec, resolved, outputs, arguments, (), target, use_pdl, addresses=where)
        if made.key in seen:
            continue
        seen.add(made.key)
        try:
            compiled = variant.compile_recipe(made)
        except RaftersError as problem:
            records.append({"situation": name, "layout": laid.form.layout, "error": str(problem)})
            continue
        runtime = [n for n, kind in made.signature if kind != "constexpr"]
        varying = {s.name for s in laid.form.memory if s.kind in (TILE, COLUMN)}
        records.append(record(name, made.text, laid, typing, dtype, facts(compiled, runtime), varying))
    return records


def record(
    name: str, text: str, laid: Layout, typing: variant.Typing, dtype: torch.dtype, found: Facts, varying: set[str]
) -> dict[str, Any]:
    """What is said of one variant; `varying` are the operands that vary along the last dimension, whose access width counts."""
    loads = [bits for operand, bits in found.hot.loads.items() if operand in varying or operand == "*"]
    rows_aligned = not _columns(laid) or laid.arguments["cols"].divisor * dtype.itemsize >= 16
    aligned = rows_aligned and all(bytes_ >= 16 for bytes_ in laid.align.values())
    return {
        "situation": name,
        "layout": laid.form.layout,
        "walk": laid.form.walk,
        "aligned": aligned,
        "index_bits": 64 if laid.wide else 32,
        "dtype": dtype_name(dtype),
        "dtypes": {n: dtype_name(d) for n, d in typing.memory.items()},
        "source": text,
        "hot": {
            "load_bits": min(loads, default=0),
            "store_bits": min(found.hot.stores.values(), default=0),
            "predicated": found.hot.predicated,
            "loads": found.hot.loads,
            "stores": found.hot.stores,
        },
        "registers": found.registers,
        "spill_bytes": found.spill_bytes,
        "mul64": found.mul64,
        "pdl": found.pdl,
        "wait_first": found.wait_first,
        "reduce_layout": found.reduce_layout,
    }


def _columns(laid: Layout) -> bool:
    return any(s.kind == COLUMN for s in laid.form.memory)
