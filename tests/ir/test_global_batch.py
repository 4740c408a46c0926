"""Global batches: where they end, that a seed fixes them, and how buckets count them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.bucket import Bucket
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.global_batch import count_documents, global_batches
from shardwise.ir.lengths import Lengths

SETTINGS = settings(deadline=None, max_examples=50)
ONE = Lengths.parse('S empty=3 "" (0,512]:900:190000 (512,1024]:90:66000 (1024,9000]:10:25000')
TWO = Lengths.parse('S_src,S_tgt empty=0 "" (0,64]*(0,8]:9:300,40 (64,128]*(0,8]:1:99,4')


@SETTINGS
@given(
    st.sampled_from([ONE, TWO, np.array([[5], [1], [0], [700]])]),
    st.integers(1, 20_000),
    st.integers(1, 4),
    st.integers(0, 2**40),
)
def test_a_batch_ends_with_the_document_that_reaches_the_tokens(
    source, tokens, count, seed
) -> None:
    batches = global_batches(source, tokens, count=count, seed=seed)
    assert len(batches) == count
    for batch in batches:
        assert batch.dtype == np.int64
        assert (batch > 0).all()
        sums = batch.sum(axis=1).cumsum()
        assert sums[-1] >= tokens
        assert len(sums) == 1 or sums[-2] < tokens


@SETTINGS
@given(st.sampled_from([ONE, TWO]), st.integers(1, 20_000), st.integers(0, 2**40))
def test_batches_of_a_seed_do_not_depend_on_their_number(source, tokens, seed) -> None:
    few = global_batches(source, tokens, count=2, seed=seed)
    many = global_batches(source, tokens, count=4, seed=seed)
    for a, b in zip(few, many, strict=False):
        assert a.tolist() == b.tolist()


@SETTINGS
@given(st.integers(1, 5_000), st.integers(0, 2**40))
def test_a_larger_batch_begins_with_the_smaller_one(tokens, seed) -> None:
    """Documents come from one stream, whatever the number drawn at once."""
    small = global_batches(ONE, tokens, count=1, seed=seed)[0]
    large = global_batches(ONE, tokens * 5, count=1, seed=seed)[0]
    assert large[: len(small)].tolist() == small.tolist()


def test_seeds_and_batches_differ() -> None:
    first, second = global_batches(ONE, 50_000, count=2, seed=1)
    other = global_batches(ONE, 50_000, count=1, seed=2)[0]
    assert first.tolist() != second.tolist()
    assert first.tolist() != other.tolist()
    assert second.tolist() != other.tolist()


def test_real_documents_are_the_ones_drawn() -> None:
    real = np.array([[3, 4], [0, 9], [10, 20]])
    batch = global_batches(real, 2000, count=1, seed=0)[0]
    assert {tuple(row) for row in batch.tolist()} == {(3, 4), (10, 20)}


def test_the_mean_number_of_documents() -> None:
    batches = global_batches(ONE, 100_000, count=64, seed=0)
    documents = np.mean([len(batch) for batch in batches])
    assert abs(documents / (100_000 / ONE.mean_tokens) - 1) < 0.05


@SETTINGS
@given(st.lists(st.integers(1, 60), min_size=1, max_size=30))
def test_counts_are_those_of_the_buckets(lengths) -> None:
    buckets = [Bucket.parse(text) for text in ("S(10,40]", "S(0,8]", "S(5,45]")]
    counts = count_documents([np.array(lengths)[:, None]], ("S",), buckets)[0]
    expected = [0, 0, 0, 0]
    for length in lengths:
        hits = [index for index, bucket in enumerate(buckets) if bucket.contains({"S": length})]
        expected[hits[0] if hits else 3] += 1
    assert counts.tolist() == expected


def test_counts_of_two_dims_follow_the_names() -> None:
    batch = np.array([[5, 100], [100, 5], [5, 5]])
    bucket = Bucket.parse("b(0,10]*a(50,200]")
    assert count_documents([batch, batch[:1]], ("a", "b"), [bucket]).tolist() == [
        [1, 2],
        [0, 1],
    ]
    assert count_documents([batch], ("a", "b"), []).tolist() == [[3]]


def test_bad_arguments_say_what_is_wrong() -> None:
    for arguments, problem in (
        ((ONE, 0, 1, 0), "tokens_per_step"),
        ((ONE, 1.5, 1, 0), "tokens_per_step"),
        ((ONE, 1, 0, 0), "count"),
        ((ONE, 1, 1, -1), "seed"),
        ((np.array([[0]]), 1, 1, 0), "no real document"),
        ((np.array([3]), 1, 1, 0), "shape"),
        ((np.array([[0.5]]), 1, 1, 0), "whole lengths"),
        ((np.array([[3], [-1]]), 1, 1, 0), "negative"),
    ):
        source, tokens, count, seed = arguments
        with pytest.raises(InvalidValueError, match=problem):
            global_batches(source, tokens, count=count, seed=seed)
    with pytest.raises(InvalidValueError, match="a column for each"):
        count_documents([np.array([[1, 2]])], ("S",), [])
    with pytest.raises(InvalidValueError, match="other dims"):
        count_documents([np.array([[1]])], ("S",), [Bucket.parse("T(0,1]")])
