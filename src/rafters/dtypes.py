"""Facts about dtypes: their Triton names, their category, and the dtype in which values are computed."""

import functools

import torch

TRITON_NAMES: dict[torch.dtype, str] = {
    torch.bool: "int1",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float8_e4m3fn: "float8e4nv",
    torch.float8_e5m2: "float8e5",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
SUPPORTED = frozenset(TRITON_NAMES)
FROM_TRITON = {name: dtype for dtype, name in TRITON_NAMES.items()}
SHORT_NAMES: dict[torch.dtype, str] = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float8_e4m3fn: "fp8e4m3",
    torch.float8_e5m2: "fp8e5m2",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}
FLOAT8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})

BOOL, INT, FLOAT = 0, 1, 2


def category(dtype: torch.dtype) -> int:
    """BOOL < INT < FLOAT, as in PyTorch's promotion."""
    if dtype is torch.bool:
        return BOOL
    return FLOAT if dtype.is_floating_point else INT


@functools.cache
def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for half and fp8; every other dtype is computed in itself."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


def parse_dtype(text: str) -> torch.dtype:
    """A dtype from 'bf16', 'bfloat16', 'torch.bfloat16' or Triton's name; ValueError lists what is known."""
    name = text.removeprefix("torch.")
    for dtype, short in SHORT_NAMES.items():
        if name in (short, str(dtype).removeprefix("torch."), TRITON_NAMES[dtype]):
            return dtype
    raise ValueError(f"unknown dtype {text!r}; known: {', '.join(SHORT_NAMES.values())}")


def dtype_name(dtype: torch.dtype) -> str:
    """The short name used in tables and file names."""
    return SHORT_NAMES.get(dtype, str(dtype).removeprefix("torch."))
