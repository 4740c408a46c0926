"""NamePattern: many parameter names of one form, written once: `layers.{0:32}.mlp.weight`.

`{a:b}` stands for the decimal numbers a, a + 1, ..., b - 1. It stands alone between other
characters (no digit or second range beside it), so that a name belongs to a pattern in one way
only, and whether two patterns share a name is decided without listing names.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.scanner import shown

MAX_NAMES: Final = 1_000_000
"""Most names that a pattern may stand for: no model has more, and listing them stays cheap."""

_RANGE_LIMIT: Final = 10**10
_RANGE: Final = re.compile(r"\{(0|[1-9][0-9]{0,9}):([1-9][0-9]{0,9})\}")
_NUMBER: Final = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]{0,17})(?![0-9])")
_FORM: Final = "'layers.{0:32}.mlp.weight'"

Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class NamePattern:
    """Literal texts and number ranges in turn; text as in `layers.{0:32}.mlp.weight`.

    Invariants: printable, not empty, no braces in literals, ranges not empty and not beside a
    digit or each other, at most `MAX_NAMES` names. Raises InvalidValueError.
    """

    literals: tuple[str, ...]
    """One more than there are ranges; the first and the last may be empty."""
    ranges: tuple[Interval, ...] = ()
    """Half-open: (0, 32) stands for 0 to 31."""

    def __post_init__(self) -> None:
        if len(self.literals) != len(self.ranges) + 1:
            raise InvalidValueError(
                f"pattern of {len(self.literals)} literals and {len(self.ranges)} ranges: give "
                "one literal more than ranges"
            )
        whole = "".join(self.literals)
        if not (whole or self.ranges) or not whole.isprintable() or set(whole) & set("{}"):
            raise InvalidValueError(
                f"pattern {shown(str(self))}: a name is printable, not empty and has no braces "
                "but those of ranges; rename it"
            )
        for place, (low, high) in enumerate(self.ranges):
            if not 0 <= low < high < _RANGE_LIMIT:
                raise InvalidValueError(
                    f"pattern {shown(str(self))}: range {low}:{high} is empty or not below "
                    f"{_RANGE_LIMIT}; give the first number and one past the last"
                )
            before, after = self.literals[place : place + 2]
            touches = not after and place + 1 < len(self.ranges)
            if touches or re.search("[0-9]", before[-1:] + after[:1]):
                raise InvalidValueError(
                    f"pattern {shown(str(self))}: range {low}:{high} stands beside "
                    "a digit or a range; put another character between"
                )
        if self.count > MAX_NAMES:
            raise InvalidValueError(
                f"pattern {shown(str(self))} stands for {self.count} names: at most "
                f"{MAX_NAMES} are allowed; narrow its ranges"
            )

    def __str__(self) -> str:
        ranges = (f"{{{low}:{high}}}" for low, high in self.ranges)
        pairs = itertools.zip_longest(self.literals, ranges, fillvalue="")
        return "".join(itertools.chain.from_iterable(pairs))

    @classmethod
    def parse(cls, text: str) -> "NamePattern":
        """The pattern that prints as `text`; raises ParseError."""
        if type(text) is not str:
            raise ParseError(f"cannot parse {shown(text)} as a pattern: give a str like {_FORM}")
        pieces = _RANGE.split(text)
        bounds = [*map(int, pieces[1::3])], [*map(int, pieces[2::3])]
        try:
            return cls(tuple(pieces[::3]), tuple(zip(*bounds, strict=True)))
        except InvalidValueError as error:
            raise ParseError(f"{error}; the form is {_FORM}") from None

    @property
    def count(self) -> int:
        """Number of names."""
        total = 1
        for low, high in self.ranges:
            total *= high - low
        return total

    def names(self) -> Iterator[str]:
        """All names, the last range fastest."""
        for numbers in itertools.product(*(range(low, high) for low, high in self.ranges)):
            pairs = itertools.zip_longest(self.literals, map(str, numbers), fillvalue="")
            yield "".join(itertools.chain.from_iterable(pairs))

    def matches(self, name: str) -> bool:
        """Whether `name` is one of the names."""
        skeleton, intervals = self.box()
        try:
            other, points = NamePattern((name,)).box()
        except InvalidValueError:  # an empty or unprintable name belongs to no pattern
            return False
        return skeleton == other and all(
            low <= point < high for (low, high), (point, _) in zip(intervals, points, strict=True)
        )

    def box(self) -> tuple[tuple[str, ...], tuple[Interval, ...]]:
        """The texts between numbers, and an interval for each number, of literals and ranges.

        Two patterns share a name exactly where their texts are equal and all intervals meet.
        """
        texts: list[str] = [""]
        intervals: list[Interval] = []
        for place, literal in enumerate(self.literals):
            start = 0
            for found in _NUMBER.finditer(literal):
                texts[-1] += literal[start : found.start()]
                texts.append("")
                intervals.append((int(found.group()), int(found.group()) + 1))
                start = found.end()
            texts[-1] += literal[start:]
            if place < len(self.ranges):
                texts.append("")
                intervals.append(self.ranges[place])
        return tuple(texts), tuple(intervals)


def first_overlap(patterns: Sequence[NamePattern]) -> tuple[int, int] | None:
    """Indices of two patterns that share a name, smaller first; None where all are disjoint."""
    groups: dict[tuple[str, ...], list[tuple[tuple[Interval, ...], int]]] = defaultdict(list)
    for index, pattern in enumerate(patterns):
        texts, intervals = pattern.box()
        groups[texts].append((intervals, index))
    found = (pair for group in groups.values() if (pair := _overlap_in(group)) is not None)
    return min(found, default=None)


def _overlap_in(group: list[tuple[tuple[Interval, ...], int]]) -> tuple[int, int] | None:
    """Two boxes of equally many intervals that meet: a sweep over their most varied number."""
    slots = range(len(group[0][0]))
    slot = max(slots, key=lambda s: len({box[s][0] for box, _ in group}), default=None)
    if slot is None:
        first_two = sorted(index for _, index in group)[:2]
        return (first_two[0], first_two[1]) if len(first_two) == 2 else None
    active: list[tuple[tuple[Interval, ...], int]] = []
    for box, index in sorted(group, key=lambda entry: entry[0][slot]):
        active = [other for other in active if other[0][slot][1] > box[slot][0]]
        for other, other_index in active:
            if all(a[0] < b[1] and b[0] < a[1] for a, b in zip(box, other, strict=True)):
                return (min(index, other_index), max(index, other_index))
        active.append((box, index))
    return None
