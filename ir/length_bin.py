"""LengthBin: a box of document lengths with its documents and tokens, and the order of such
boxes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from shardwise.ir.bucket import check_bounds
from shardwise.ir.curve import check_float, number_text, parse_checked, scan_number
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.length_law import LengthLaw, length_law
from shardwise.ir.scanner import Scanner, check_kind

_SLACK: Final = 1e-6
"""Relative: how far rounded tokens may lie outside what the bounds allow."""


@dataclass(frozen=True, slots=True)
class LengthBin:
    """Documents whose length in dim d is over low[d] and at most high[d]. Text
    `(0,512]:100:20000`.

    Raises InvalidValueError for bounds not 0 <= low < high, a negative or non-finite number, or
    tokens that lengths in the bin cannot add up to.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    documents: float
    """How many; any unit (counts, shares), the same in every bin of a histogram."""
    tokens: tuple[float, ...]
    """Of all the documents together, by dim, in tokens per unit of `documents`."""

    def __post_init__(self) -> None:
        for what in ("low", "high", "tokens"):
            check_kind(getattr(self, what), tuple, f"{what} of a bin")
        rank = len(self.low)
        if rank == 0 or len(self.high) != rank or len(self.tokens) != rank:
            raise InvalidValueError(
                f"a bin has {rank} low, {len(self.high)} high, {len(self.tokens)} tokens; give "
                "one of each for every dim"
            )
        for low, high in zip(self.low, self.high, strict=True):
            check_bounds(low, high, "a bin")
        documents = check_float(self.documents, "documents of a bin")
        tokens = tuple(check_float(item, "tokens of a bin") for item in self.tokens)
        object.__setattr__(self, "documents", documents)
        object.__setattr__(self, "tokens", tokens)
        for low, high, item in zip(self.low, self.high, tokens, strict=True):
            least, most = documents * (low + 1), documents * high
            if not least * (1 - _SLACK) <= item <= most * (1 + _SLACK):
                raise InvalidValueError(
                    f"{number_text(item)} tokens in {number_text(documents)} documents of "
                    f"lengths {low + 1} to {high}, which hold {number_text(least)} to "
                    f"{number_text(most)}; correct tokens, documents or the bounds"
                )

    def law(self, dim: int) -> LengthLaw:
        """How lengths in the dim with that index are spread; for a bin with documents."""
        return length_law(self.low[dim], self.high[dim], self.tokens[dim] / self.documents)

    def overlaps(self, other: "LengthBin") -> bool:
        """Whether a document can be in both bins."""
        bounds = zip(self.low, self.high, other.low, other.high, strict=True)
        return all(a < d and c < b for a, b, c, d in bounds)

    def __str__(self) -> str:
        box = "*".join(f"({a},{b}]" for a, b in zip(self.low, self.high, strict=True))
        return f"{box}:{number_text(self.documents)}:{','.join(map(number_text, self.tokens))}"

    @classmethod
    def parse(cls, text: str) -> "LengthBin":
        """The inverse of `str`; raises ParseError."""
        return parse_checked(text, "'(0,512]:100:20000'", cls.scan)

    @classmethod
    def scan(cls, scanner: Scanner) -> "LengthBin":
        """Read one at the scanner's position; raises ParseError or InvalidValueError."""
        low: list[int] = []
        high: list[int] = []
        while not low or scanner.take("*"):
            scanner.expect("(")
            low.append(scanner.integer())
            scanner.expect(",")
            high.append(scanner.integer())
            scanner.expect("]")
        scanner.expect(":")
        documents = scan_number(scanner)
        scanner.expect(":")
        tokens = [scan_number(scanner)]
        while scanner.take(","):
            tokens.append(scan_number(scanner))
        return cls(tuple(low), tuple(high), documents, tuple(tokens))


def first_disorder(bins: Sequence[LengthBin]) -> tuple[int, int, str] | None:
    """(index, index, what is wrong) of the first two bins that overlap or are out of order."""
    if not bins:
        return None
    lows = np.array([item.low for item in bins], dtype=np.int64)
    highs = np.array([item.high for item in bins], dtype=np.int64)
    if lows.shape[1] == 1 and (lows[1:] >= highs[:-1]).all():
        return None
    for index in range(1, len(bins)):
        both = (lows[:index] < highs[index]) & (lows[index] < highs[:index])
        hits = np.flatnonzero(both.all(axis=1))
        if hits.size:
            return int(hits[0]), index, "overlaps"
        if bins[index].low < bins[index - 1].low:
            return index - 1, index, "is below"
    return None
