"""Length bins: their checks, text and order."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.length_bin import LengthBin, first_disorder


@st.composite
def length_bins(draw, rank=None):
    rank = rank or draw(st.integers(1, 3))
    low = tuple(draw(st.integers(0, 5000)) for _ in range(rank))
    high = tuple(bound + draw(st.integers(1, 5000)) for bound in low)
    documents = draw(st.just(0.0) | st.floats(1e-3, 1e9))
    means = [a + 1 + draw(st.floats(0, 1)) * (b - a - 1) for a, b in zip(low, high, strict=True)]
    return LengthBin(low, high, documents, tuple(documents * mean for mean in means))


@settings(deadline=None, max_examples=100)
@given(length_bins())
def test_a_bin_parses_back(item) -> None:
    assert LengthBin.parse(str(item)) == item


def test_texts() -> None:
    assert str(LengthBin((0,), (512,), 100, (20000,))) == "(0,512]:100:20000"
    two = LengthBin((0, 8), (512, 9), 0.5, (20.25, 4.5))
    assert str(two) == "(0,512]*(8,9]:0.5:20.25,4.5"


@settings(deadline=None, max_examples=50)
@given(length_bins(rank=1))
def test_the_law_has_the_mean_of_the_bin(item) -> None:
    if item.documents:
        law = item.law(0)
        assert (law.low, law.high) == (item.low[0], item.high[0])
        assert math.isclose(law.mean, item.tokens[0] / item.documents, rel_tol=1e-6)


def test_each_dim_has_its_law() -> None:
    item = LengthBin((0, 8), (512, 9), 2, (400, 18))
    assert math.isclose(item.law(0).mean, 200)
    assert item.law(1).mean == 9


def test_rounded_tokens_are_taken() -> None:
    LengthBin((512,), (1024,), 1_000_000, (1_024_000_500,))
    LengthBin((512,), (1024,), 1_000_000, (512_999_500,))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (((), (), 1, ()), "one of each"),
        (((0,), (8, 9), 1, (4,)), "one of each"),
        (((0,), (8,), 1, (4, 4)), "one of each"),
        (((8,), (8,), 1, (8,)), "low below high"),
        (((-1,), (8,), 1, (4,)), "whole number"),
        (((0,), (8,), -1, (4,)), "documents of a bin is -1"),
        (((0,), (8,), math.nan, (4,)), "documents"),
        (((0,), (8,), math.inf, (4,)), "documents"),
        (((0,), (8,), 1, (-4,)), "tokens of a bin"),
        (((0,), (8,), 1, (math.nan,)), "tokens of a bin"),
        (((0,), (8,), 10, (9,)), "hold 10 to 80"),
        (((0,), (8,), 10, (81,)), "hold 10 to 80"),
        (((0,), (8,), 0, (1,)), "hold 0 to 0"),
    ],
)
def test_a_bad_bin_says_what_is_wrong(arguments, problem) -> None:
    with pytest.raises(InvalidValueError, match=problem) as error:
        LengthBin(*arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["", "(0,8]", "(0,8]:1", "(0,8]:1:", "(0,8]:10:9", "(0,8]:1:2,3", "(0,8]:1:2 ", None],
)
def test_a_bad_text_does_not_parse(text) -> None:
    with pytest.raises(ParseError):
        LengthBin.parse(text)


def box(*bounds):
    low, high = zip(*bounds, strict=True)
    return LengthBin(low, high, 0, (0,) * len(low))


@settings(deadline=None, max_examples=100)
@given(st.lists(length_bins(rank=2), max_size=8))
def test_disorder_is_found_where_it_is(bins) -> None:
    expected = None
    for index in range(1, len(bins)):
        hits = [before for before in range(index) if bins[before].overlaps(bins[index])]
        if hits:
            expected = (hits[0], index, "overlaps")
        elif bins[index].low < bins[index - 1].low:
            expected = (index - 1, index, "is below")
        if expected:
            break
    assert first_disorder(bins) == expected


def test_one_dim_in_order_has_no_disorder() -> None:
    assert first_disorder([]) is None
    assert first_disorder([box((0, 8)), box((8, 9)), box((20, 30))]) is None
    assert first_disorder([box((0, 8)), box((7, 9))]) == (0, 1, "overlaps")
    assert first_disorder([box((8, 9)), box((0, 8))]) == (0, 1, "is below")
    assert first_disorder([box((0, 8)), box((8, 99)), box((9, 10))]) == (1, 2, "overlaps")


def test_boxes_that_touch_do_not_overlap() -> None:
    first, second = box((0, 8), (0, 8)), box((8, 9), (0, 8))
    assert not first.overlaps(second)
    assert not second.overlaps(first)
    assert box((0, 8), (0, 8)).overlaps(box((7, 9), (7, 9)))
