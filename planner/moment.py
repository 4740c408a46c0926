"""Bytes per rank at a moment, as linear forms that are compared once for all sizes.

A linear form maps monomials of the global sizes (B, B*S, ...) to how many bytes each counts. Cuts
are even, since runs pad to that, so floors are left out. A moment that holds at least as much of
each monomial as another is at least as large at every size: few are left to be evaluated.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import sympy

Bytes = Mapping[sympy.Expr, float]
"""A linear form; the constant stands at 1."""


@lru_cache(maxsize=1 << 14)
def form(size: sympy.Expr) -> Bytes:
    """A size as a linear form of its monomials, without floors."""
    even = size.replace(sympy.floor, lambda inner: inner) if size.has(sympy.floor) else size
    return {key: float(count) for key, count in even.as_coefficients_dict().items()}


class Sum(dict[sympy.Expr, float]):
    """A linear form under way."""

    def add(self, size: sympy.Expr, times: float = 1.0) -> "Sum":
        """Add a size so many times; returns itself."""
        for key, count in form(size).items():
            self[key] = self.get(key, 0.0) + times * count
        return self

    def plus(self, other: Bytes) -> "Sum":
        """A new sum of both."""
        total = Sum(self)
        for key, count in other.items():
            total[key] = total.get(key, 0.0) + count
        return total


@dataclass(frozen=True, slots=True)
class Moment:
    """One point of the walk."""

    values: Bytes
    """Beside what is kept of the model when the unit's forward has run."""
    opened: frozenset[str] = frozenset()
    """Uses whose short-lived copy is alive."""
    gathering: str | None = None
    """The use whose copy is being gathered."""
    reducing: str | None = None
    """The use whose gradient is being reduced."""

    def covers(self, other: "Moment") -> bool:
        """Whether this moment holds at least as much as another, at all sizes and schemes."""
        mine, its = self.values, other.values
        if other.gathering not in (None, self.gathering) or not other.opened <= self.opened:
            return False
        if other.reducing not in (None, self.reducing):
            return False
        for key, count in its.items():
            if mine.get(key, 0.0) < count:
                return False
        return all(count >= 0.0 or key in its for key, count in mine.items())


def largest(moments: Iterable[Moment]) -> tuple[Moment, ...]:
    """The moments that no other covers; those that hold much first, since they cover most."""
    found: list[Moment] = []
    for moment in sorted(moments, key=lambda one: -sum(one.values.values())):
        if not any(one.covers(moment) for one in found):
            found.append(moment)
    return tuple(found)
