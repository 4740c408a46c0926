"""Values that are functions of their indices: what arange, comparisons and their like compute.

A form states a tensor's element at index (i0, i1, ...) for all sizes at once, so that a mask can be
proven causal instead of being evaluated at some lengths. The kinds of forms:

- `Integers(expression)`: an affine expression in the indices and the sizes;
- `Truth(atoms)`: true where every atom, an affine expression, is >= 0; `FALSE` is never true;
- `Choice(where, inside, outside)`: one float where a Truth holds, another elsewhere;
- `Magnitude(expression)`: the absolute value of such an expression, to be compared with a number.

Indices are the symbols `index(0)`, `index(1)`, ... of the tensor's own dims; a dim of size 1 has
none in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import sympy

from shardwise.ir.expression import Size, symbol


@lru_cache(maxsize=64)
def index(dim: int) -> sympy.Symbol:
    """The index of a dim, an integer >= 0."""
    return sympy.Symbol(f"_{dim}", integer=True, nonnegative=True)


@dataclass(frozen=True)
class Integers:
    """Elements are this integer (or constant float) expression."""

    expression: sympy.Expr


@dataclass(frozen=True)
class Truth:
    """Elements are true where all atoms are >= 0; with `never` nowhere."""

    atoms: frozenset[sympy.Expr]
    never: bool = False


@dataclass(frozen=True)
class Choice:
    """Elements are `inside` where the truth holds and `outside` elsewhere."""

    where: Truth
    inside: float
    outside: float


@dataclass(frozen=True)
class Magnitude:
    """Elements are the absolute value of this integer expression."""

    expression: sympy.Expr


TRUE = Truth(frozenset())
FALSE = Truth(frozenset(), never=True)
Form = Integers | Truth | Choice | Magnitude


class UnknownForm(Exception):  # noqa: N818  (no error: an answer)
    """A value is no form; the text says why. Caught by whoever asks for a form."""


@dataclass(frozen=True)
class Box:
    """The ranges of sizes for which something shall hold, and bounds of affine expressions."""

    ranges: tuple[tuple[str, int, int], ...]

    @classmethod
    def of(cls, ranges: Mapping[str, tuple[int, int]]) -> "Box":
        """A box from ranges by name."""
        return cls(tuple((name, low, high) for name, (low, high) in ranges.items()))

    def lowest(self, expression: sympy.Expr, shape: Sequence[Size]) -> sympy.Expr | None:
        """A lower bound over all indices into `shape` and all sizes; None if not affine."""
        return _bounded(expression, shape, self.ranges)

    def proves(self, atom: sympy.Expr, shape: Sequence[Size]) -> bool:
        """Whether `atom` >= 0 everywhere."""
        low = self.lowest(atom, shape)
        return low is not None and bool(low >= 0)

    def refutes(self, atom: sympy.Expr, shape: Sequence[Size]) -> bool:
        """Whether `atom` < 0 everywhere."""
        low = self.lowest(-atom, shape)
        return low is not None and bool(low > 0)


@lru_cache(maxsize=4096)
def _bounded(
    expression: sympy.Expr, shape: Sequence[Size], ranges: tuple[tuple[str, int, int], ...]
) -> sympy.Expr | None:
    """Substitute the end of every index, then of every size, that makes the expression least."""
    value = sympy.expand(expression)
    for dim, size in enumerate(shape):
        slope = sympy.diff(value, index(dim))
        if slope == 0:
            continue
        if not slope.is_Integer:
            return None
        value = sympy.expand(value.subs(index(dim), 0 if slope > 0 else size - 1))
    for name, low, high in ranges:
        slope = sympy.diff(value, symbol(name))
        if slope == 0:
            continue
        if not slope.is_Integer:
            return None
        value = value.subs(symbol(name), low if slope > 0 else high)
    return value if value.is_Integer else None


def both(left: Truth, right: Truth) -> Truth:
    """Conjunction."""
    return FALSE if left.never or right.never else Truth(left.atoms | right.atoms)


def either(left: Truth, right: Truth) -> Truth:
    """Disjunction, where one side implies the other; UnknownForm otherwise."""
    if left.never or (right.atoms <= left.atoms and not right.never):
        return right
    if right.never or left.atoms <= right.atoms:
        return left
    raise UnknownForm("a disjunction of two conditions")


def opposite(truth: Truth) -> Truth:
    """Negation of a constant or of one atom; UnknownForm otherwise."""
    if truth.never:
        return TRUE
    if not truth.atoms:
        return FALSE
    if len(truth.atoms) == 1:
        (atom,) = truth.atoms
        return Truth(frozenset({sympy.expand(-atom - 1)}))
    raise UnknownForm("the negation of several conditions")


def at_least(left: sympy.Expr, right: sympy.Expr) -> Truth:
    """left >= right, elementwise; a constant comparison is decided."""
    atom = sympy.expand(left - right)
    if atom.is_number:
        return TRUE if atom >= 0 else FALSE
    return Truth(frozenset({atom}))


def renamed(form: Form, places: Mapping[int, sympy.Expr | int]) -> Form:
    """The form with index(k) replaced by places[k], all at once."""
    changes = {index(dim): place for dim, place in places.items() if index(dim) != place}
    if not changes:
        return form

    def change(expression: sympy.Expr) -> sympy.Expr:
        return expression.subs(changes, simultaneous=True)

    if isinstance(form, Integers | Magnitude):
        return type(form)(change(form.expression))
    if isinstance(form, Choice):
        where = renamed(form.where, places)
        assert isinstance(where, Truth)
        return Choice(where, form.inside, form.outside)
    result = TRUE if not form.never else FALSE
    for atom in form.atoms:
        result = both(result, at_least(change(atom), sympy.S.Zero))
    return result
