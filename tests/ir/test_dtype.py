"""Element types by name."""

import pytest
import torch

from shardwise.ir.dtype import DTYPE_BYTES, FLOAT_DTYPES, check_dtype, dtype_bytes, is_floating
from shardwise.ir.errors import InvalidValueError


@pytest.mark.parametrize("name", DTYPE_BYTES)
def test_names_and_sizes_are_torchs(name: str) -> None:
    dtype = getattr(torch, name)
    assert str(dtype) == f"torch.{name}"
    assert dtype_bytes(name) == dtype.itemsize
    assert is_floating(name) == dtype.is_floating_point
    assert check_dtype(name) == name


def test_float_types_are_known() -> None:
    assert set(FLOAT_DTYPES) == {name for name in DTYPE_BYTES if is_floating(name)}


@pytest.mark.parametrize("name", ["float", "torch.float32", "", None, 4])
def test_unknown_names_are_refused_with_the_known_ones(name: object) -> None:
    with pytest.raises(InvalidValueError, match="float32, bfloat16"):
        check_dtype(name)  # type: ignore[arg-type]


def test_the_table_is_read_only() -> None:
    with pytest.raises(TypeError):
        DTYPE_BYTES["float32"] = 8  # type: ignore[index]
