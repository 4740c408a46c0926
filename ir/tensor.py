"""TensorSpec: the shape and dtype of a tensor, with dims that may be expressions in B and S."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import sympy

from shardwise.ir.dtype import DTYPE_BYTES, check_dtype
from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.expression import (
    Size,
    evaluate_size,
    format_expression,
    free_names,
    parse_expression,
)
from shardwise.ir.scanner import check_text, shown

MAX_DIM: Final = 2**62
"""Largest size of a dim: an element count has to fit into int64."""

_SPEC: Final = re.compile(r"([a-z][a-z0-9_]*)\[([^\[\]]*)\]")
_FORM: Final = "'float32[B, S, 64]'"


def check_dim(dim: object) -> Size:
    """A legal dim, sympy integers as `int`: 0 <= int < 2**62, or an expression in symbols."""
    if isinstance(dim, sympy.Integer):
        dim = int(dim)
    if type(dim) is int:
        if 0 <= dim < MAX_DIM:
            return dim
    elif isinstance(dim, sympy.Expr) and not dim.is_number:
        format_expression(dim)
        return dim
    raise InvalidValueError(
        f"dim {shown(dim)}: a dim is an int from 0 to 2**62 or a sympy expression in sizes; "
        "convert it"
    )


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a tensor; no values, no device, no strides.

    Text: `float32[B, S, 64]`, a scalar `int64[]`. Raises InvalidValueError for a dim that is
    neither a non-negative int nor an expression, and for an unknown dtype.
    """

    shape: tuple[Size, ...]
    """Sizes in elements, global (of the whole tensor)."""
    dtype: str
    """A name of `shardwise.ir.dtype.DTYPE_BYTES`."""

    def __post_init__(self) -> None:
        if type(self.shape) is not tuple:
            raise InvalidValueError(
                f"shape {shown(self.shape)}: a shape is a tuple of dims; give a tuple"
            )
        object.__setattr__(self, "shape", tuple(map(check_dim, self.shape)))
        check_dtype(self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(dim_text, self.shape))}]"

    @classmethod
    def parse(cls, text: str) -> "TensorSpec":
        """The spec that prints as `text`; raises ParseError."""
        found = _SPEC.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ParseError(f"cannot parse {shown(text)} as a tensor: expected {_FORM}")
        try:
            return cls(tuple(map(parse_dim, _split(found.group(2)))), found.group(1))
        except (InvalidValueError, ParseError) as error:
            raise ParseError(
                f"cannot parse {shown(text)} as a tensor like {_FORM}: {error}"
            ) from None

    @property
    def is_concrete(self) -> bool:
        """Whether every dim is an int."""
        return all(type(dim) is int for dim in self.shape)

    def symbols(self) -> frozenset[str]:
        """Names of the symbols in the shape."""
        return frozenset().union(
            *(symbol_names(dim) for dim in self.shape if not isinstance(dim, int))
        )

    def at(self, sizes: Mapping[str, int]) -> "TensorSpec":
        """The spec at concrete sizes of its symbols (names to positive ints).

        Raises InvalidValueError where a size is missing or a dim becomes no whole number >= 0.
        """
        if self.is_concrete:
            return self
        dims = (dim if isinstance(dim, int) else evaluate_size(dim, sizes) for dim in self.shape)
        return TensorSpec(tuple(dims), self.dtype)

    def element_count(self) -> sympy.Expr:
        """Number of elements, an expression (a sympy Integer when concrete); 1 for a scalar."""
        return sympy.Mul(*map(sympy.sympify, self.shape))

    def nbytes(self) -> sympy.Expr:
        """Bytes of the whole tensor, as an expression."""
        return sympy.Integer(DTYPE_BYTES[self.dtype]) * self.element_count()


@lru_cache(maxsize=65536)
def spec_of(text: str) -> TensorSpec:
    """`TensorSpec.parse`, remembered; raises ParseError."""
    return TensorSpec.parse(text)


def dim_text(dim: Size) -> str:
    """Text of one dim: `64`, `B`, `2*S + 1`."""
    return str(dim) if isinstance(dim, int) else format_expression(dim)


def parse_dim(text: str) -> Size:
    """The dim that prints as `text`; raises ParseError or InvalidValueError."""
    stripped = check_text(text, "a dim", "'8' or 'B*S'").strip()
    if stripped.isascii() and stripped.isdigit() and len(stripped) < 20:
        return int(stripped)
    return check_dim(parse_expression(stripped))


@lru_cache(maxsize=65536)
def symbol_names(expression: sympy.Expr) -> frozenset[str]:
    """Names of the symbols in an expression."""
    return frozenset(free_names(expression))


def _split(text: str) -> list[str]:
    """Cut at the commas that stand outside parentheses; nothing for blank text."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]] if text.strip() else []
