"""What a compiled kernel does to memory, read off its assembly; needs no device.

The hot arm is the block of the kernel that moves data without (or with the fewest) predicates: the one that all but the last program
of a grid run.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ACCESS = re.compile(r"^(@!?%p\d+\s+)?(ld|st)\.global((?:\.\w+)*)\s+(.*)$")
_WIDTH = re.compile(r"(?:\.v(\d))?\.[busf](\d+)$")
# A load into shared memory, of rows that are to come; its mask is a size of 0, no predicate.
_COPY = re.compile(r"^(?:@!?%p\d+\s+)?cp\.async\.c[ag]\.shared\.global\S*\s+\[[^\]]*\], \[\s*(%rd\d+)[^\]]*\], (0x[0-9a-f]+|\d+)")
_GLOBAL = re.compile(r"\b(ld\.global|st\.global|atom\.global|red\.global|cp\.async\.c[ag])")


@dataclass(frozen=True)
class Arm:
    """Global accesses of one arm: bits of one access per operand (the narrowest), and how many accesses carry a predicate."""

    loads: dict[str, int]
    stores: dict[str, int]
    predicated: int
    accesses: int


@dataclass(frozen=True)
class Facts:
    """`wait_first` is None without PDL; `predicated`, registers and spills are None where the assembly does not tell."""

    target: str
    hot: Arm
    registers: int | None
    spill_bytes: int | None
    mul64: int
    pdl: bool
    wait_first: bool | None
    reduce_layout: list[str] = field(default_factory=list)


def facts(compiled: Any, arguments: list[str]) -> Facts:
    """Facts of a CompiledKernel; `arguments` names its run-time (not compile-time) arguments in order."""
    reduce_layout = _reduce_layouts(compiled.asm.get("ttgir", ""))
    if "ptx" not in compiled.asm:
        return _amd(compiled, reduce_layout)
    ptx: str = compiled.asm["ptx"]
    wait = ptx.find("griddepcontrol.wait")
    first = _GLOBAL.search(ptx)
    registers, spills = _resources(compiled.asm["cubin"])
    return Facts(
        target=f"sm_{compiled.metadata.target.arch}",
        hot=_hot_arm(ptx, arguments),
        registers=registers,
        spill_bytes=spills,
        mul64=len(re.findall(r"\b(?:mul|mad)\.lo\.[su]64", ptx)),
        pdl=wait >= 0,
        wait_first=None if wait < 0 else first is None or wait < first.start(),
        reduce_layout=reduce_layout,
    )


def _hot_arm(ptx: str, arguments: list[str]) -> Arm:
    owners = _pointer_owners(ptx, arguments)
    arms = []
    for block in re.split(r"^\$L__BB\w+:", ptx, flags=re.MULTILINE):
        loads: dict[str, int] = {}
        stores: dict[str, int] = {}
        predicated = accesses = 0
        for line in block.splitlines():
            if copy := _COPY.match(line.strip()):
                name, bits = owners.get(copy[1], "?"), 8 * int(copy[2], 0)
                loads[name] = min(bits, loads.get(name, bits))
                accesses += 1
                continue
            match = _ACCESS.match(line.strip())
            width = match and _WIDTH.search(match[3])
            if not match or not width:
                continue
            bits = int(width[1] or 1) * int(width[2])
            address = re.search(r"\[\s*(%rd\d+)", match[4])
            name = owners.get(address[1], "?") if address else "?"
            table = loads if match[2] == "ld" else stores
            table[name] = min(bits, table.get(name, bits))
            accesses += 1
            predicated += bool(match[1])
        if stores:
            arms.append(Arm(loads, stores, predicated, accesses))
    # Loads may stand in a block of their own only where nothing splits the kernel; then the store's block has them too.
    return min(arms, key=lambda arm: (arm.predicated, arm.accesses), default=Arm({}, {}, 0, 0))


def _pointer_owners(ptx: str, arguments: list[str]) -> dict[str, str]:
    """Register -> the pointer argument it was computed from, by walking definitions back to the parameters."""
    sources: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for line in ptx.splitlines():
        text = line.strip().rstrip(";")
        if match := re.match(r"ld\.param\.[bu]64\s+(%rd\d+), \[\w+_param_(\d+)\]", text):
            number = int(match[2])
            if number < len(arguments) and arguments[number].endswith("_ptr"):
                owner[match[1]] = arguments[number].removesuffix("_ptr")
        elif match := re.match(r"(?:@!?%p\d+ )?[\w.]+\s+(%rd\d+), (.*)$", text):
            sources.setdefault(match[1], []).extend(re.findall(r"%rd\d+", match[2]))

    def find(register: str, seen: set[str]) -> str | None:
        if register in owner or register in seen:
            return owner.get(register)
        seen.add(register)
        return next((found for s in sources.get(register, ()) if (found := find(s, seen))), None)

    return {register: found for register in {*sources, *owner} if (found := find(register, set()))}


def _resources(cubin: bytes) -> tuple[int | None, int | None]:
    """(registers, bytes of local memory) by cuobjdump, which comes with Triton; (None, None) where it is missing."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    if not tool.exists():
        return None, None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        run = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=False)
    registers, local, stack = (re.search(rf"{name}:(\d+)", run.stdout) for name in ("REG", "LOCAL", "STACK"))
    if not registers:
        return None, None
    return int(registers[1]), int(local[1] if local else 0) + int(stack[1] if stack else 0)


def _reduce_layouts(ttgir: str) -> list[str]:
    """The layouts of the tiles that are reduced, in full: two variants of one op with different ones sum in different orders."""
    named = dict(re.findall(r"^(#\w+) = (#ttg\.\w+<.*>)$", ttgir, flags=re.MULTILINE))
    used = re.findall(r"\"tt\.reduce\".*?\}\) : \(tensor<[^,>]*, (#\w+)>", ttgir, flags=re.DOTALL)
    return sorted({named.get(name, name) for name in used})


def _amd(compiled: Any, reduce_layout: list[str]) -> Facts:
    text: str = compiled.asm["amdgcn"]
    words = {"": 1, "x2": 2, "x3": 3, "x4": 4}
    widths: dict[str, list[int]] = {"load": [], "store": []}
    for kind, size in re.findall(r"(?:global|buffer)_(load|store)_dword(x\d)?\b", text):
        widths[kind].append(32 * words[size])
    for kind in re.findall(r"(?:global|buffer)_(load|store)_(?:short|ushort|ubyte|byte|sshort)", text):
        widths[kind].append(16)
    vgprs, spills = (re.search(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "vgpr_spill_count"))
    hot = Arm({"*": max(widths["load"], default=0)}, {"*": max(widths["store"], default=0)}, 0, sum(map(len, widths.values())))
    return Facts(
        target=str(compiled.metadata.target.arch), hot=hot, registers=int(vgprs[1]) if vgprs else None,
        spill_bytes=4 * int(spills[1]) if spills else None, mul64=len(re.findall(r"v_mul_lo_u64|s_mul_u64", text)), pdl=False,
        wait_first=None, reduce_layout=reduce_layout,
    )  # fmt: skip
