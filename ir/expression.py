"""Sizes and prices as sympy expressions over positive integer symbols.

A symbol stands for an integer of at least 1 (`B`, `S`, `S_src`, ...); sympy simplifies knowing
that. Text is read by a whitelist over Python's syntax tree, never by `eval` or `sympify`.
"""

import math
import operator
from collections.abc import Mapping
from fractions import Fraction

import sympy

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.expression_text import Size as Size
from shardwise.ir.expression_text import format_expression as format_expression
from shardwise.ir.expression_text import parse_expression as parse_expression
from shardwise.ir.expression_text import symbol as symbol
from shardwise.ir.scanner import shown


def as_size(value: Size) -> Size:
    """`value`, sympy integers turned into ints; raises InvalidValueError for other types."""
    if isinstance(value, bool) or not isinstance(value, int | sympy.Expr):
        raise InvalidValueError(
            f"size {shown(value)} is a {type(value).__name__}; use an int or an expression"
        )
    return int(value) if isinstance(value, sympy.Integer) else value


def free_names(expression: Size | float) -> tuple[str, ...]:
    """Sorted names of the symbols that the expression still holds."""
    if not isinstance(expression, sympy.Expr):
        return ()
    return tuple(sorted(str(item) for item in expression.free_symbols))


def evaluate(expression: Size | float, sizes: Mapping[str, int]) -> int | float:
    """The number that the expression takes at `sizes` (symbol name to an integer >= 1).

    Exact: an int when the value is one, else the nearest float. Names in `sizes` that the
    expression lacks are ignored; raises InvalidValueError when one of its own is missing.
    """
    if not isinstance(expression, sympy.Expr):
        return expression
    missing = [name for name in free_names(expression) if name not in sizes]
    if missing:
        raise InvalidValueError(
            f"{format_expression(expression)} needs a size for {', '.join(missing)}; "
            f"given: {', '.join(sorted(sizes)) or 'none'}"
        )
    value = _number(expression, sizes)
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    return value


def evaluate_size(expression: Size, sizes: Mapping[str, int]) -> int:
    """`evaluate` where only an integer makes sense; raises InvalidValueError otherwise."""
    value = evaluate(expression, sizes)
    if not isinstance(value, int):
        raise InvalidValueError(
            f"size {format_expression(expression)} is {value} at {dict(sizes)}, not an "
            "integer; choose sizes that it divides"
        )
    return value


def _number(node: sympy.Basic, sizes: Mapping[str, int]) -> int | float | Fraction:
    if isinstance(node, sympy.Symbol):
        return _positive(node.name, sizes[node.name])
    if isinstance(node, sympy.Integer):
        return int(node)
    if isinstance(node, sympy.Rational):
        return Fraction(int(node.p), int(node.q))
    if isinstance(node, sympy.Float):
        return float(node)
    values = [_number(arg, sizes) for arg in node.args]
    try:
        if isinstance(node, sympy.Add):
            return sum(values[1:], start=values[0])
        if isinstance(node, sympy.Mul):
            return math.prod(values[1:], start=values[0])
        if isinstance(node, sympy.Pow):
            base = Fraction(values[0]) if isinstance(values[0], int) else values[0]
            return base ** int(values[1])
        if isinstance(node, sympy.Mod):
            return values[0] % values[1]
    except ZeroDivisionError as error:
        raise InvalidValueError(f"{node} divides by zero at {dict(sizes)}") from error
    if isinstance(node, sympy.Max | sympy.Min):
        return max(values) if isinstance(node, sympy.Max) else min(values)
    if isinstance(node, sympy.floor | sympy.ceiling):
        return math.floor(values[0]) if isinstance(node, sympy.floor) else math.ceil(values[0])
    raise InvalidValueError(
        f"{node} ({type(node).__name__}) cannot be evaluated; see parse_expression"
    )


def _positive(name: str, value: int) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < 1:
        raise InvalidValueError(f"size {name}={shown(value)} is not an integer of at least 1")
    return number
