"""Names, quoting, and a scanner of one line that fails clearly, for the text forms of graphs.

A name (of an operator, a parameter, a module) is any non-empty string. It is written bare when
it is made of ASCII letters, digits, `_`, `.` and `#`, and as a JSON string (ASCII only)
otherwise, so every text form is one line of printable ASCII whatever a user calls a module.
"""

import json
import re
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from shardwise.ir.errors import InvalidValueError, ParseError

P = ParamSpec("P")
T = TypeVar("T")

_BARE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.#]*")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_INTEGER: Final = re.compile(r"-?[0-9]{1,24}(?![0-9])")
_SHOWN_LENGTH: Final = 80


def shown(value: object) -> str:
    """`repr(value)` on one line, shortened: what an error message says was given."""
    if isinstance(value, str):
        text = ascii(value[: _SHOWN_LENGTH + 1])
    else:
        try:
            text = " ".join(repr(value).split())
        except (ValueError, RecursionError):  # an int of over 4300 digits, or one somewhere inside
            text = f"a value of type {type(value).__name__} that is too long to print"
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."


def check_text(text: object, what: str, form: str) -> str:
    """`text` itself if it is a `str`, else a ParseError: how every reader begins."""
    if type(text) is not str:
        raise ParseError(f"cannot parse {shown(text)} as {what}: give a str like {form}")
    return text


def check_name(name: object, what: str) -> None:
    """Raise InvalidValueError unless `name` is a non-empty `str`; `what` says whose it is."""
    if type(name) is not str or not name:
        raise InvalidValueError(
            f"{what} is named {shown(name)}: a name is a non-empty str; give it one"
        )


def check_kind(value: object, kind: type, what: str) -> None:
    """Raise InvalidValueError unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise InvalidValueError(f"{what} is {shown(value)}: give a {kind.__name__}")


def check_kinds(values: object, kind: type, what: str) -> None:
    """Raise InvalidValueError unless `values` are a tuple of `kind`."""
    if type(values) is not tuple or not all(isinstance(value, kind) for value in values):
        raise InvalidValueError(f"{what} are {shown(values)}: give a tuple of {kind.__name__}")


def check_pairs(values: object, kind: type, what: str) -> None:
    """Raise InvalidValueError unless `values` are a tuple of (str, `kind`) pairs."""
    check_kinds(values, tuple, what)
    assert isinstance(values, tuple)
    for pair in values:
        if len(pair) != 2 or type(pair[0]) is not str or not isinstance(pair[1], kind):
            raise InvalidValueError(
                f"{what} hold {shown(pair)}: give pairs of a str and a {kind.__name__}"
            )


def quote_string(text: str) -> str:
    """`text` as a JSON string of printable ASCII."""
    return json.dumps(text)


def quote_name(name: str) -> str:
    """`name` bare where that is unambiguous, else as a JSON string."""
    return name if _BARE.fullmatch(name) else quote_string(name)


class Scanner:
    """A position in one line of text; local to a parser, never stored.

    `form` is the expected form of the whole line, said in every error. All methods raise
    ParseError where the text does not go on as they need.
    """

    __slots__ = ("form", "position", "text")

    def __init__(self, text: object, form: str) -> None:
        """Stand at the beginning of `text`."""
        self.form = form
        self.position = 0
        if type(text) is not str:
            raise ParseError(f"cannot parse {shown(text)}: expected a str like {form}")
        self.text: str = text

    def error(self, wanted: str) -> ParseError:
        """The error that says where the text broke and what was wanted there (raise it)."""
        found = shown(self.text[self.position : self.position + 40])
        return ParseError(
            f"cannot parse {shown(self.text)}: at column {self.position + 1}, {found}, "
            "expected "
            f"{wanted}; the form is {self.form}"
        )

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """The text that `pattern` matches here, passed over; without a match None, no move."""
        found = pattern.match(self.text, self.position)
        if found is None:
            return None
        self.position = found.end()
        return found.group()

    def need(self, pattern: re.Pattern[str], wanted: str) -> str:
        """Like `match`, but a missing match is a ParseError."""
        found = self.match(pattern)
        if found is None:
            raise self.error(wanted)
        return found

    def take(self, literal: str) -> bool:
        """Pass over `literal` if the text goes on with it."""
        if not self.text.startswith(literal, self.position):
            return False
        self.position += len(literal)
        return True

    def expect(self, literal: str) -> None:
        """Pass over `literal`, which must come here."""
        if not self.take(literal):
            raise self.error(repr(literal))

    def string(self) -> str:
        """A JSON string, unquoted."""
        start = self.position
        quoted = self.need(_STRING, "a JSON string")
        try:
            value = json.loads(quoted)
        except ValueError:
            self.position = start
            raise self.error("a JSON string") from None
        return str(value)

    def name(self) -> str:
        """A bare or quoted name, never empty."""
        bare = self.match(_BARE)
        if bare is not None:
            return bare
        start = self.position
        name = self.string()
        if not name:
            self.position = start
            raise self.error("a name that is not empty")
        return name

    def names(self) -> tuple[str, ...]:
        """One or more names with commas between them."""
        found = [self.name()]
        while self.take(","):
            found.append(self.name())
        return tuple(found)

    def integer(self) -> int:
        """A decimal integer of at most 24 digits."""
        return int(self.need(_INTEGER, "an integer"))

    def end(self) -> None:
        """Nothing may follow."""
        if self.position != len(self.text):
            raise self.error("the end of the text")


def made(text: str, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`make(*args, **kwargs)` with its InvalidValueError as the ParseError of `text`."""
    try:
        return make(*args, **kwargs)
    except InvalidValueError as error:
        raise ParseError(f"cannot parse {shown(text)}: {error}") from None
