"""Element types: the names that checkpoints have, and what NumPy and torch call them."""

from __future__ import annotations

from typing import Any, NamedTuple

from .errors import Unsupported


class DType(NamedTuple):
    """name: as torch has it. raw: a NumPy type of that size, where NumPy has no such numbers."""

    name: str
    itemsize: int
    raw: str


_OF = {
    "F64": DType("float64", 8, "float64"),
    "F32": DType("float32", 4, "float32"),
    "F16": DType("float16", 2, "float16"),
    "BF16": DType("bfloat16", 2, "uint16"),
    "I64": DType("int64", 8, "int64"),
    "I32": DType("int32", 4, "int32"),
    "I16": DType("int16", 2, "int16"),
    "I8": DType("int8", 1, "int8"),
    "U64": DType("uint64", 8, "uint64"),
    "U32": DType("uint32", 4, "uint32"),
    "U16": DType("uint16", 2, "uint16"),
    "U8": DType("uint8", 1, "uint8"),
    "BOOL": DType("bool", 1, "bool"),
    "C64": DType("complex64", 8, "complex64"),
    "C128": DType("complex128", 16, "complex128"),
    "F8_E4M3": DType("float8_e4m3fn", 1, "uint8"),
    "F8_E5M2": DType("float8_e5m2", 1, "uint8"),
    "F8_E4M3FNUZ": DType("float8_e4m3fnuz", 1, "uint8"),
    "F8_E5M2FNUZ": DType("float8_e5m2fnuz", 1, "uint8"),
    "F8_E8M0": DType("float8_e8m0fnu", 1, "uint8"),
}

# As ebb.h, and stores, number them.
_NUMBERS = (
    "", "F32", "BF16", "F16", "F64", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL",
    "C64", "C128", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0",
)  # fmt: skip


def numbered() -> list[tuple[int, DType]]:
    return [(number, _OF[name]) for number, name in enumerate(_NUMBERS) if name]


def named(stored: str) -> DType | None:
    """None: its elements are no whole bytes."""
    return _OF.get(stored)


def dtype_of(stored: str, label: str) -> DType:
    found = named(stored)
    if found is None:
        raise Unsupported(
            f"{label} is {stored}, whose elements are no whole bytes",
            hint="ckpt-convert moves it; Python has no such numbers",
        )
    return found


def numpy_type(dtype: DType) -> Any:
    """ml_dtypes' for what NumPy has not, where that is installed; else unsigned integers with the
    same bits."""
    import numpy

    if dtype.name == dtype.raw:
        return numpy.dtype(dtype.raw)
    try:
        import ml_dtypes  # type: ignore[import-not-found]
    except ImportError:
        return numpy.dtype(dtype.raw)
    return numpy.dtype(getattr(ml_dtypes, dtype.name))


def torch_type(dtype: DType) -> Any:
    import torch

    return getattr(torch, dtype.name)
