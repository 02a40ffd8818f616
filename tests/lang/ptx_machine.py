"""Runs the PTX of an elementwise kernel on arrays, bit for bit, with no device.

Code without loops only (that is what a word compiles to), 32-bit values only, one array element a thread. Every instruction
that PTX defines exactly is exact here; `ex2.approx` and its like, which PTX bounds only, are the exact value moved by a chosen
number of ulp. An unknown instruction is an error, never a guess.
"""

import re

import numpy as np

F32, F64, U32, I32 = np.float32, np.float64, np.uint32, np.int32
_BASE = 40  # parameter i is the address (i + 1) << 40


def fma32(x, y, z):
    """x * y + z in float32 with one rounding: the float64 sum is rounded to odd, after which the cast is right."""
    product = x.astype(F64) * y.astype(F64)  # exact: 48 bits
    z = z.astype(F64)
    total = product + z
    back = total - product
    lost = (product - (total - back)) + (z - back)
    bits = total.view(np.int64)
    nudge = np.isfinite(total) & (lost != 0) & ((bits & 1) == 0)
    bits = bits + np.where(nudge, np.where((lost > 0) == (total > 0), 1, -1), 0)
    return bits.view(F64).astype(F32)


def move_ulps(x, ulps):
    """x moved by `ulps` units of its own last place (float32)."""
    return (x.astype(F64) + ulps * np.spacing(np.abs(x)).astype(F64)).astype(F32)


def _extremum(pick, nan_wins):
    def op(x, y):
        x, y = np.broadcast_arrays(x, y)
        low = np.signbit(x) if pick is np.fmin else ~np.signbit(x)
        out = np.where((x == y), np.where(low, x, y), pick(x, y))  # -0 is below +0
        return np.where(np.isnan(x) | np.isnan(y), F32(np.nan), out) if nan_wins else out

    return op


def _ex2(x):
    return np.exp2(x.astype(F64)).astype(F32)


_FLOAT = {
    "add.rn": lambda x, y: x + y,
    "add": lambda x, y: x + y,
    "sub.rn": lambda x, y: x - y,
    "sub": lambda x, y: x - y,
    "mul.rn": lambda x, y: x * y,
    "mul": lambda x, y: x * y,
    "fma.rn": fma32,
    "div.rn": lambda x, y: x / y,
    "sqrt.rn": np.sqrt,
    "rcp.rn": lambda x: F32(1) / x,
    "abs": np.abs,
    "neg": lambda x: -x,
    "max": _extremum(np.fmax, False),
    "min": _extremum(np.fmin, False),
    "max.NaN": _extremum(np.fmax, True),
    "min.NaN": _extremum(np.fmin, True),
    "cvt.rmi": np.floor,
    "cvt.rpi": np.ceil,
    "cvt.rni": np.rint,
    "copysign": lambda x, y: np.copysign(y, x),
}
_INT = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "not": lambda x: ~x,
    "mul.lo": lambda x, y: x * y,
}
_COMPARE = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal}


class Machine:
    """`Machine(ptx)(out_dtype, *arrays)`: what the kernel stores to its last argument, the arrays being the others."""

    def __init__(self, ptx, approx_ulps=0.0):
        """`approx_ulps`: how far the approximate instructions are off, one number for all or one for each by name."""
        self.approx_ulps = approx_ulps
        body = ptx[ptx.index("{", ptx.index(".entry")) + 1 :]
        body = re.sub(r"//[^\n]*", "", body[: body.index("$L__func_end")])
        lines = (line.strip() for line in body.replace(";", ";\n").splitlines())
        lines = [line.rstrip(";").strip() for line in lines if line and not line.startswith((".", "$L__tmp", "}"))]
        self.lines = [line.replace("\t", " ") for line in lines if line]

    def __call__(self, out_dtype, *arrays):
        self.size = arrays[0].size
        self.memory = [*(np.ascontiguousarray(a).view(U32) for a in arrays), np.zeros(self.size, U32)]
        self.registers, self.predicates = {}, {}
        self.active, waiting = None, {}  # lanes that run; lanes that jumped forward to a label
        with np.errstate(all="ignore"):
            for line in self.lines:
                jump = re.fullmatch(r"(?:@(!?)(%p\d+) )?bra(?:\.uni)? +(\S+)", line)
                if line.startswith("$"):
                    active = self._lanes() | waiting.pop(line.rstrip(":"), False)
                    self.active = None if active.all() else active
                elif jump:
                    taken = self._lanes()
                    if jump[2]:
                        taken = taken & (self.predicates[jump[2]] != (jump[1] == "!"))
                    waiting[jump[3]] = waiting.get(jump[3], False) | taken
                    self.active = self._lanes() & ~taken
                elif line != "ret":
                    self._step(line)
        return self.memory[-1].view(out_dtype)

    def _lanes(self):
        return np.ones(self.size, bool) if self.active is None else self.active

    def _read(self, name, dtype):
        if match := re.fullmatch(r"0f([0-9A-F]{8})", name):
            value = np.array([int(match[1], 16)], U32)
        elif name in self.registers:
            value = self.registers[name]
        elif name == "%tid.x":
            value = (np.arange(self.size) % 128).astype(U32)
        elif name == "%ctaid.x":
            value = (np.arange(self.size) // 128).astype(U32)
        else:
            value = np.array([int(name, 0) & 0xFFFFFFFF], U32)
        return value.view(dtype) if dtype is not np.int64 else value.astype(np.int64)

    def _write(self, name, value):
        value = np.asarray(value)
        value = value if value.dtype == np.int64 else value.view(U32)
        if self.active is not None and name in self.registers:
            value = np.where(self.active, value, self.registers[name])
        self.registers[name] = value

    def _step(self, line):
        code, _, rest = line.partition(" ")
        args = [a.strip() for a in re.sub(r"[{}]", "", rest).split(",")]
        parts = code.split(".")
        kind = parts[-1]
        name = ".".join(parts[:-1])
        if code.startswith("@"):
            raise NotImplementedError(f"predicated code: {line}")
        if name.startswith("ld.param"):
            self.registers[args[0]] = np.array([(int(re.search(r"param_(\d+)", args[1])[1]) + 1) << _BASE], np.int64)
        elif name.startswith(("ld.global", "st.global")):
            self._access(name, args)
        elif name == "mov":
            self._write(args[0], self._read(args[1], np.int64 if kind == "b64" else U32))
        elif name.startswith("mul.wide"):
            self.registers[args[0]] = self._read(args[1], I32).astype(np.int64) * int(args[2])
        elif name.startswith("mad.wide"):
            self.registers[args[0]] = self._read(args[1], I32).astype(np.int64) * int(args[2]) + self.registers[args[3]]
        elif name == "shl" and kind == "b64":
            self.registers[args[0]] = self.registers[args[1]] << int(args[2])
        elif code == "cvt.s64.s32":
            self.registers[args[0]] = self._read(args[1], I32).astype(np.int64)
        elif name == "add" and kind == "s64":
            self.registers[args[0]] = self.registers[args[1]] + self.registers[args[2]]
        elif parts[0] == "setp":
            self._compare(parts, args)
        elif parts[0] in ("and", "or", "not", "xor") and kind == "pred":
            self.predicates[args[0]] = _INT[parts[0]](*(self.predicates[a] for a in args[1:]))
        elif parts[0] == "selp":
            picked = np.where(self.predicates[args[3]], self._read(args[1], U32), self._read(args[2], U32))
            self._write(args[0], picked)
        elif parts[0] in ("shl", "shr"):
            dtype = I32 if kind == "s32" else U32
            value, by = self._read(args[1], dtype), int(args[2])
            self._write(args[0], value << dtype(by) if parts[0] == "shl" else value >> dtype(by))
        elif parts[0] in ("ex2", "lg2", "rcp", "rsqrt", "div") and parts[1] in ("approx", "full"):
            self._approximate(parts, args)
        elif name == "cvt.rn.f32":
            self._write(args[0], self._read(args[1], I32).astype(F32))
        elif name.startswith(("cvt.rzi", "cvt.rni.s32")):
            raise NotImplementedError(line)
        elif kind == "f32" and name.removesuffix(".f32") in _FLOAT:
            result = _FLOAT[name.removesuffix(".f32")](*(self._read(a, F32) for a in args[1:]))
            self._write(args[0], np.asarray(result, F32))
        elif kind == "s32" and name in ("max", "min"):
            pick = np.maximum if name == "max" else np.minimum
            self._write(args[0], pick(*(self._read(a, I32) for a in args[1:])))
        elif kind in ("b32", "s32", "u32") and name in _INT:
            self._write(args[0], _INT[name](*(self._read(a, U32) for a in args[1:])))
        else:
            raise NotImplementedError(line)

    def _access(self, name, args):
        store = name.startswith("st")
        address, value = (args[0], args[1]) if store else (args[1], args[0])
        match = re.fullmatch(r"\[\s*(%rd\d+)\s*(?:\+\s*(\d+))?\s*\]", address)
        where = self.registers[match[1]] + int(match[2] or 0)
        buffer = self.memory[int(where[0] >> _BASE) - 1]
        index = (where & ((1 << _BASE) - 1)) // 4
        if store:
            buffer[index] = np.broadcast_to(self._read(value, U32), index.shape)
        else:
            self.registers[value] = buffer[index]

    def _compare(self, parts, args):
        float_kind = parts[-1] == "f32"
        x, y = (self._read(a, F32 if float_kind else I32 if parts[-1] == "s32" else U32) for a in args[1:3])
        unordered = np.isnan(x) | np.isnan(y) if float_kind else np.zeros(1, bool)
        test = parts[1]
        if test in ("nan", "num"):
            result = unordered if test == "nan" else ~unordered
        elif test.endswith("u") and test[:-1] in _COMPARE:
            result = unordered | _COMPARE[test[:-1]](x, y)
        else:
            result = _COMPARE[test](x, y) & ~unordered
        if len(args) == 4:  # setp.lt.and.f32 p, a, b, q
            result = {"and": np.logical_and, "or": np.logical_or}[parts[2]](result, self.predicates[args[3]])
        self.predicates[args[0]] = result

    def _approximate(self, parts, args):
        x = [self._read(a, F32) for a in args[1:]]
        flush = "ftz" in parts
        if flush:
            x = [np.where(np.abs(v) < F32(2**-126), np.copysign(F32(0), v), v) for v in x]
        exact = {
            "ex2": lambda v: np.exp2(v.astype(F64)),
            "lg2": lambda v: np.log2(v.astype(F64)),
            "rcp": lambda v: 1.0 / v.astype(F64),
            "rsqrt": lambda v: 1.0 / np.sqrt(v.astype(F64)),
            "div": lambda v, w: v.astype(F64) / w.astype(F64),
        }[parts[0]](*x)
        result = exact.astype(F32)
        ulps = self.approx_ulps[parts[0]] if isinstance(self.approx_ulps, dict) else self.approx_ulps
        if ulps:
            moved = move_ulps(result, ulps)
            result = np.where(np.isfinite(result) & (result != 0) & (exact != result), moved, result)
        if flush:
            result = np.where(np.abs(result) < F32(2**-126), np.copysign(F32(0), result), result)
        self._write(args[0], result)
