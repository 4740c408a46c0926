"""Element types by name, without torch: the names that plans, specs and profiles use."""

from collections.abc import Mapping
from types import MappingProxyType

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.scanner import shown

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "bfloat16": 2,
        "float16": 2,
        "float8_e4m3fn": 1,
        "float8_e5m2": 1,
        "int64": 8,
        "int32": 4,
        "int16": 2,
        "int8": 1,
        "uint8": 1,
        "bool": 1,
        "complex64": 8,
    }
)
"""Bytes of one element; the keys are torch's names without `torch.`."""

FLOAT_DTYPES: tuple[str, ...] = (
    "float64",
    "float32",
    "bfloat16",
    "float16",
    "float8_e4m3fn",
    "float8_e5m2",
)
"""Real floating-point types: those that weights, gradients and optimizer state may have."""


def check_dtype(name: str) -> str:
    """Return `name` if it is a known element type; raises InvalidValueError otherwise."""
    if not isinstance(name, str) or name not in DTYPE_BYTES:
        known = ", ".join(DTYPE_BYTES)
        raise InvalidValueError(f"dtype {shown(name)} is not known; use one of {known}")
    return name


def is_floating(name: str) -> bool:
    """Whether the type is real floating point; raises InvalidValueError if it is not known."""
    return check_dtype(name) in FLOAT_DTYPES


def dtype_bytes(name: str) -> int:
    """Bytes of one element of type `name`; raises InvalidValueError if it is not known."""
    return DTYPE_BYTES[check_dtype(name)]
