"""Histograms of lengths: text, samples, masses and percentiles that agree with each other."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.bucket import Band, Bucket
from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.length_bin import LengthBin
from shardwise.ir.lengths import Lengths, Mass

SETTINGS = settings(deadline=None, max_examples=50)
DIMS = (("S",), ("S_src", "S_tgt"))


@st.composite
def documents(draw, most=300):
    """Lengths of documents [n, dims] with some of them over 0 in every dim."""
    dims = draw(st.sampled_from(DIMS))
    row = st.lists(st.integers(0, most), min_size=len(dims), max_size=len(dims))
    rows = draw(st.lists(row, min_size=1, max_size=60))
    rows.append([draw(st.integers(1, most)) for _ in dims])
    return dims, np.array(rows)


@st.composite
def histograms(draw):
    dims, array = draw(documents())
    return Lengths.from_samples(array, dims=dims, source=draw(st.sampled_from(["", "a b"])))


@st.composite
def buckets(draw, dims, most=320):
    bands = []
    for dim in draw(st.permutations(dims)):
        low = draw(st.integers(0, most - 1))
        bands.append(Band(dim, low, draw(st.integers(low + 1, most))))
    return Bucket(tuple(bands))


def everything(lengths):
    return Bucket(tuple(Band(dim, 0, top) for dim, top in lengths.largest().items()))


def close(found: Mass, expected: Mass):
    numbers = zip(
        [found.documents, *found.tokens], [expected.documents, *expected.tokens], strict=True
    )
    return all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) for a, b in numbers)


@SETTINGS
@given(histograms())
def test_a_histogram_parses_back(lengths) -> None:
    assert Lengths.parse(str(lengths)) == lengths


@SETTINGS
@given(documents())
def test_a_histogram_of_samples_keeps_documents_and_tokens(sample) -> None:
    dims, array = sample
    lengths = Lengths.from_samples(array, dims=dims)
    full = array[(array > 0).all(axis=1)]
    assert lengths.documents == len(full)
    assert lengths.empty_documents == len(array) - len(full)
    assert lengths.tokens == tuple(full.sum(axis=0))
    assert math.isclose(lengths.mean_tokens, full.sum() / len(full))
    assert lengths.largest() == dict(zip(dims, full.max(axis=0), strict=True))
    whole = lengths.mass(everything(lengths))
    assert close(whole, Mass(len(full), tuple(full.sum(axis=0))))


@SETTINGS
@given(documents(most=40))
def test_with_an_edge_at_every_length_masses_are_counts(sample) -> None:
    dims, array = sample
    lengths = Lengths.from_samples(array, [range(42)] * len(dims), dims=dims)
    half = Bucket(tuple(Band(dim, 3, 20) for dim in reversed(dims)))
    held = array[((array > 3) & (array <= 20)).all(axis=1)]
    assert close(lengths.mass(half), Mass(len(held), tuple(held.sum(axis=0))))


@SETTINGS
@given(histograms(), st.data())
def test_masses_add_up(lengths, data) -> None:
    bucket = data.draw(buckets(lengths.dims))
    band = bucket.ranges[0]
    if band.high - band.low < 2:
        return
    cut = data.draw(st.integers(band.low + 1, band.high - 1))
    parts = [
        lengths.mass(Bucket((part, *bucket.ranges[1:])))
        for part in (Band(band.dim, band.low, cut), Band(band.dim, cut, band.high))
    ]
    total = Mass(
        sum(part.documents for part in parts),
        tuple(sum(values) for values in zip(*(part.tokens for part in parts), strict=True)),
    )
    assert close(lengths.mass(bucket), total)


@SETTINGS
@given(histograms(), st.data())
def test_a_larger_bucket_holds_at_least_as_much(lengths, data) -> None:
    bucket = data.draw(buckets(lengths.dims))
    wider = Bucket(tuple(Band(band.dim, band.low, band.high + 7) for band in bucket.ranges))
    small, large = lengths.mass(bucket), lengths.mass(wider)
    assert large.documents >= small.documents - 1e-6
    assert all(b >= a - 1e-6 * max(a, 1) for a, b in zip(small.tokens, large.tokens, strict=True))


def test_a_bucket_that_cuts_a_bin_splits_it_log_uniformly() -> None:
    """Tokens as of the log-uniform law: a cut at the geometric middle halves the documents."""
    low, high = 2**12, 2**14
    mean = (high - low) / math.log(high / low)
    lengths = Lengths(("S",), (LengthBin((low,), (high,), 100, (100 * mean,)),))
    mass = lengths.mass(Bucket.parse(f"S(0,{2**13}]"))
    assert math.isclose(mass.documents, 50, rel_tol=1e-3)
    assert math.isclose(mass.tokens[0], 100 * (2**13 - low) / math.log(4), rel_tol=1e-3)


def test_a_bin_with_more_tokens_has_more_long_documents() -> None:
    short, long = (
        Lengths(("S",), (LengthBin((0,), (512,), 100, (tokens,)),)).mass(Bucket.parse("S(0,256]"))
        for tokens in (10_000.0, 40_000.0)
    )
    assert short.documents > long.documents


@SETTINGS
@given(histograms(), st.integers(0, 2**32))
def test_samples_follow_the_masses(lengths, seed) -> None:
    count = 4000
    sample = lengths.sample(np.random.default_rng(seed), count)
    assert sample.shape == (count, len(lengths.dims))
    assert sample.dtype == np.int64
    assert (sample > 0).all()
    for low, high in ((0, 20), (20, 150)):
        bucket = Bucket(tuple(Band(dim, low, high) for dim in lengths.dims))
        share = lengths.mass(bucket).documents / lengths.documents
        found = ((sample > low) & (sample <= high)).all(axis=1).mean()
        assert abs(found - share) < 6 * math.sqrt(max(share * (1 - share), 1 / count) / count)


@SETTINGS
@given(histograms(), st.integers(0, 2**32))
def test_samples_are_inside_the_bins(lengths, seed) -> None:
    for row in lengths.sample(np.random.default_rng(seed), 50):
        inside = [
            all(a < n <= b for n, a, b in zip(row, item.low, item.high, strict=True))
            for item in lengths.bins
        ]
        assert inside.count(True) == 1


def test_samples_have_the_tokens_of_the_histogram() -> None:
    bins = (
        LengthBin((0,), (512,), 900, (900 * 215.0,)),
        LengthBin((512,), (4096,), 100, (2e5,)),
    )
    lengths = Lengths(("S",), bins)
    sample = lengths.sample(np.random.default_rng(5), 200_000)
    assert math.isclose(sample.mean(), lengths.mean_tokens, rel_tol=0.01)


@SETTINGS
@given(histograms(), st.integers(0, 2**32), st.integers(0, 40))
def test_drawing_in_parts_gives_the_same_documents(lengths, seed, first) -> None:
    whole = lengths.sample(np.random.default_rng(seed), 40)
    rng = np.random.default_rng(seed)
    parts = [lengths.sample(rng, first), lengths.sample(rng, 40 - first)]
    assert (np.concatenate(parts) == whole).all()


def test_samples_of_a_seed_stay_the_same() -> None:
    """A plan's score depends on these: a change here changes scores."""
    lengths = Lengths.parse('S empty=0 "" (0,512]:9:1900 (512,1024]:1:700')
    sample = lengths.sample(np.random.default_rng([0, 0]), 6)
    assert sample[:, 0].tolist() == [79, 2, 450, 326, 465, 1]


@SETTINGS
@given(documents())
def test_percentiles_are_those_of_the_documents_at_bin_edges(sample) -> None:
    dims, array = sample
    lengths = Lengths.from_samples(array, [range(302)] * len(dims), dims=dims)
    full = array[(array > 0).all(axis=1)]
    for index, dim in enumerate(dims):
        ordered = np.sort(full[:, index])
        tokens = np.cumsum(ordered)
        for row in lengths.percentiles(dim, (1, 37.5, 50, 99, 100)):
            share = row.percent / 100
            rank = math.ceil(share * len(ordered) * (1 - 1e-9))
            assert row.length == ordered[max(rank, 1) - 1]
            place = np.searchsorted(tokens, share * tokens[-1] * (1 - 1e-9))
            assert row.token_length == ordered[place]


def test_the_percentile_table() -> None:
    lengths = Lengths.parse('S empty=0 "" (0,1]:50:50 (7,8]:50:400')
    rows = lengths.percentiles("S")
    assert [row.percent for row in rows] == [1, 5, 25, 50, 75, 90, 95, 99, 99.9, 100]
    assert [row.length for row in rows] == [1, 1, 1, 1, 8, 8, 8, 8, 8, 8]
    assert rows[0].token_length == 1
    assert rows[2].token_length == 8
    with pytest.raises(InvalidValueError, match="it has S"):
        lengths.percentiles("T")
    with pytest.raises(InvalidValueError, match="percent"):
        lengths.percentiles("S", (0,))


def test_the_digest_is_of_the_distribution() -> None:
    lengths = Lengths.parse('S empty=1 "one" (0,8]:2:9')
    assert Lengths.parse('S empty=1 "two" (0,8]:2:9').digest() == lengths.digest()
    for other in (
        'T empty=1 "" (0,8]:2:9',
        'S empty=0 "" (0,8]:2:9',
        'S empty=1 "" (0,8]:2:10',
    ):
        assert Lengths.parse(other).digest() != lengths.digest()


def test_bins_without_documents_do_not_matter() -> None:
    lengths = Lengths.parse('S empty=0 "" (0,8]:2:9 (8,99]:0:0')
    assert lengths.largest() == {"S": 8}
    assert close(lengths.mass(Bucket.parse("S(0,99]")), Mass(2, (9.0,)))
    assert lengths.sample(np.random.default_rng(0), 100).max() <= 8
    assert lengths.percentiles("S", (100,))[0].length == 8


ITEM = LengthBin((0,), (8,), 2, (9,))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (((), (ITEM,)), "one or more"),
        ((("S", "S"), (ITEM,)), "each once"),
        ((("S S",), (ITEM,)), "length dim"),
        ((("S",), [ITEM]), "give a tuple"),
        ((("S",), ()), "no document"),
        ((("S",), (LengthBin((0,), (8,), 0, (0,)),)), "no document"),
        ((("a", "b"), (ITEM,)), "dims a, b"),
        ((("S",), (ITEM, LengthBin((7,), (9,), 1, (8,)))), "overlaps"),
        ((("S",), (LengthBin((8,), (9,), 1, (9,)), ITEM)), "is below"),
        ((("S",), (ITEM,), -1), "empty_documents"),
        ((("S",), (ITEM,), math.nan), "empty_documents"),
        ((("S",), (ITEM,), 0, "two\nlines"), "source"),
    ],
)
def test_a_bad_histogram_says_what_is_wrong(arguments, problem) -> None:
    with pytest.raises(InvalidValueError, match=problem) as error:
        Lengths(*arguments)
    assert "\n" not in str(error.value)


def test_from_samples_says_what_is_wrong() -> None:
    for samples, edges, problem in (
        ([0, 0], None, "none with a length over 0"),
        ([1, 2], [[0, 8], [0, 8]], "lists of edges"),
        ([1, 9], [[0, 8]], "outside the edges"),
        ([-1], None, "document 0"),
    ):
        with pytest.raises(InvalidValueError, match=problem):
            Lengths.from_samples(samples, edges)


def test_a_bucket_of_other_dims_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="band for each"):
        Lengths.parse('S empty=0 "" (0,8]:2:9').mass(Bucket.parse("T(0,8]"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "S",
        'S empty=0 ""',
        'S empty=0 "" (0,8]:2:99',
        'S empty=-1 "" (0,8]:2:9',
        'S empty=0 "" (0,8]:2:9 ',
        'S empty=0 "" (0,8]:2:9 (7,9]:1:8',
        None,
    ],
)
def test_a_bad_text_does_not_parse(text) -> None:
    with pytest.raises(ParseError):
        Lengths.parse(text)
