"""The law of lengths inside a bin, against sums and integrals done the long way."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.length_law import EXACT_WIDTH, LengthLaw, length_law, log_growth, quantiles

SETTINGS = settings(deadline=None, max_examples=60)


@st.composite
def bins(draw, widest=2000):
    low = draw(st.integers(0, 3000))
    return low, low + draw(st.integers(1, widest))


@st.composite
def laws(draw, widest=2000):
    low, high = draw(bins(widest))
    mean = draw(st.none() | st.floats(low + 1, high))
    return length_law(low, high, mean)


def masses(law):
    """Share of documents at each length: the density x**(a - 1), normalised, over each unit."""
    edges = np.arange(law.low, law.high + 1) + 0.5
    if math.isinf(law.exponent):
        point = law.low + 1 if law.exponent < 0 else law.high
        return (np.arange(law.low + 1, law.high + 1) == point).astype(float)
    if law.exponent == 0:
        parts = np.diff(np.log(edges))
    else:
        reference = edges[-1] if law.exponent > 0 else edges[0]
        parts = np.diff((edges / reference) ** law.exponent) / law.exponent
    return parts / parts.sum()


@SETTINGS
@given(laws())
def test_shares_below_are_sums_of_masses(law) -> None:
    sums = np.concatenate([[0.0], np.cumsum(masses(law))])
    step = max(1, (law.high - law.low) // 20)
    for length in range(law.low, law.high + 1, step):
        assert math.isclose(law.share_below(length), sums[length - law.low], abs_tol=1e-9)
    assert law.share_below(law.low) == 0
    assert law.share_below(law.high) == 1


@SETTINGS
@given(laws())
def test_tokens_below_are_sums_of_lengths(law) -> None:
    lengths = np.arange(law.low + 1, law.high + 1)
    sums = np.concatenate([[0.0], np.cumsum(lengths * masses(law))])
    step = max(1, (law.high - law.low) // 20)
    exact = law.high - law.low <= EXACT_WIDTH
    for length in range(law.low, law.high + 1, step):
        tolerance = 1e-9 if exact else 1e-3
        expected = sums[length - law.low]
        found = law.tokens_below(length)
        assert math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance * law.mean)


@SETTINGS
@given(bins(), st.floats(0, 1))
def test_the_law_has_the_mean_that_was_asked_for(bounds, share) -> None:
    low, high = bounds
    mean = low + 1 + share * (high - low - 1)
    assert math.isclose(length_law(low, high, mean).mean, mean, rel_tol=1e-6)


@SETTINGS
@given(st.integers(0, 10**6), st.integers(1, 10**7), st.floats(0.001, 0.999))
def test_wide_bins_have_their_mean_too(low, width, share) -> None:
    mean = low + 1 + share * (width - 1)
    assert math.isclose(length_law(low, low + width, mean).mean, mean, rel_tol=1e-6)


def test_without_a_mean_the_bin_is_log_uniform() -> None:
    law = length_law(512, 1024)
    assert law.exponent == 0
    middle = round(math.sqrt(512.5 * 1024.5) - 0.5)
    assert abs(law.share_below(middle) - 0.5) < 1e-3
    assert abs(law.mean - 512 / math.log(1024.5 / 512.5)) < 0.1


def test_the_mean_of_the_log_uniform_law_gives_it_back() -> None:
    mean = length_law(512, 1000).mean
    assert abs(length_law(512, 1000, mean).exponent) < 1e-6


def test_means_at_the_ends_are_points() -> None:
    assert length_law(4, 9, 9.0) == LengthLaw(4, 9, math.inf)
    assert length_law(4, 9, 5.0) == LengthLaw(4, 9, -math.inf)
    assert [length_law(4, 9, 9.0).share_below(n) for n in (7, 8, 9)] == [0, 0, 1]
    assert [length_law(4, 9, 5.0).share_below(n) for n in (4, 5, 9)] == [0, 1, 1]
    assert [length_law(4, 9, 9.0).tokens_below(n) for n in (8, 9, 99)] == [0, 9, 9]
    assert [length_law(4, 9, 5.0).tokens_below(n) for n in (4, 5, 99)] == [0, 5, 5]
    assert length_law(4, 9, 99.0).mean == 9
    assert length_law(4, 9, 0.0).mean == 5


def test_a_bin_of_one_length_is_that_length() -> None:
    for mean in (None, 8.0):
        assert math.isclose(length_law(7, 8, mean).mean, 8.0)


@pytest.mark.parametrize("offset", [1e-12, 1e-9, 1e-6, 0.01])
@pytest.mark.parametrize(("low", "high"), [(0, 3), (0, 512), (0, 4096), (4095, 2**30)])
def test_means_close_to_the_ends_do_not_break(low, high, offset) -> None:
    for mean in (low + 1 + offset, high - offset):
        law = length_law(low, high, mean)
        assert math.isclose(law.mean, mean, rel_tol=1e-3)
        assert 0 <= law.share_below((low + high) // 2) <= 1


@SETTINGS
@given(st.floats(-200, 200), st.floats(1e-6, 20))
def test_log_growth_is_the_log_of_the_integral(exponent, span) -> None:
    grid = np.linspace(0, span, 20001)
    values = exponent * grid
    top = values.max()
    integral = np.trapezoid(np.exp(values - top), grid)
    assert math.isclose(
        log_growth(exponent, span), top + math.log(integral), rel_tol=0, abs_tol=2e-2
    )
    assert log_growth(0.0, span) == math.log(span)


@SETTINGS
@given(laws(widest=60))
def test_quantiles_invert_the_shares(law) -> None:
    """A length comes out for exactly the shares between those below it and up to it."""
    shares = (np.arange(400) + 0.5) / 400
    same = np.ones_like(shares)
    found = quantiles(shares, law.low * same, law.high * same, law.exponent * same)
    assert found.dtype == np.int64
    for share, length in zip(shares, found, strict=True):
        assert law.share_below(int(length) - 1) <= share + 1e-9
        assert law.share_below(int(length)) >= share - 1e-9


@SETTINGS
@given(laws())
def test_quantiles_stay_inside_the_bin(law) -> None:
    shares = np.array([0.0, 1e-300, 0.5, np.nextafter(1.0, 0.0)])
    same = np.ones_like(shares)
    found = quantiles(shares, law.low * same, law.high * same, law.exponent * same)
    assert found.min() > law.low
    assert found.max() <= law.high
    assert (np.diff(found) >= 0).all()
