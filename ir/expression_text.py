"""The safe text form of expressions: a whitelist reader, a printer that is read back."""

import ast
import keyword
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias

import sympy

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.scanner import shown

Size: TypeAlias = int | sympy.Expr
"""A dim's size or another count: an int when it is known, else an expression."""

MAX_TEXT_LENGTH = 20_000
"""Characters that `parse_expression` accepts."""

MAX_POWER = 64
"""Largest exponent, nested exponents multiplied."""

MAX_DEPTH = 100
"""Deepest nesting of operators, calls and signs (the terms of one sum count once)."""

MAX_INTEGER_BITS = 4096
"""Longest integer that may stand in an expression."""

_FUNCTIONS: Mapping[str, tuple[Callable[..., sympy.Expr], int, int]] = {
    "Max": (sympy.Max, 1, 64),
    "Min": (sympy.Min, 1, 64),
    "floor": (sympy.floor, 1, 1),
    "ceiling": (sympy.ceiling, 1, 1),
    "Mod": (sympy.Mod, 2, 2),
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FORM = "expected +, -, *, /, //, ** over numbers, names, Max, Min, floor, ceiling, Mod"


@lru_cache(maxsize=4096)
def symbol(name: str) -> sympy.Symbol:
    """The positive integer symbol `name`; raises InvalidValueError unless it can be a name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _FUNCTIONS:
        raise InvalidValueError(
            f"symbol {shown(name)} is not an ASCII identifier other than {', '.join(_FUNCTIONS)}; "
            "use a name like B or S_src"
        )
    if keyword.iskeyword(name):
        raise InvalidValueError(
            f"symbol {shown(name)} is a Python keyword; use a name like B or S_src"
        )
    return sympy.Symbol(name, integer=True, positive=True)


# --- text to expression ---------------------------------------------------------------------


def parse_expression(text: str) -> sympy.Expr:
    """The expression that `text` writes; raises ParseError for anything not whitelisted.

    `a // b` is floor(a / b), `a % b` is Mod(a, b). Exponents are integer literals.
    """
    if not isinstance(text, str):
        raise ParseError(f"expression {shown(text)} is not text; {_FORM}")
    if len(text) > MAX_TEXT_LENGTH:
        raise ParseError(
            f"expression has {len(text)} characters, at most {MAX_TEXT_LENGTH} are read"
        )
    return _parse(text)


@lru_cache(maxsize=65536)
def _parse(text: str) -> sympy.Expr:
    try:
        tree = ast.parse(text.strip(), mode="eval")
        result = _Reader(text).read(tree.body, MAX_POWER, MAX_DEPTH)
    except ParseError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise ParseError(f"expression {_short(text)} does not parse; {_FORM}") from error
    return _check_atoms(result, ParseError)


class _Reader:
    """Turns the whitelisted part of Python's syntax tree into sympy."""

    def __init__(self, text: str) -> None:
        self.text = text

    def fail(self, reason: str) -> ParseError:
        return ParseError(f"expression {_short(self.text)}: {reason}; {_FORM}")

    def read(self, node: ast.expr, power: int, depth: int) -> sympy.Expr:
        """`power` bounds the exponents below `node`, `depth` the nesting."""
        if depth <= 0:
            raise self.fail(f"nested deeper than {MAX_DEPTH}")
        match node:
            case ast.Constant(value=value):
                return self.number(value)
            case ast.Name(id=name):
                if name in _FUNCTIONS or not _NAME.fullmatch(name):
                    raise self.fail(f"{shown(name)} is not a symbol name")
                return symbol(name)
            case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
                value = self.read(operand, power, depth - 1)
                return -value if isinstance(sign, ast.USub) else value
            case ast.BinOp(op=ast.Pow(), left=left, right=right):
                return self.power(left, right, power, depth - 1)
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                return self.chain(node, (ast.Add, ast.Sub), power, depth - 1)
            case ast.BinOp(op=ast.Mult()):
                return self.chain(node, (ast.Mult,), power, depth - 1)
            case ast.BinOp(op=ast.Div() | ast.FloorDiv() | ast.Mod() as op):
                left = self.read(node.left, power, depth - 1)
                right = self.read(node.right, power, depth - 1)
                if right.is_zero:
                    raise self.fail("division by zero")
                if isinstance(op, ast.Mod):
                    return sympy.Mod(left, right)
                quotient = left / right
                return quotient if isinstance(op, ast.Div) else sympy.floor(quotient)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self.call(name, args, power, depth - 1)
        raise self.fail(f"{type(node).__name__} is not allowed")

    def number(self, value: object) -> sympy.Expr:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(f"{shown(value)} is not a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise self.fail(f"{shown(value)} is not finite")
        return sympy.Integer(value) if isinstance(value, int) else sympy.Float(value)

    def power(self, base: ast.expr, exponent: ast.expr, power: int, depth: int) -> sympy.Expr:
        sign = 1
        if isinstance(exponent, ast.UnaryOp) and isinstance(exponent.op, ast.USub):
            sign, exponent = -1, exponent.operand
        if not isinstance(exponent, ast.Constant) or type(exponent.value) is not int:
            raise self.fail("an exponent is not an integer literal")
        number = exponent.value
        if number > power:
            raise self.fail(f"exponents multiply to more than {MAX_POWER}")
        value = self.read(base, power // max(number, 1), depth)
        if value.is_zero and sign < 0:
            raise self.fail("division by zero")
        return value ** (sign * number)

    def chain(
        self, node: ast.expr, ops: tuple[type[ast.operator], ...], power: int, depth: int
    ) -> sympy.Expr:
        """A left-deep run of + and - (or of *) read in a loop, so that long sums are cheap."""
        items: list[sympy.Expr] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ops):
            right = self.read(node.right, power, depth)
            items.append(-right if isinstance(node.op, ast.Sub) else right)
            node = node.left
        items.append(self.read(node, power, depth))
        combine = sympy.Mul if ops == (ast.Mult,) else sympy.Add
        return combine(*reversed(items))

    def call(self, name: str, args: list[ast.expr], power: int, depth: int) -> sympy.Expr:
        if name not in _FUNCTIONS:
            raise self.fail(f"function {shown(name)} is not known")
        function, fewest, most = _FUNCTIONS[name]
        if not fewest <= len(args) <= most:
            raise self.fail(f"{name} takes {fewest} to {most} arguments, not {len(args)}")
        values = [self.read(arg, power, depth) for arg in args]
        if name == "Mod" and values[1].is_zero:
            raise self.fail("division by zero")
        return function(*values)


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


# --- expression to text ---------------------------------------------------------------------


@lru_cache(maxsize=65536, typed=True)
def format_expression(expression: Size | float) -> str:
    """Text that `parse_expression` reads back as the same expression.

    Holds for what arithmetic on symbols gives; products that were factored by hand come back
    distributed, as sympy's arithmetic would have made them. Raises InvalidValueError for
    foreign symbols and functions. Terms stand by falling degree, then by their text.
    """
    if isinstance(expression, bool) or not isinstance(expression, int | float | sympy.Expr):
        raise InvalidValueError(f"{shown(expression)} is not an expression; use an int or sympy")
    if not isinstance(expression, sympy.Expr):
        expression = sympy.sympify(expression)
    text = _text(_check_atoms(expression, InvalidValueError))
    if len(text) > MAX_TEXT_LENGTH:
        raise InvalidValueError(
            f"expression prints as {len(text)} characters, at most {MAX_TEXT_LENGTH} are read "
            "back; collect its terms"
        )
    return text


def _text(node: sympy.Basic) -> str:
    if isinstance(node, sympy.Symbol):
        return str(node.name)
    if isinstance(node, sympy.Rational):
        return f"{node.p}" if node.q == 1 else f"{node.p}/{node.q}"
    if isinstance(node, sympy.Float):
        return repr(float(node))
    if isinstance(node, sympy.Add):
        terms = [(-_degree(term), _text(term)) for term in node.args]
        terms.sort(key=lambda item: (item[0], item[1].lstrip("-")))
        return " + ".join(text for _, text in terms).replace("+ -", "- ")
    if isinstance(node, sympy.Mul | sympy.Pow):
        return _product(node)
    return f"{type(node).__name__}({', '.join(_text(arg) for arg in node.args)})"


def _product(node: sympy.Basic) -> str:
    """A product or power: sign, factors, then what it is divided by."""
    above: list[str] = []
    below: list[str] = []
    sign = ""
    for factor in node.args if isinstance(node, sympy.Mul) else (node,):
        if isinstance(factor, sympy.Number):
            sign = "-" if (sign == "-") != (factor < 0) else ""
            magnitude = abs(factor)
            if not isinstance(magnitude, sympy.Rational):
                above.insert(0, _text(magnitude))
                continue
            if magnitude.p != 1:
                above.insert(0, f"{magnitude.p}")
            if magnitude.q != 1:
                below.append(f"{magnitude.q}")
            continue
        base, exponent = factor.as_base_exp()
        text = _text(base)
        if isinstance(base, sympy.Add | sympy.Mul | sympy.Pow | sympy.Number):
            text = f"({text})"
        power = abs(int(exponent))
        (above if exponent > 0 else below).append(text if power == 1 else f"{text}**{power}")
    numerator = sign + ("*".join(above) or "1")
    if not below:
        return numerator
    return f"{numerator}/{below[0]}" if len(below) == 1 else f"{numerator}/({'*'.join(below)})"


def _degree(term: sympy.Basic) -> int:
    """Sum of a monomial's exponents; factors that are no symbols count as 1, numbers as 0."""
    if isinstance(term, sympy.Number):
        return 0
    if isinstance(term, sympy.Mul):
        return sum(_degree(factor) for factor in term.args)
    return int(term.exp) if isinstance(term, sympy.Pow) else 1


def _check_atoms(expression: sympy.Expr, error: type[ParseError | InvalidValueError]) -> sympy.Expr:
    """`expression`, if it is built from what the text form can write and is finite."""
    for node in sympy.preorder_traversal(expression):
        if isinstance(node, sympy.Symbol):
            known = node == symbol(node.name)
        elif isinstance(node, sympy.Rational):
            known = max(abs(node.p), abs(node.q)).bit_length() <= MAX_INTEGER_BITS
        elif isinstance(node, sympy.Float):
            known = node.is_finite is True and math.isfinite(float(node)) and node._prec == 53
        elif isinstance(node, sympy.Pow):
            known = node.exp.is_Integer and abs(int(node.exp)) <= MAX_POWER
        else:
            known = isinstance(node, _COMPOUND)
        if not known:
            raise error(
                f"{_short(str(node))} ({type(node).__name__}) in an expression is not a symbol "
                f"made by symbol(), a finite number or a known function; {_FORM}"
            )
    return expression


_COMPOUND = (sympy.Add, sympy.Mul, sympy.Max, sympy.Min, sympy.floor, sympy.ceiling, sympy.Mod)
