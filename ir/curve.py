"""Numbers that say where they come from: a Constant, and a Curve through measured points.

Every figure that prices anything is one of these two, so that a listing of a profile shows
for each number its unit and its source. A figure that nobody measured or published has a
source that begins with `assumption:`.
"""

import math
import re
import sys
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.scanner import Scanner, quote_string, shown

T = TypeVar("T")

UNITS: Final = ("s", "bytes", "bytes/s", "FLOP", "FLOP/s", "ratio", "count")
"""The units there are; `ratio` and `count` are dimensionless. Seconds and bytes, never multiples of
them."""

ENDS: Final = ("clamp", "proportional")
"""What lies above the last point of a curve: its last value, or that value growing with x."""

_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?")
_UNIT: Final = re.compile(r"[A-Za-z/]+")
_WORD: Final = re.compile(r"[a-z]+")
_EXACT: Final = 2.0**53


def number_text(value: float) -> str:
    """The shortest text that `float` reads back as the same finite, non-negative number."""
    return str(int(value)) if value.is_integer() and value < _EXACT else repr(value)


def scan_number(scanner: Scanner) -> float:
    """A non-negative number at the scanner's position; raises ParseError."""
    return float(scanner.need(_NUMBER, "a number"))


def parse_checked(text: object, form: str, read: Callable[[Scanner], T]) -> T:
    """What `read` makes of all of `text`; an illegal value is a ParseError that says the
    form."""
    scanner = Scanner(text, form)
    try:
        value = read(scanner)
    except InvalidValueError as error:
        raise ParseError(f"cannot parse {shown(text)}: {error}; the form is {form}") from error
    scanner.end()
    return value


def check_unit(unit: object) -> None:
    """Raise InvalidValueError unless `unit` is one of UNITS."""
    if unit not in UNITS:
        raise InvalidValueError(
            f"unit {shown(unit)} is not known; convert the number to one of {', '.join(UNITS)}"
        )


def check_source(source: object, what: str) -> None:
    """Raise InvalidValueError unless `source` is a line of text; `what` is its number."""
    if not isinstance(source, str) or not source.strip() or not source.isprintable():
        raise InvalidValueError(
            f"source {shown(source)} of {what} does not say where it comes from; name the data "
            "sheet, paper, file or measurement in one line, or write 'assumption: ...'"
        )


def check_float(value: object, what: str) -> float:
    """`value` as a finite, non-negative float; raises InvalidValueError."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and 0 <= value <= sys.float_info.max:  # type: ignore[operator]
        return abs(float(value))  # type: ignore[arg-type]
    raise InvalidValueError(f"{what} is {shown(value)}; give a finite number that is not negative")


@dataclass(frozen=True, slots=True)
class Constant:
    """One figure, finite and not negative. Text: `3350000000000 bytes/s "data sheet"`.

    Raises InvalidValueError for a negative or non-finite value, an unknown unit or a blank
    source.
    """

    value: float
    unit: str
    """One of UNITS."""
    source: str
    """Data sheet, paper, file or measurement in one line; `assumption: ...` without one."""

    def __post_init__(self) -> None:
        check_unit(self.unit)
        object.__setattr__(self, "value", check_float(self.value, f"a constant in {self.unit}"))
        check_source(self.source, f"{number_text(self.value)} {self.unit}")

    @property
    def is_assumed(self) -> bool:
        """Whether the source says that nobody measured or published the figure."""
        return self.source.startswith("assumption:")

    def __str__(self) -> str:
        return f"{number_text(self.value)} {self.unit} {quote_string(self.source)}"

    @classmethod
    def parse(cls, text: str) -> "Constant":
        """The inverse of `str`; raises ParseError."""
        return parse_checked(text, "'80 bytes \"data sheet\"'", cls.scan)

    @classmethod
    def scan(cls, scanner: Scanner) -> "Constant":
        """Read a constant at the scanner's position; raises ParseError or InvalidValueError."""
        value = scan_number(scanner)
        scanner.expect(" ")
        unit = scanner.need(_UNIT, "a unit")
        scanner.expect(" ")
        return cls(value, unit, scanner.string())


@dataclass(frozen=True, slots=True)
class Curve:
    """Points (x, y), joined by straight lines in log-log; x strictly increasing, all positive.

    Below the first point the value is the first y. Above the last it is the last y (`clamp`:
    for efficiencies and bandwidths) or the last y times x / last x (`proportional`: for
    seconds by bytes, a constant bandwidth). y need not be monotone: measured times are not.
    Text: `1024:0.0005 16384:0.0006 bytes -> s proportional "..."`. Raises InvalidValueError
    for no points, unequal lengths, values that are not finite and positive, x that does not
    increase, an unknown unit or end, or a blank source.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    x_unit: str
    y_unit: str
    source: str
    """As of a Constant; it holds for every point."""
    end: str = "clamp"
    """One of ENDS: what lies above the last point."""

    def __post_init__(self) -> None:
        check_unit(self.x_unit)
        check_unit(self.y_unit)
        name = f"a curve {self.x_unit} -> {self.y_unit}"
        check_source(self.source, name)
        if self.end not in ENDS:
            raise InvalidValueError(
                f"end {shown(self.end)} of {name} is not known; use one of {', '.join(ENDS)}"
            )
        for axis in ("x", "y"):
            points = getattr(self, axis)
            if type(points) is not tuple or not points:
                raise InvalidValueError(
                    f"{axis} of {name} is {shown(points)}; give a tuple of one number or more"
                )
            values = tuple(check_float(point, f"{axis} of {name}") for point in points)
            if min(values) == 0:
                raise InvalidValueError(
                    f"{axis} of {name} holds 0, which has no logarithm; leave the point out"
                )
            object.__setattr__(self, axis, values)
        if len(self.x) != len(self.y):
            raise InvalidValueError(
                f"{name} has {len(self.x)} x and {len(self.y)} y; give one y for each x"
            )
        for low, high in pairwise(self.x):
            if low >= high:
                raise InvalidValueError(
                    f"x of {name} goes from {number_text(low)} to {number_text(high)}; "
                    "sort the points by x and keep one for each x"
                )

    @property
    def is_assumed(self) -> bool:
        """Whether the source says that nobody measured or published the points."""
        return self.source.startswith("assumption:")

    def at(self, x: float) -> float:
        """The value at `x` (in x_unit), in y_unit; raises InvalidValueError unless x > 0."""
        if not x > 0 or not math.isfinite(x):
            raise InvalidValueError(
                f"x is {shown(x)}: a curve {self.x_unit} -> {self.y_unit} is for finite x > 0; "
                "treat nothing to do (x = 0) before asking"
            )
        if x <= self.x[0]:
            return self.y[0]
        if x >= self.x[-1]:
            return self.y[-1] * (x / self.x[-1] if self.end == "proportional" else 1.0)
        above = bisect_right(self.x, x)
        low_x, low_y = self.x[above - 1], self.y[above - 1]
        share = math.log(x / low_x) / math.log(self.x[above] / low_x)
        return low_y * math.exp(share * math.log(self.y[above] / low_y))

    def __str__(self) -> str:
        points = " ".join(
            f"{number_text(x)}:{number_text(y)}" for x, y in zip(self.x, self.y, strict=True)
        )
        units = f"{self.x_unit} -> {self.y_unit}"
        return f"{points} {units} {self.end} {quote_string(self.source)}"

    @classmethod
    def parse(cls, text: str) -> "Curve":
        """The inverse of `str`; raises ParseError."""
        return parse_checked(text, "'1024:0.5 2048:0.6 bytes -> s clamp \"source\"'", cls.scan)

    @classmethod
    def scan(cls, scanner: Scanner) -> "Curve":
        """Read a curve at the scanner's position; raises ParseError or InvalidValueError."""
        x: list[float] = []
        y: list[float] = []
        while (number := scanner.match(_NUMBER)) is not None:
            scanner.expect(":")
            x.append(float(number))
            y.append(scan_number(scanner))
            scanner.expect(" ")
        x_unit = scanner.need(_UNIT, "a point like 1024:0.5 or a unit")
        scanner.expect(" -> ")
        y_unit = scanner.need(_UNIT, "a unit")
        scanner.expect(" ")
        end = scanner.need(_WORD, "clamp or proportional")
        scanner.expect(" ")
        return cls(tuple(x), tuple(y), x_unit, y_unit, scanner.string(), end)
