"""Writes the kernel of a form, as a person would have written it.

Names in a kernel: `i_` a program's index, `o` offsets, `r` rows, `c` columns, `m` masks, `x_ptr` a pointer, `x_s0` a stride, plain
names for values, UPPER for compile-time parameters.
"""

from collections.abc import Callable, Sequence

from rafters.engine.layouts.form import (
    ABSENT,
    COLUMN,
    CONSTEXPR,
    LINEAR,
    NUMBER,
    POINT,
    ROW,
    ROWS,
    SUMMED,
    TILE,
    WHOLE_ROWS,
    Form,
    Slot,
)

Compute = Callable[[str], list[str]]  # the mask of the arm ("" where there is none) -> the lines that make the outputs

_HEADER = '''\
"""{title}

{doc}
Written by rafters {version}.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
{imports}

@triton.jit
def {kernel}(
    {arguments},
):
'''

_DOCS = {
    "flat": "Every operand is dense in one order, so the kernel walks memory as one dimension.",
    "rows": "Rows and columns: vectors of the last dimension and one value a row are broadcast.",
    "strided": "Any strides: the two innermost dimensions in tiles, the outer ones from the program's index.",
}
_SPLIT = "A full block needs no mask, so that its accesses stay 128 bits wide for every size; only the last block pays for one."

_SUMS = "A program walks down STEPS tiles, loads of STAGES in flight, and leaves one sum for them; full tiles need no mask."


def kernel_name(op: str, form: Form) -> str:
    return f"{op}_{form.layout}_{'sum_' if form.walk == SUMMED else ''}kernel"


def arguments(form: Form) -> list[str]:
    """Names of the run-time arguments, in order."""
    names = [f"{s.name}_ptr" for s in form.memory]
    names += [s.name for s in form.inputs if s.kind == NUMBER]
    if form.walk == LINEAR:
        names.append("n")
        if form.layout == ROWS:
            names.append("cols")
            names += [f"{s.name}_s1" for s in form.memory if s.kind == COLUMN] + [
                f"{s.name}_s0" for s in form.memory if s.kind == ROW
            ]
        return names
    names += ["rows", "cols", *(f"n{k}" for k in range(form.outer))]
    for s in form.memory:
        names += [f"{s.name}_o{k}" for k in range(form.outer)]
        names += [f"{s.name}_s0"] if s.kind in (TILE, ROW) or s.summed else []
        names += [f"{s.name}_s1"] if s.kind in (TILE, COLUMN) or s.summed else []
        names += [f"{s.name}_sx", f"{s.name}_nx"] if s.index else []
    return names


def compile_time(form: Form) -> list[str]:
    """Names of the compile-time parameters, in order."""
    names = [s.name for s in form.inputs if s.kind == CONSTEXPR]
    names += [f"{s.name.upper()}_AS" for s in (*form.inputs, *form.outputs) if s.in_memory]
    names += [f"{s.name.upper()}_SUM" for s in form.outputs if s.summed]
    names += [f"{s.name.upper()}_MISSING" for s in form.inputs if s.index]
    names += ["BLOCK", "INDEX"] if form.walk == LINEAR else ["ROWS", "COLS", "INDEX"]
    names += ["STEPS", "STAGES"] if form.walk == SUMMED else []
    names += ["WRAP"] if form.walk == LINEAR and form.layout == ROWS else []
    return [*names, "PDL"]


def body_call(form: Form, returned: Sequence[str]) -> Compute:
    """The compute part of an elementwise kernel: it calls the user's own function."""
    passed = ", ".join("None" if s.kind == ABSENT else s.name for s in form.inputs)
    return lambda _mask: [f"{', '.join(returned)} = body({passed})"]


def module_text(op: str, form: Form, compute: Compute, title: str, version: str, imports: str = "") -> str:
    """The whole generated module."""
    doc = _DOCS[form.layout] + (
        f"\n{_SUMS}" if form.walk == SUMMED else f"\n{_SPLIT}" if form.split and form.walk != WHOLE_ROWS else ""
    )
    declared = [*arguments(form), *(f"{name}: tl.constexpr" for name in compile_time(form))]
    head = _HEADER.format(
        title=title, doc=doc, version=version, kernel=kernel_name(op, form), arguments=",\n    ".join(declared), imports=imports
    )
    write = {LINEAR: _linear, SUMMED: _summed}.get(form.walk, _tiled)
    lines = write(form, compute)
    return head + "\n".join(f"    {line}".rstrip() for line in lines) + "\n"


def _indent(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _linear(form: Form, compute: Compute) -> list[str]:
    lines = ["i_start = tl.program_id(0).to(INDEX) * BLOCK", "o = i_start + tl.arange(0, BLOCK)"]
    if form.layout == ROWS:
        by_row = any(s.kind == ROW for s in form.memory)
        lines += ["i_row = i_start // cols", "c = (i_start - i_row * cols).to(tl.int32) + tl.arange(0, BLOCK)"]
        lines += ["i_next = tl.minimum(i_row + 1, (n - 1) // cols)"] if by_row else []
        lines += [
            "if WRAP:  # a block no longer than a row crosses at most one row end",
            *(["    m_next = c >= cols"] if by_row else []),
            "    c = tl.where(c >= cols, c - cols, c)",
            "else:",
            *(["    r = i_row + c // cols"] if by_row else []),
            "    c = c % cols",
        ]
    lines += ["if PDL:", "    gdc_wait()"]
    masked = ["m = o < n", *_arm(form, compute, "m")]
    if not form.split:
        return lines + masked
    return [*lines, "if n - i_start >= BLOCK:", *_indent(_arm(form, compute, "")), "else:", *_indent(masked)]


def _program(form: Form, rows_a_program: str) -> list[str]:
    """The program's place: outer dimensions (whose offsets are added to the pointers), block of rows, block of columns."""
    lines = ["i_row = tl.program_id(0).to(INDEX)"]
    if form.walk != WHOLE_ROWS:
        lines += ["col_blocks = tl.cdiv(cols, COLS)", "i_col = i_row % col_blocks", "i_row = i_row // col_blocks"]
    if form.outer:
        lines += [f"row_blocks = tl.cdiv(rows, {rows_a_program})", "i_outer = i_row // row_blocks", "i_row = i_row % row_blocks"]
        for k in reversed(range(1, form.outer)):
            lines += [f"i_{k} = i_outer % n{k}", f"i_outer = i_outer // n{k}"]
        lines += ["i_0 = i_outer"]
        for s in form.memory:
            lines.append(f"{s.name}_ptr += " + " + ".join(f"i_{k} * {s.name}_o{k}" for k in range(form.outer)))
    return lines


def _tiled(form: Form, compute: Compute) -> list[str]:
    whole = form.walk == WHOLE_ROWS
    lines = [*_program(form, "ROWS"), "r = i_row * ROWS + tl.arange(0, ROWS)[:, None]"]
    lines += ["c = tl.arange(0, COLS)[None, :]" if whole else "c = i_col * COLS + tl.arange(0, COLS)[None, :]"]
    lines += ["if PDL:", "    gdc_wait()"]
    masked = ["m_row = r < rows", "m_col = c < cols", "m = m_row & m_col", *_arm(form, compute, "m")]
    if whole or not form.split:
        return lines + masked
    full = "if (rows - i_row * ROWS >= ROWS) & (cols - i_col * COLS >= COLS):"
    return [*lines, full, *_indent(_arm(form, compute, "")), "else:", *_indent(masked)]


def _summed(form: Form, compute: Compute) -> list[str]:
    lines = [
        *_program(form, "ROWS * STEPS"),
        "i_start = i_row * (ROWS * STEPS)",
        "i_stop = tl.minimum(i_start + ROWS * STEPS, rows)",
        "c = i_col * COLS + tl.arange(0, COLS)[None, :]",
        "m_col = c < cols",
        "if PDL:",
        "    gdc_wait()",
    ]
    once = [s for s in form.inputs if s.kind in (COLUMN, POINT) and not s.index]
    lines += [line for s in once for line in _load(form, s, "m", cast=True)]
    lines += [f"{s.name}_total = tl.zeros([ROWS, COLS], {s.name.upper()}_SUM)" for s in form.outputs if _is_walked(s)]
    lines += ["i_full = i_start"]
    lines += ["if cols - i_col * COLS >= COLS:", "    i_full += (i_stop - i_start) // ROWS * ROWS"] if form.split else []
    rows = "r = i + tl.arange(0, ROWS)[:, None]"
    if form.split:
        lines += [
            "for i in tl.range(i_start, i_full, ROWS, num_stages=STAGES):",
            *_indent([rows, *_sum_arm(form, compute, once, "")]),
        ]
    masked = [rows, "m_row = r < rows", "m = m_row & m_col", *_sum_arm(form, compute, once, "m")]
    lines += ["for i in range(i_full, i_stop, ROWS):", *_indent(masked)]
    lines += ["if PDL:", "    gdc_launch_dependents()"]
    for s in form.outputs:
        if _is_walked(s):
            total = f"{s.name}_total, 0, keep_dims=True" if s.kind == COLUMN else f"{s.name}_total"
            needed = ", mask=m_col" if s.kind == COLUMN else ""
            lines.append(f"tl.store({_address(form, s)}, tl.sum({total}).to({s.name.upper()}_AS){needed})")
    return lines


def _is_walked(s: Slot) -> bool:
    """Does its sum grow from tile to tile?"""
    return s.summed and s.kind in (COLUMN, POINT)


def _sum_arm(form: Form, compute: Compute, once: Sequence[Slot], mask: str) -> list[str]:
    lines = [line for s in form.indices for line in _load(form, s, mask, cast=False)]
    lines += [line for s in form.inputs if s.in_memory and s not in once for line in _load(form, s, mask, cast=True)]
    lines += compute(mask)
    for s in form.outputs:
        if not s.in_memory:
            continue
        value = f"tl.where({mask}, {s.name}, 0)" if mask else s.name
        if _is_walked(s):
            lines.append(f"{s.name}_total += tl.cast({value}, {s.name.upper()}_SUM)")
        elif s.summed:  # of a value that may be the same for all columns, there are as many as columns
            total = f"tl.sum(tl.zeros([ROWS, COLS], {s.name.upper()}_SUM) + {value}, 1, keep_dims=True)"
            needed = ", mask=m_row" if mask else ""
            lines.append(f"tl.store({_address(form, s)}, {total}.to({s.name.upper()}_AS){needed})")
        else:
            lines.append(_store(form, s, mask))
    return lines


def _address(form: Form, s: Slot) -> str:
    terms = [f"{s.name}_ptr"]
    if form.walk == LINEAR and s.kind == TILE:
        return f"{s.name}_ptr + o"
    if s.index:
        terms.append(f"{s.index} * {s.name}_sx")
    if s.kind in (TILE, ROW) or s.summed:
        terms.append(f"{'r' if s.kind in (TILE, ROW) else 'i_row'} * {s.name}_s0")
    if s.kind in (TILE, COLUMN) or s.summed:
        terms.append(f"{'c' if s.kind in (TILE, COLUMN) else 'i_col'} * {s.name}_s1")
    return " + ".join(terms)


def _mask(form: Form, s: Slot, mask: str) -> str:
    """The mask of one access: what the arm needs for the dimensions that this operand varies over."""
    if form.walk == LINEAR:
        needed = "" if s.kind in (POINT, COLUMN) else mask
    else:
        needed = {TILE: mask, ROW: mask and "m_row", COLUMN: mask and "m_col", POINT: ""}[s.kind]
    if s.index:
        inside = f"(({s.index} >= 0) & ({s.index} < {s.name}_nx))"
        needed = f"{inside} & {needed}" if needed else inside
    return needed


def _load(form: Form, s: Slot, mask: str, cast: bool) -> list[str]:
    needed = _mask(form, s, mask)
    inside = f", mask={needed}" if needed else ""
    if s.index:
        inside += f", other={s.name.upper()}_MISSING"
    converted = f".to({s.name.upper()}_AS)" if cast else ""
    if form.walk == LINEAR and s.kind == ROW:
        # a block crosses at most one row end: two values do for all its elements
        here, following = (f"tl.load({s.name}_ptr + {row} * {s.name}_s0)" for row in ("i_row", "i_next"))
        return [
            "if WRAP:",
            f"    {s.name} = tl.where(m_next, {following}, {here}){converted}",
            "else:",
            f"    {s.name} = tl.load({_address(form, s)}{inside}){converted}",
        ]
    return [f"{s.name} = tl.load({_address(form, s)}{inside}){converted}"]


def _arm(form: Form, compute: Compute, mask: str) -> list[str]:
    lines = [line for s in form.indices for line in _load(form, s, mask, cast=False)]
    lines += [line for s in form.inputs if s.in_memory for line in _load(form, s, mask, cast=True)]
    lines += ["if PDL:", "    gdc_launch_dependents()", *compute(mask)]
    return [*lines, *(_store(form, s, mask) for s in form.outputs)]


def _store(form: Form, s: Slot, mask: str) -> str:
    needed = _mask(form, s, mask)
    return f"tl.store({_address(form, s)}, {s.name}.to({s.name.upper()}_AS){f', mask={needed}' if needed else ''})"
