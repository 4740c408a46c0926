"""LengthLaw: how the lengths inside one bin (low, high] are spread, given how many and their
mean.

The lengths are x rounded to a whole number, where x has a density proportional to x**(a - 1) on
(low + 1/2, high + 1/2]: log-uniform for a = 0. Where the mean length of the bin is known, `a`
is chosen so that the law has that mean (of all laws with that mean this is the one of most
entropy in log x); a histogram's tokens are then those of its samples, however coarse its
bins. The half steps make the law start above 0 and put a bin of one length on that length. A
mean at an end of the bin is a point there.

Sums over lengths are exact in bins of at most EXACT_WIDTH lengths; in wider ones they are
integrals, whose relative error is below 1e-3 (it comes from the shortest lengths of bins that
start at 0).
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

EXACT_WIDTH: Final = 512
"""Widest bin whose means are summed length by length."""

_SMALL: Final = 1e-12


def log_growth(exponent: float, span: float) -> float:
    """log of the integral of exp(exponent * u) over u from 0 to span > 0, stable."""
    steps = exponent * span
    if abs(steps) < _SMALL:
        return math.log(span)
    if steps > 0:
        return steps + math.log(-math.expm1(-steps) / exponent)
    return math.log(math.expm1(steps) / exponent)


@dataclass(frozen=True, slots=True)
class LengthLaw:
    """The law of one bin in one dim, per document. Built by `length_law`."""

    low: int
    high: int
    exponent: float
    """`a` above; -inf and inf are points at low + 1 and at high."""

    def share_below(self, length: int) -> float:
        """Share of the bin's documents that are at most `length` long."""
        if length <= self.low:
            return 0.0
        if length >= self.high:
            return 1.0
        if math.isinf(self.exponent):
            return float(self.exponent < 0)
        return self._share(math.log((length + 0.5) / (self.low + 0.5)))

    def tokens_below(self, length: int) -> float:
        """Tokens per document of the bin that lie in documents of at most `length` tokens."""
        if length <= self.low:
            return 0.0
        if math.isinf(self.exponent):
            point = self.low + 1 if self.exponent < 0 else self.high
            return float(point) if length >= point else 0.0
        last = min(length, self.high)
        if self.high - self.low <= EXACT_WIDTH:
            lengths = np.arange(self.low + 1, last + 1)
            return float((lengths * self._masses(lengths)).sum())
        span = math.log((last + 0.5) / (self.low + 0.5))
        whole = log_growth(self.exponent, self._log_span)
        part = log_growth(self.exponent + 1, span)
        return (self.low + 0.5) * math.exp(part - whole)

    @property
    def mean(self) -> float:
        """Mean length of the bin's documents."""
        return self.tokens_below(self.high)

    @property
    def _log_span(self) -> float:
        return math.log((self.high + 0.5) / (self.low + 0.5))

    def _share(self, log_ratio: float) -> float:
        part = log_growth(self.exponent, log_ratio)
        return min(1.0, math.exp(part - log_growth(self.exponent, self._log_span)))

    def _masses(self, lengths: npt.NDArray[np.int64]) -> FloatArray:
        """Share of the documents at each of the lengths (inside the bin)."""
        log_ratio = np.log((lengths + 0.5) / (self.low + 0.5))
        step = np.log((lengths + 0.5) / (lengths - 0.5))
        # the integral of exp(a * u) over each step is exp(a * u) at its larger end times growth
        steps = self.exponent * step
        tiny = np.abs(steps) < _SMALL
        rate = np.where(tiny, 1.0, -abs(self.exponent))
        growth = np.where(tiny, step, np.expm1(-np.abs(steps)) / rate)
        larger = log_ratio - (step if self.exponent < 0 else 0.0)
        exponent = self.exponent * larger - log_growth(self.exponent, self._log_span)
        masses: FloatArray = np.exp(exponent) * growth
        return masses


@lru_cache(maxsize=65536)
def length_law(low: int, high: int, mean: float | None = None) -> LengthLaw:
    """The law of bin (low, high] with that mean length; log-uniform for None.

    `mean` is taken into [low + 1, high], the means that lengths of the bin can have.
    """
    if mean is None:
        return LengthLaw(low, high, 0.0)
    if mean <= low + 1:
        return LengthLaw(low, high, -math.inf)
    if mean >= high:
        return LengthLaw(low, high, math.inf)
    below, above = -1.0, 1.0
    while LengthLaw(low, high, below).mean > mean:
        below *= 2
        if below < -(2.0**60):
            return LengthLaw(low, high, -math.inf)
    while LengthLaw(low, high, above).mean < mean:
        above *= 2
        if above > 2.0**60:
            return LengthLaw(low, high, math.inf)
    while True:
        middle = (below + above) / 2
        if not below < middle < above or above - below < 1e-13 * max(1.0, abs(middle)):
            return LengthLaw(low, high, middle)
        if LengthLaw(low, high, middle).mean < mean:
            below = middle
        else:
            above = middle


def quantiles(
    shares: FloatArray, low: FloatArray, high: FloatArray, exponent: FloatArray
) -> npt.NDArray[np.int64]:
    """Lengths at shares in [0, 1) of the laws given by arrays of the same shape."""
    start = low + 0.5
    span = np.log((high + 0.5) / start)
    point = np.isinf(exponent)
    rate = np.where(point, 0.0, exponent)
    falling = -np.abs(rate)
    # a law that rises is the mirror image of one that falls
    share = np.where(rate > 0, 1.0 - shares, shares)
    flat = np.abs(rate * span) < _SMALL
    # not quite -1, the argument of a steep law at the very end of its bin
    argument = np.maximum(share * np.expm1(falling * span), np.nextafter(-1.0, 0.0))
    tilted = np.log1p(argument) / np.where(flat, 1.0, falling)
    log_ratio = np.where(flat, share * span, tilted)
    log_ratio = np.where(rate > 0, span - log_ratio, log_ratio)
    lengths = np.ceil(start * np.exp(log_ratio) - 0.5)
    lengths = np.where(point, np.where(exponent < 0, low + 1, high), lengths)
    result: npt.NDArray[np.int64] = np.clip(lengths, low + 1, high).astype(np.int64)
    return result
