"""Buckets: boxes of lengths, text."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.bucket import Band, Bucket
from shardwise.ir.errors import InvalidValueError, ParseError

SETTINGS = settings(deadline=None, max_examples=100)
DIMS = ("S", "S_src", "S_tgt")


@st.composite
def buckets(draw, dims=None, most=12):
    names = dims or draw(st.lists(st.sampled_from(DIMS), min_size=1, unique=True))
    bands = []
    for dim in names:
        low = draw(st.integers(0, most - 1))
        bands.append(Band(dim, low, draw(st.integers(low + 1, most))))
    return Bucket(tuple(bands))


def inside(bucket, most=12):
    """Every combination of lengths in the bucket, by the definition of (low, high]."""
    ranges = [range(band.low + 1, band.high + 1) for band in bucket.ranges]
    names = sorted(bucket.dims)
    return {
        tuple(dict(zip(bucket.dims, point, strict=True))[name] for name in names)
        for point in itertools.product(*ranges)
    }


@SETTINGS
@given(buckets(most=2**40))
def test_a_bucket_parses_back(bucket) -> None:
    assert Bucket.parse(str(bucket)) == bucket
    assert Band.parse(str(bucket.ranges[0])) == bucket.ranges[0]


def test_texts() -> None:
    assert str(Bucket((Band("S", 0, 512),))) == "S(0,512]"
    two = Bucket((Band("S_src", 0, 512), Band("S_tgt", 0, 128)))
    assert str(two) == "S_src(0,512]*S_tgt(0,128]"
    assert two.largest() == {"S_src": 512, "S_tgt": 128}
    assert two.dims == ("S_src", "S_tgt")
    assert two.band("S_tgt") == Band("S_tgt", 0, 128)


def test_a_band_holds_its_high_end_and_not_its_low_end() -> None:
    bucket = Bucket.parse("S(4,8]")
    assert [n for n in range(12) if bucket.contains({"S": n})] == [5, 6, 7, 8]
    assert not Bucket.parse("S(0,8]").contains({"S": 0})
    assert Bucket.parse("S(0,8]").contains({"S": 1, "B": 3})


@SETTINGS
@given(buckets(dims=("S_src", "S_tgt"), most=6), st.integers(0, 7), st.integers(0, 7))
def test_contains_is_membership(bucket, source, target) -> None:
    assert bucket.contains({"S_src": source, "S_tgt": target}) == (
        (source, target) in inside(bucket)
    )


@SETTINGS
@given(buckets(dims=("S_src", "S_tgt"), most=6), buckets(dims=("S_tgt", "S_src"), most=6))
def test_overlaps_is_a_common_document(a, b) -> None:
    assert a.overlaps(b) == bool(inside(a) & inside(b))
    assert a.overlaps(b) == b.overlaps(a)


def test_neighbours_do_not_overlap() -> None:
    assert not Bucket.parse("S(0,8]").overlaps(Bucket.parse("S(8,9]"))
    assert Bucket.parse("S(0,8]").overlaps(Bucket.parse("S(7,9]"))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("S", 8, 8), "low below high"),
        (("S", 9, 8), "low below high"),
        (("S", -1, 8), "whole number"),
        (("S", 0, 2**40 + 1), "whole number"),
        (("S", 0, 8.0), "whole number"),
        (("S", False, 8), "whole number"),
        (("1S", 0, 8), "length dim"),
        (("", 0, 8), "length dim"),
        ((None, 0, 8), "length dim"),
    ],
)
def test_a_bad_band_says_what_is_wrong(arguments, problem) -> None:
    with pytest.raises(InvalidValueError, match=problem):
        Band(*arguments)


def test_a_bad_bucket_says_what_is_wrong() -> None:
    with pytest.raises(InvalidValueError, match="one or more"):
        Bucket(())
    with pytest.raises(InvalidValueError, match="give each once"):
        Bucket((Band("S", 0, 1), Band("S", 1, 2)))
    with pytest.raises(InvalidValueError, match="tuple"):
        Bucket([Band("S", 0, 1)])
    one = Bucket.parse("S(0,8]")
    with pytest.raises(InvalidValueError, match="without S"):
        one.contains({"S_src": 3})
    with pytest.raises(InvalidValueError, match="different dims"):
        one.overlaps(Bucket.parse("S_src(0,8]"))
    with pytest.raises(InvalidValueError, match="has no dim"):
        one.band("S_src")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "S",
        "S(0,8)",
        "S(0, 8]",
        "S(8,0]",
        "S(0,8]*",
        "S(0,8]*S(8,9]",
        "S(0,8] ",
        "S(-1,8]",
        "(0,8]",
        None,
    ],
)
def test_a_bad_text_does_not_parse(text) -> None:
    with pytest.raises(ParseError):
        Bucket.parse(text)
