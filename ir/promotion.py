"""The dtype of a pointwise operation on tensors of several dtypes, as torch promotes them."""

from collections.abc import Iterable
from typing import Final

from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.tensor import TensorSpec

_ORDER: Final = (
    "bool", "uint8", "int8", "int16", "int32", "int64",
    "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64", "complex64",
)  # fmt: skip


def promoted(specs: Iterable[TensorSpec]) -> str:
    """The result's dtype; a tensor without dims counts only by its category (bool, int, float).

    Source: PyTorch documentation, "Tensor Attributes", type promotion.
    """
    listed = list(specs)
    with_dims = [spec.dtype for spec in listed if spec.shape]
    scalars = [spec.dtype for spec in listed if not spec.shape]
    result = _widest(with_dims) if with_dims else "bool"
    if scalars and (not with_dims or _category(_widest(scalars)) > _category(result)):
        result = _widest([*scalars, result])
    return result


def _widest(dtypes: list[str]) -> str:
    kinds = set(dtypes)
    if kinds >= {"float16", "bfloat16"} and not kinds & {"float32", "float64", "complex64"}:
        return "float32"
    if "uint8" in kinds and "int8" in kinds and not any(_category(d) > 1 for d in kinds):
        return max([*kinds, "int16"], key=_ORDER.index)
    return max(kinds, key=_ORDER.index)


def _category(dtype: str) -> int:
    assert dtype in DTYPE_BYTES
    if dtype == "bool":
        return 0
    return 1 if "int" in dtype else 2 if "float" in dtype else 3
