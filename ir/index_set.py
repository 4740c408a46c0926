"""Sets of indices of one dim, as intervals: what a rank holds of a tensor along that dim."""

import bisect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.scanner import check_text, shown

Interval = tuple[int, int]
"""Half-open [start, stop)."""

_INTERVAL = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class IndexSet:
    """Non-negative indices of one dim, as sorted, disjoint, non-empty, non-touching intervals.

    The intervals are unique for the set, so equal sets are equal values; `from_intervals` makes
    the form out of any. An index set is also a list in increasing order: position p is its p-th
    smallest index, the order of the elements in a rank's local tensor. Costs grow with the
    number of intervals, never with the number of indices.
    Text: `0:4,8:12`, `-` for the empty set. Raises InvalidValueError, parse ParseError.
    """

    intervals: tuple[Interval, ...]

    def __post_init__(self) -> None:
        end = -1
        for start, stop in self.intervals:
            if type(start) is not int or type(stop) is not int or not end < start < stop:
                raise InvalidValueError(
                    f"intervals {shown(self.intervals)} are not sorted, apart, non-empty, from 0 "
                    "on; "
                    "build the set with IndexSet.from_intervals"
                )
            end = stop

    @classmethod
    def span(cls, start: int, stop: int) -> "IndexSet":
        """The indices start, ..., stop - 1; empty if there are none."""
        return cls(((start, stop),)) if start < stop else cls(())

    @classmethod
    def from_intervals(cls, intervals: Iterable[Interval]) -> "IndexSet":
        """Union of any half-open intervals; empty ones are ignored."""
        merged: list[Interval] = []
        for start, stop in sorted(i for i in intervals if i[0] < i[1]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        return cls(tuple(merged))

    # --- queries ----------------------------------------------------------------------------

    def count(self) -> int:
        """Number of indices."""
        return sum(stop - start for start, stop in self.intervals)

    def __bool__(self) -> bool:
        return bool(self.intervals)

    def __contains__(self, index: int) -> bool:
        at = bisect.bisect_right(self.intervals, index, key=lambda interval: interval[0])
        return at > 0 and index < self.intervals[at - 1][1]

    def __iter__(self) -> Iterator[int]:
        for start, stop in self.intervals:
            yield from range(start, stop)

    def issubset(self, other: "IndexSet") -> bool:
        """Whether every index is in `other` as well."""
        return not self.difference(other)

    def to_numpy(self) -> npt.NDArray[np.int64]:
        """The indices in increasing order."""
        parts = [np.arange(start, stop, dtype=np.int64) for start, stop in self.intervals]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    # --- algebra ----------------------------------------------------------------------------

    def union(self, other: "IndexSet") -> "IndexSet":
        """Indices in either."""
        return IndexSet.from_intervals((*self.intervals, *other.intervals))

    def intersection(self, other: "IndexSet") -> "IndexSet":
        """Indices in both."""
        result: list[Interval] = []
        i = j = 0
        while i < len(self.intervals) and j < len(other.intervals):
            a, b = self.intervals[i], other.intervals[j]
            start, stop = max(a[0], b[0]), min(a[1], b[1])
            if start < stop:
                result.append((start, stop))
            if a[1] <= b[1]:
                i += 1
            else:
                j += 1
        return IndexSet(tuple(result))

    def difference(self, other: "IndexSet") -> "IndexSet":
        """Indices here that are not in `other`."""
        result: list[Interval] = []
        j = 0
        for start, stop in self.intervals:
            while j < len(other.intervals) and other.intervals[j][1] <= start:
                j += 1
            k = j
            while k < len(other.intervals) and other.intervals[k][0] < stop:
                if start < other.intervals[k][0]:
                    result.append((start, other.intervals[k][0]))
                start = other.intervals[k][1]
                k += 1
            if start < stop:
                result.append((start, stop))
        return IndexSet(tuple(result))

    # --- positions --------------------------------------------------------------------------

    def take(self, positions: "IndexSet") -> "IndexSet":
        """The indices that stand at these positions of the increasing list."""
        if positions and positions.intervals[-1][1] > self.count():
            raise InvalidValueError(
                f"positions {positions} reach past the {self.count()} indices of the set; "
                "use smaller ones"
            )
        result: list[Interval] = []
        offset = 0
        wanted = iter(positions.intervals)
        current = next(wanted, None)
        for start, stop in self.intervals:
            length = stop - start
            while current is not None and current[0] < offset + length:
                low, high = max(current[0], offset), min(current[1], offset + length)
                result.append((start + low - offset, start + high - offset))
                if current[1] > offset + length:
                    break
                current = next(wanted, None)
            offset += length
        return IndexSet.from_intervals(result)

    def locate(self, subset: "IndexSet") -> "IndexSet":
        """Positions here of the indices of `subset`; inverse of `take`."""
        result: list[Interval] = []
        offset = found = i = 0
        for low, high in subset.intervals:
            while i < len(self.intervals) and self.intervals[i][1] <= low:
                offset += self.intervals[i][1] - self.intervals[i][0]
                i += 1
            if (
                i < len(self.intervals)
                and self.intervals[i][0] <= low < high <= self.intervals[i][1]
            ):
                start = offset + low - self.intervals[i][0]
                result.append((start, start + high - low))
                found += high - low
        if found != subset.count():
            raise InvalidValueError(
                f"{subset} is not inside {self}, so it has no positions there; intersect first"
            )
        return IndexSet.from_intervals(result)

    # --- text -------------------------------------------------------------------------------

    def __str__(self) -> str:
        return ",".join(f"{start}:{stop}" for start, stop in self.intervals) or "-"

    @classmethod
    def parse(cls, text: str) -> "IndexSet":
        """Inverse of `str`; raises ParseError."""
        if check_text(text, "an index set", "0:4,8:12 or -") == "-":
            return cls(())
        matches = [_INTERVAL.fullmatch(word) for word in text.split(",")]
        try:
            if all(matches):
                return cls(tuple((int(match[1]), int(match[2])) for match in matches if match))
        except InvalidValueError as error:
            raise ParseError(f"index set {shown(text)}: {error}") from error
        raise ParseError(f"index set {shown(text)} does not parse; expected 0:4,8:12 or -")
