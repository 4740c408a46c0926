"""What one mesh axis does to a tensor: Replicate, Partial, Shard or Select.

A placement is applied to the LOCAL dim that the axes before it left, a list of indices in
increasing order; Shard and Select keep some positions of that list, in the same order.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import sympy

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.expression import (
    Size,
    as_size,
    evaluate_size,
    format_expression,
    parse_expression,
)
from shardwise.ir.index_set import IndexSet, Interval
from shardwise.ir.scanner import check_text, shown

REDUCE_OPS: tuple[str, ...] = ("sum", "max", "min")
"""What the addends of a Partial are combined by."""

_SHARD = re.compile(r"S\(([0-9]{1,4})(?:,outer=(.+))?\)")
_SECTIONS = re.compile(r"S\(([0-9]{1,4}),sections=([0-9]{1,18}(?:/[0-9]{1,18})*)\)")
_PAIR = "[0-9]{1,18}:[0-9]{1,18}"
_SELECT = re.compile(rf"I\(([0-9]{{1,4}}),({_PAIR}(?:/{_PAIR})*)(,partial)?\)")
_FORM = (
    "expected R, P, P(max), P(min), S(1), S(0,outer=3), S(0,sections=64/32/32), "
    "I(0,0:64/0:64/64:128) or I(0,0:64/0:64,partial)"
)


MAX_SECTIONS = 1 << 20
"""Most sections whose index sets are made: each is an interval of its own."""


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank of the axis holds the same. Never stored in a Layout. Text: `R`."""

    def __str__(self) -> str:
        return "R"


@dataclass(frozen=True, slots=True)
class Partial:
    """Every rank of the axis holds an addend; combining all by `op` gives the value.

    Text: `P`, `P(max)`, `P(min)`. Raises InvalidValueError for another op.
    """

    op: str = "sum"

    def __post_init__(self) -> None:
        if self.op not in REDUCE_OPS:
            raise InvalidValueError(
                f"Partial op {shown(self.op)} is not known; use one of {', '.join(REDUCE_OPS)}"
            )

    def __str__(self) -> str:
        return "P" if self.op == "sum" else f"P({self.op})"


@dataclass(frozen=True, slots=True)
class Shard:
    """The dim is cut in sections and each section is cut in chunks, one per rank of the axis.

    Chunks are those of torch.chunk and DTensor: ceil(size / ranks) each, the last ones shorter
    or empty. `outer=k` means k equal sections, `sections` lists unequal ones; give at most one.
    With neither there is one section: the whole local dim. `outer` may be an expression; then
    sizes must be given (`at`) before index sets are asked for.
    Text: `S(1)`, `S(0,outer=3)`, `S(0,sections=64/32/32)`. Raises InvalidValueError.
    """

    dim: int
    outer: Size = 1
    sections: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_dim("Shard", self.dim)
        object.__setattr__(self, "outer", as_size(self.outer))
        if isinstance(self.outer, int) and not 1 <= self.outer < 10**18:
            raise InvalidValueError(
                f"Shard({self.dim}) has outer={shown(self.outer)}; use 1 to 10**18 - 1"
            )
        if not isinstance(self.sections, tuple):
            raise InvalidValueError(
                f"Shard({self.dim}) has sections={shown(self.sections)}; give a tuple of ints"
            )
        if not self.sections:
            return
        if self.outer != 1:
            raise InvalidValueError(
                f"Shard({self.dim}) has outer={shown(self.outer)} and "
                f"sections={shown(self.sections)}; "
                "give one of the two"
            )
        if len(self.sections) < 2 or not all(map(_is_size, self.sections)):
            raise InvalidValueError(
                f"Shard({self.dim}) has sections={shown(self.sections)}; give two or more ints "
                "from 1 to 10**18 - 1"
            )

    def section_sizes(self, size: int) -> tuple[int, ...]:
        """Sizes of the sections of a local dim of `size`; raises InvalidValueError if unfit, and
        for over MAX_SECTIONS of them."""
        section, count = self.equal_sections(size)
        if self.sections:
            return self.sections
        if count > MAX_SECTIONS:
            raise InvalidValueError(
                f"{self} cuts a local dim of {size} in {count} sections, over the {MAX_SECTIONS} "
                "whose indices are listed; use another outer"
            )
        return (section,) * count

    def equal_sections(self, size: int) -> tuple[int, int]:
        """(size of a section, how many) of a local dim of `size`, (size, 1) with `sections`;
        raises InvalidValueError if unfit."""
        if self.sections:
            if sum(self.sections) != size:
                raise InvalidValueError(
                    f"{shown(str(self))} needs a local dim of {sum(self.sections)}, not {size}; "
                    "give sections that add up to it"
                )
            return size, 1
        if not isinstance(self.outer, int):
            raise InvalidValueError(f"{self} has a symbolic outer; give sizes with at() first")
        if size % self.outer:
            raise InvalidValueError(
                f"{self} needs a local dim that {self.outer} divides, not {size}; "
                "use another outer, or sections"
            )
        return size // self.outer, self.outer

    def __str__(self) -> str:
        if self.sections:
            return f"S({self.dim},sections={'/'.join(map(str, self.sections))})"
        if self.outer == 1:
            return f"S({self.dim})"
        return f"S({self.dim},outer={format_expression(self.outer).replace(' ', '')})"


@dataclass(frozen=True, slots=True)
class Select:
    """Rank i of the axis holds the half-open interval i of the dim; intervals may overlap.

    For KV heads that are fewer than the ranks: 0:64, 0:64, 64:128, 64:128. Together the
    intervals cover the dim, so its size is the largest stop. `partial` says what overlapping
    ranks hold of a shared index: False: the same value each; True: addends to sum (the gradient
    of such a value: each rank contributes for the work that it did).
    Text: `I(0,0:64/0:64/64:128/64:128)`, `I(0,0:64/0:64,partial)`. Raises InvalidValueError.
    """

    dim: int
    intervals: tuple[Interval, ...]
    partial: bool = False

    def __post_init__(self) -> None:
        _check_dim("Select", self.dim)
        if not isinstance(self.intervals, tuple) or not all(
            isinstance(pair, tuple) and len(pair) == 2 and all(type(end) is int for end in pair)
            for pair in self.intervals
        ):
            raise InvalidValueError(
                f"Select({self.dim}) has intervals {shown(self.intervals)}; give a tuple of "
                "(start, stop) pairs of ints"
            )
        if type(self.partial) is not bool:
            raise InvalidValueError(
                f"Select({self.dim}) has partial={shown(self.partial)}; give a bool"
            )
        if not self.intervals or any(not 0 <= start < stop for start, stop in self.intervals):
            raise InvalidValueError(
                f"Select({self.dim}) has intervals {shown(self.intervals)}; give one non-empty "
                "interval [start, stop) for each rank of the axis"
            )
        if IndexSet.from_intervals(self.intervals) != IndexSet.span(0, self.size):
            raise InvalidValueError(
                f"Select({self.dim}) with intervals {shown(self.intervals)} leaves indices that no "
                "rank holds; cover the dim from 0 without gaps"
            )

    @property
    def size(self) -> int:
        """Size of the local dim that this placement is for."""
        return max(stop for _, stop in self.intervals)

    def __str__(self) -> str:
        intervals = "/".join(f"{start}:{stop}" for start, stop in self.intervals)
        return f"I({self.dim},{intervals}{',partial' if self.partial else ''})"


Placement: TypeAlias = Replicate | Partial | Shard | Select
"""What one axis does."""

Cut: TypeAlias = Shard | Select
"""The placements that leave a rank a part of a dim."""


def _is_size(value: object) -> bool:
    return type(value) is int and 1 <= value < 10**18


def _check_dim(name: str, dim: int) -> None:
    if type(dim) is not int or not 0 <= dim < 10_000:
        raise InvalidValueError(f"{name} has dim {shown(dim)}; use an int from 0 on")


def positions(placement: Cut, size: int, coordinate: int, ranks: int) -> IndexSet:
    """Positions of a local dim of `size` that the rank at `coordinate` of `ranks` keeps.

    Raises InvalidValueError if the placement does not fit the size or the number of ranks.
    """
    if isinstance(placement, Select):
        if len(placement.intervals) != ranks or placement.size != size:
            raise InvalidValueError(
                f"{shown(str(placement))} is for {len(placement.intervals)} ranks and a local "
                "dim of "
                f"{placement.size}, not {ranks} and {size}; give intervals that match"
            )
        return IndexSet.span(*placement.intervals[coordinate])
    kept: list[Interval] = []
    offset = 0
    for section in placement.section_sizes(size):
        chunk = -(-section // ranks)
        start, stop = min(coordinate * chunk, section), min((coordinate + 1) * chunk, section)
        kept.append((offset + start, offset + stop))
        offset += section
    return IndexSet.from_intervals(kept)


def kept_count(placement: Cut, size: int, coordinate: int, ranks: int) -> int:
    """`positions(...).count()`, at once for any number of equal sections."""
    if isinstance(placement, Select) or placement.sections:
        return positions(placement, size, coordinate, ranks).count()
    section, count = placement.equal_sections(size)
    chunk = -(-section // ranks)
    return (min((coordinate + 1) * chunk, section) - min(coordinate * chunk, section)) * count


def placement_at(placement: Placement, sizes: Mapping[str, int]) -> Placement:
    """The placement with `sizes` put into a symbolic outer."""
    if isinstance(placement, Shard) and isinstance(placement.outer, sympy.Expr):
        return Shard(placement.dim, outer=evaluate_size(placement.outer, sizes))
    return placement


def parse_placement(text: str) -> Placement:
    """Inverse of `str` of any placement; raises ParseError."""
    try:
        return _parse(check_text(text, "a placement", "S(1)"))
    except (InvalidValueError, ParseError) as error:
        raise ParseError(f"placement {shown(text)} does not parse: {error}; {_FORM}") from error


def _parse(text: str) -> Placement:
    if text == "R":
        return Replicate()
    if text == "P":
        return Partial()
    if text in ("P(max)", "P(min)"):
        return Partial(text[2:-1])
    if match := _SECTIONS.fullmatch(text):
        return Shard(int(match[1]), sections=tuple(int(n) for n in match[2].split("/")))
    if match := _SHARD.fullmatch(text):
        outer = parse_expression(match[2]) if match[2] else 1
        return Shard(int(match[1]), outer=outer)
    if match := _SELECT.fullmatch(text):
        pairs = [word.split(":") for word in match[2].split("/")]
        intervals = tuple((int(start), int(stop)) for start, stop in pairs)
        return Select(int(match[1]), intervals, partial=match[3] is not None)
    raise ParseError("unknown form")
