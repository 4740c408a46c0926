"""Prices of a micro-batch: a sum of coefficients times monomials of its document lengths.

The planner compiles its cost and memory models to one coefficient per monomial, per bucket, so
that the runtime prices a micro-batch without a planner (design, sections 2 and 5). With s the
length of a document in the one dim of a model, or in a named one of several, the monomials are

    1            1                          a launch floor, a workspace
    B            number of documents        a row of a table per document
    T            sum of s over all dims     linear layers
    S            sum of s in one named dim  an encoder beside a decoder
    S2           sum of s^2                 attention (`S_src2` in the dim `S_src`)
    S_src*S_tgt  sum of the products        cross attention
    W4096        sum of min(s, 4096) * s    sliding-window attention, `W4096(S_tgt)` of several

All but `1` add up over documents, so a padded micro-batch of B rows costs B times one row and
a packed one costs the sum of its documents. All lengths are global: of whole documents, not of
the part that one rank holds.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.scanner import check_text, shown

_DIM: Final = r"[A-Za-z](?:[A-Za-z0-9_]*[A-Za-z_])?"
_SUM: Final = re.compile(rf"(?P<dim>{_DIM})(?P<square>2?)", re.ASCII)
_PRODUCT: Final = re.compile(rf"(?P<first>{_DIM})\*(?P<second>{_DIM})", re.ASCII)
_WINDOW: Final = re.compile(rf"W(?P<window>[1-9][0-9]{{0,17}})(?:\((?P<dim>{_DIM})\))?", re.ASCII)
_FORM: Final = "'0.002 1 + 1e-06 T + 3e-10 S2 ~ 0.01'"
_KINDS: Final = ("one", "documents", "tokens", "sum", "square", "product", "window")
_LETTERS: Final = {"one": "1", "documents": "B", "tokens": "T"}


@dataclass(frozen=True, slots=True)
class Monomial:
    """One function of the document lengths of a micro-batch; see the module for the list.

    Text: `1`, `B`, `T`, `S`, `S2`, `S_src*S_tgt`, `W4096`, `W4096(S_tgt)`. A dim is a name of
    letters, digits and `_` that does not end in a digit and is not `B`, `T` or `W`. Raises
    InvalidValueError for anything that no text form stands for.
    """

    kind: str
    """One of one, documents, tokens, sum, square, product, window."""
    dims: tuple[str, ...] = ()
    """The dims it reads: two in alphabetical order for a product, none where all are meant."""
    window: int = 0
    """Length of the window in tokens; 0 for the other kinds."""

    def __post_init__(self) -> None:
        counts = {"sum": (1,), "square": (1,), "product": (2,), "window": (0, 1)}
        legal = (
            self.kind in _KINDS
            and type(self.dims) is tuple
            and len(self.dims) in counts.get(self.kind, (0,))
            and all(map(_is_dim, self.dims))
            and list(self.dims) == sorted(set(self.dims))
            and type(self.window) is int
            and ((0 < self.window < 10**18) if self.kind == "window" else self.window == 0)
        )
        if not legal:
            raise InvalidValueError(
                f"monomial {shown((self.kind, self.dims, self.window))}: a monomial is one of "
                "1, B, T, S, S2, S_src*S_tgt, W4096, W4096(S); use one of these"
            )

    def __str__(self) -> str:
        match self.kind:
            case "sum":
                return self.dims[0]
            case "square":
                return f"{self.dims[0]}2"
            case "product":
                return f"{self.dims[0]}*{self.dims[1]}"
            case "window":
                return f"W{self.window}" + (f"({self.dims[0]})" if self.dims else "")
            case _:
                return _LETTERS[self.kind]

    @classmethod
    def parse(cls, text: str) -> "Monomial":
        """The monomial that prints as `text`; raises ParseError."""
        if type(text) is not str:
            raise ParseError(f"cannot parse {shown(text)} as a monomial: give a str like 'T'")
        return _parse_monomial(text)

    @property
    def sort_key(self) -> tuple[int, tuple[str, ...], int]:
        """The order of terms in every text: by kind, then dims, then window."""
        return (_KINDS.index(self.kind), self.dims, self.window)

    def of_document(self, lengths: Mapping[str, int]) -> int:
        """Its value for one document with these lengths by dim; 1 for the constant.

        Raises InvalidValueError where a dim has no length, and for a window without a dim where
        there are several.
        """
        match self.kind:
            case "one" | "documents":
                return 1
            case "tokens":
                return sum(lengths.values())
        dims = self.dims or tuple(lengths)
        if len(dims) != max(1, len(self.dims)) or not set(dims) <= set(lengths):
            raise InvalidValueError(
                f"monomial {self} cannot be taken of lengths {shown(dict(lengths))}: give a "
                "length for its dim, and name the dim where a model has several"
            )
        first = lengths[dims[0]]
        match self.kind:
            case "sum":
                return first
            case "square":
                return first * first
            case "product":
                return first * lengths[dims[1]]
            case _:
                return min(first, self.window) * first


@dataclass(frozen=True, slots=True)
class Prices:
    """A price per micro-batch of one bucket: seconds of a slot, or peak bytes of a rank.

    The unit belongs to the field that holds it. Coefficients are finite, not zero, of distinct
    monomials, and kept in the order of `Monomial.sort_key`; a coefficient may be negative as
    long as the price is not (a plan checks that at its padded sizes). Text: the terms, then the
    fit error, `0.002 1 + 1e-06 T ~ 0.01`; `0 ~ 0.0` without a term. Raises InvalidValueError.
    """

    coefficients: tuple[tuple[str, float], ...]
    """(monomial, coefficient) pairs; unit of the price per unit of the monomial."""
    fit_error: float = 0.0
    """Largest relative difference to the planner's own price at the bucket's padded sizes."""

    def __post_init__(self) -> None:
        if type(self.coefficients) is not tuple:
            raise InvalidValueError(
                f"coefficients {shown(self.coefficients)}: give a tuple of (monomial, number) pairs"
            )
        checked: dict[Monomial, float] = {}
        for pair in self.coefficients:
            if type(pair) is not tuple or len(pair) != 2:
                raise InvalidValueError(f"coefficient {shown(pair)}: give (monomial, number)")
            monomial = _legal_monomial(pair[0])
            number = _finite(pair[1], f"coefficient of {monomial}")
            if number == 0:
                raise InvalidValueError(f"coefficient of {monomial} is 0: leave the term out")
            if monomial in checked:
                raise InvalidValueError(f"monomial {monomial} is given twice: add them up")
            checked[monomial] = number
        ordered = sorted(checked, key=lambda monomial: monomial.sort_key)
        pairs = tuple((str(monomial), checked[monomial]) for monomial in ordered)
        object.__setattr__(self, "coefficients", pairs)
        object.__setattr__(self, "fit_error", _finite(self.fit_error, "fit_error") + 0.0)
        if not 0 <= self.fit_error < 1:
            raise InvalidValueError(
                f"fit_error is {self.fit_error}: an error is from 0 to below 1, relative to the "
                "price; fit with more monomials, or give |error|"
            )

    def __str__(self) -> str:
        terms = " + ".join(f"{number!r} {monomial}" for monomial, number in self.coefficients)
        return f"{terms or '0'} ~ {self.fit_error!r}"

    @classmethod
    def parse(cls, text: str) -> "Prices":
        """The prices that print as `text`; raises ParseError."""
        terms, mark, error_text = text.partition(" ~ ") if type(text) is str else ("", "", "")
        pairs = [term.split(" ") for term in terms.split(" + ")] if terms != "0" else []
        if not mark or any(len(pair) != 2 for pair in pairs):
            raise ParseError(f"cannot parse {shown(text)} as prices: expected a form like {_FORM}")
        try:
            return cls(
                tuple((pair[1], parse_number(pair[0])) for pair in pairs),
                parse_number(error_text),
            )
        except (InvalidValueError, ParseError) as error:
            raise ParseError(
                f"cannot parse {shown(text)} as prices like {_FORM}: {error}"
            ) from None

    @property
    def dims(self) -> frozenset[str]:
        """Names of the dims that some monomial reads by name (for a plan to check)."""
        return frozenset(dim for text, _ in self.coefficients for dim in Monomial.parse(text).dims)

    def padded(self, documents: int, sizes: Mapping[str, int]) -> float:
        """Price of a micro-batch of `documents` rows, each padded to `sizes` by dim."""
        return self._total(
            documents * monomial.of_document(sizes) if monomial.kind != "one" else 1
            for monomial in self._monomials()
        )

    def packed(self, documents: Iterable[Mapping[str, int]]) -> float:
        """Price of a packed micro-batch of documents with their own lengths by dim."""
        lengths = tuple(documents)
        return self._total(
            sum(map(monomial.of_document, lengths)) if monomial.kind != "one" else 1
            for monomial in self._monomials()
        )

    def _monomials(self) -> tuple[Monomial, ...]:
        return tuple(Monomial.parse(text) for text, _ in self.coefficients)

    def _total(self, values: Iterable[int]) -> float:
        terms = [
            number * value for (_, number), value in zip(self.coefficients, values, strict=True)
        ]
        try:
            return math.fsum(terms)
        except (OverflowError, ValueError):  # fsum refuses what a plain sum makes inf or nan
            return sum(terms)


@lru_cache(maxsize=1024)
def _parse_monomial(text: str) -> Monomial:
    try:
        for kind, letter in _LETTERS.items():
            if text == letter:
                return Monomial(kind)
        if found := _WINDOW.fullmatch(text):
            dim = found["dim"]
            return Monomial("window", (dim,) if dim else (), int(found["window"]))
        if found := _PRODUCT.fullmatch(text):
            return Monomial("product", (found["first"], found["second"]))
        if found := _SUM.fullmatch(text):
            return Monomial("square" if found["square"] else "sum", (found["dim"],))
    except InvalidValueError as error:
        raise ParseError(str(error)) from None
    raise ParseError(
        f"cannot parse {shown(text)} as a monomial: expected one of 1, B, T, S, S2, "
        "S_src*S_tgt, W4096, W4096(S)"
    )


def parse_number(text: str) -> float:
    """The float that prints as `text` (ASCII, no underscores, no blanks); raises ParseError."""
    try:
        check_text(text, "a number", "'1.5e-06'")
        if not text.isascii() or "_" in text or text != text.strip():
            raise ValueError
        return float(text)
    except ValueError:  # of which a ParseError is one
        raise ParseError(
            f"cannot parse {shown(text)} as a number: expected a form like '1.5e-06'"
        ) from None


def _is_dim(name: object) -> bool:
    is_name = type(name) is str and re.fullmatch(_DIM, name, re.ASCII) is not None
    return is_name and name not in ("B", "T", "W")


def _legal_monomial(text: object) -> Monomial:
    if type(text) is not str:
        raise InvalidValueError(f"monomial {shown(text)}: a monomial is a str; give one like 'T'")
    try:
        return Monomial.parse(text)
    except ParseError as error:
        raise InvalidValueError(str(error)) from None


def _finite(value: object, what: str) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an int beyond the largest float
        pass
    raise InvalidValueError(f"{what} is {shown(value)}: it must be a finite number; give one")
