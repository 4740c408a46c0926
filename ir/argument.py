"""The arguments of operators: references, dtypes, size expressions, scalars, and tuples.

Arguments are kept exactly as the traced call had them, so that the call can be emitted again;
lists become tuples. `torch.memory_format`, `torch.layout` and `torch.device` arguments are
their `str` ("torch.strided", "cpu"); which one is meant follows from the aten schema of the
operator's kind.

Text: `%name` or `%name:1`, `float32`, `{B*S}`, `2`, `1e-05`, `-inf`, `nan`, `True`, `None`,
`"a JSON string"`, `(1, (2,), ())`.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import sympy

from shardwise.ir.dtype import DTYPE_BYTES, check_dtype
from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.expression import format_expression, parse_expression
from shardwise.ir.scanner import Scanner, check_name, quote_name, quote_string, shown

MAX_DEPTH: Final = 16
"""Deepest nesting of tuples in an argument."""
MAX_INTEGER: Final = 2**64
"""Integers in arguments are smaller than this in size: those of torch are 64 bits wide."""

_NUMBER: Final = re.compile(r"-?(?:inf|[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)(?![\w.])")
_KEYWORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?==)")
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BRACED: Final = re.compile(r"\{[^{}]*\}")
_WORDS: Final = {"None": None, "True": True, "False": False, "nan": math.nan}


@dataclass(frozen=True, slots=True)
class Ref:
    """Output `index` of the item `name`: an operator, an input, a parameter or a constant.

    Only operators have outputs beyond 0. Text: `%layers.0.weight`, `%split:2`.
    """

    name: str
    index: int = 0

    def __post_init__(self) -> None:
        check_name(self.name, "a referenced item")
        if type(self.index) is not int or not 0 <= self.index < MAX_INTEGER:
            raise InvalidValueError(
                f"index {shown(self.index)} of Ref {shown(self.name)}: outputs are counted "
                "from 0; "
                "give an int >= 0"
            )

    def __str__(self) -> str:
        return f"%{quote_name(self.name)}{f':{self.index}' if self.index else ''}"

    @classmethod
    def parse(cls, text: str) -> "Ref":
        """The reference that prints as `text`; raises ParseError."""
        scanner = Scanner(text, "'%name' or '%name:index'")
        ref = scan_ref(scanner)
        scanner.end()
        return ref


@dataclass(frozen=True, slots=True)
class Dtype:
    """A dtype as an argument, e.g. of `aten.to.dtype`. Text: its name, `float32`."""

    name: str

    def __post_init__(self) -> None:
        check_dtype(self.name)

    def __str__(self) -> str:
        return self.name

    @classmethod
    def parse(cls, text: str) -> "Dtype":
        """The dtype that prints as `text`; raises ParseError."""
        if not isinstance(text, str) or text not in DTYPE_BYTES:
            raise ParseError(
                f"cannot parse {shown(text)} as a dtype: expected one of {', '.join(DTYPE_BYTES)}"
            )
        return cls(text)


Argument: TypeAlias = (
    "Ref | Dtype | sympy.Expr | int | float | bool | str | tuple[Argument, ...] | None"
)


def check_argument(argument: object, where: str, *, depth: int = 0) -> Argument:
    """A legal argument in canonical form: sympy numbers as Python ones, nan as `math.nan`.

    The one nan makes equal arguments compare equal. Python compares `1`, `1.0` and `True` as
    equal, and so do two operators that differ in that alone; their texts and digests differ.
    Raises InvalidValueError with `where` for other types (numpy scalars, lists, subclasses of
    str).
    """
    if isinstance(argument, sympy.Integer | sympy.Float):
        argument = int(argument) if isinstance(argument, sympy.Integer) else float(argument)
    kind = type(argument)
    if argument is None or isinstance(argument, Ref | Dtype | bool):
        return argument
    if isinstance(argument, str) and kind is str:
        return argument
    if isinstance(argument, float) and kind is float:
        return math.nan if math.isnan(argument) else argument
    if isinstance(argument, int) and kind is int and abs(argument) < MAX_INTEGER:
        return argument
    if isinstance(argument, tuple) and kind is tuple and depth < MAX_DEPTH:
        return tuple(check_argument(item, where, depth=depth + 1) for item in argument)
    if isinstance(argument, sympy.Expr) and not argument.is_number:
        format_expression(argument)
        return argument
    raise InvalidValueError(
        f"{where} has the argument {shown(argument)} of type {kind.__name__}: arguments are "
        "Ref, Dtype, "
        "size expressions, 64-bit int, float, bool, str, None and tuples of these, "
        f"{MAX_DEPTH} deep at "
        "most; convert it (a list to a tuple, a numpy scalar with float() or int())"
    )


def leaves(argument: Argument) -> Iterator[Argument]:
    """The leaves of nested tuples, in order."""
    if isinstance(argument, tuple):
        for item in argument:
            yield from leaves(item)
    else:
        yield argument


def map_refs(argument: Argument, change: Callable[[Ref], Argument]) -> Argument:
    """The argument with `change(ref)` in place of every reference."""
    if isinstance(argument, Ref):
        return change(argument)
    if isinstance(argument, tuple):
        return tuple(map_refs(item, change) for item in argument)
    return argument


def argument_text(argument: Argument, write_ref: Callable[[Ref], str] = str) -> str:
    """Text of an argument; `write_ref` writes the references in it."""
    if isinstance(argument, Ref):
        return write_ref(argument)
    if isinstance(argument, str):
        return quote_string(argument)
    if isinstance(argument, tuple):
        items = [argument_text(item, write_ref) for item in argument]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if isinstance(argument, sympy.Expr):
        return f"{{{format_expression(argument)}}}"
    return str(argument)


def scan_ref(scanner: Scanner) -> Ref:
    """The reference that comes next; raises ParseError."""
    scanner.expect("%")
    name = scanner.name()
    if not scanner.take(":"):
        return Ref(name)
    start = scanner.position
    index = scanner.integer()
    if not 0 < index < MAX_INTEGER:
        scanner.position = start
        raise scanner.error("an output index from 1 (0 is left out)")
    return Ref(name, index)


def scan_argument(scanner: Scanner, *, depth: int = 0) -> Argument:
    """The argument that comes next; raises ParseError."""
    letter = scanner.text[scanner.position : scanner.position + 1]
    if letter == "%":
        return scan_ref(scanner)
    if letter == '"':
        return scanner.string()
    if letter == "{":
        return parse_expression(scanner.need(_BRACED, "{expression}")[1:-1])
    if letter == "(" and depth < MAX_DEPTH:
        return _scan_tuple(scanner, depth)
    number = scanner.match(_NUMBER)
    if number is not None:
        return _number(number, scanner)
    start = scanner.position
    word = scanner.match(_WORD)
    if word in _WORDS:
        return _WORDS[word]
    if word is not None and word in DTYPE_BYTES:
        return Dtype(word)
    scanner.position = start
    raise scanner.error(f"an argument (tuples at most {MAX_DEPTH} deep)")


def scan_call(
    scanner: Scanner,
) -> tuple[tuple[Argument, ...], tuple[tuple[str, Argument], ...]]:
    """Positional and keyword arguments in parentheses; raises ParseError."""
    args: list[Argument] = []
    kwargs: list[tuple[str, Argument]] = []
    scanner.expect("(")
    while not scanner.take(")"):
        if args or kwargs:
            scanner.expect(", ")
        key = scanner.match(_KEYWORD)
        if key is not None:
            scanner.expect("=")
            kwargs.append((key, scan_argument(scanner)))
        elif kwargs:
            raise scanner.error("'key=' (positional arguments come first)")
        else:
            args.append(scan_argument(scanner))
    return tuple(args), tuple(kwargs)


def _scan_tuple(scanner: Scanner, depth: int) -> Argument:
    scanner.expect("(")
    items: list[Argument] = []
    if scanner.take(")"):
        return ()
    while True:
        items.append(scan_argument(scanner, depth=depth + 1))
        if len(items) == 1 and scanner.take(",)"):
            break
        if len(items) > 1 and scanner.take(")"):
            break
        scanner.expect(", ")
    return tuple(items)


def _number(text: str, scanner: Scanner) -> int | float:
    if not any(mark in text for mark in ".ein"):
        if len(text) <= 24 and abs(int(text)) < MAX_INTEGER:
            return int(text)
        raise scanner.error("an integer of 64 bits before this")
    return float(text)
