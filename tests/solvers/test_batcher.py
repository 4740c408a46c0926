"""The batcher places every document once, in a bucket that holds it, in few slots."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError
from shardwise.solvers.batcher import BucketShape, batch_slots, bucket_of

EDGES = (0, 16, 64, 256)


@st.composite
def shapes(draw):
    result = []
    for low, high in itertools.pairwise(EDGES):
        middle = draw(st.integers(low + 1, high))
        padded = tuple(sorted({middle, high}))
        result.append(
            BucketShape(low, high, draw(st.integers(1, 4)), draw(st.integers(1, 3)), padded)
        )
    return tuple(result)


@given(shapes(), st.lists(st.integers(0, EDGES[-1]), max_size=60), st.booleans())
@settings(deadline=None)
def test_every_document_stands_once_where_it_fits(buckets, lengths, fill):
    slots = batch_slots(lengths, buckets, fill=fill)
    placed = [i for slot in slots for row in slot.documents for i in row]
    assert sorted(placed) == [i for i, n in enumerate(lengths) if n > 0]
    for slot in slots:
        shape = buckets[slot.bucket]
        assert len(slot.documents) == shape.batch_degree
        assert slot.length in shape.padded
        assert all(len(row) <= shape.seats for row in slot.documents)
        assert any(slot.documents)
        assert all(lengths[i] <= slot.length for row in slot.documents for i in row)
    assert [slot.bucket for slot in slots] == sorted(slot.bucket for slot in slots)


@given(shapes(), st.lists(st.integers(0, EDGES[-1]), max_size=60))
@settings(deadline=None)
def test_slot_counts(buckets, lengths):
    plain = batch_slots(lengths, buckets, fill=False)
    for index, shape in enumerate(buckets):
        documents = sum(bucket_of(n, buckets) == index for n in lengths)
        count = sum(slot.bucket == index for slot in plain)
        assert count == math.ceil(documents / shape.documents_per_slot)
    filled = batch_slots(lengths, buckets)
    assert len(filled) <= len(plain)
    assert sum(s.length for s in filled) <= sum(s.length for s in plain) or len(filled) < len(plain)


@given(shapes(), st.lists(st.integers(1, EDGES[-1]), min_size=1, max_size=60))
@settings(deadline=None)
def test_padding_is_the_least_for_sorted_groups(buckets, lengths):
    slots = batch_slots(lengths, buckets, fill=False)
    for slot in slots:
        longest = max(lengths[i] for row in slot.documents for i in row)
        shape = buckets[slot.bucket]
        assert slot.length == min(n for n in shape.padded if n >= longest)


def test_filling_saves_a_slot():
    buckets = (BucketShape(0, 16, 2, 1, (16,)), BucketShape(16, 64, 2, 1, (64,)))
    assert len(batch_slots([5, 40], buckets, fill=False)) == 2
    (slot,) = batch_slots([5, 40], buckets)
    assert str(slot) == "b1 S64 0|1"


def test_a_document_over_the_last_bucket_is_refused():
    with pytest.raises(InvalidValueError, match=r"document 1 has 257 tokens.*\(64, 256\].*split"):
        batch_slots([3, 257], tuple(BucketShape(a, b, 1, 1, (b,)) for a, b in [(0, 64), (64, 256)]))


@pytest.mark.parametrize(
    "arguments",
    [(4, 4, 1, 1, (4,)), (0, 4, 0, 1, (4,)), (0, 4, 1, 1, (3,)), (0, 4, 1, 1, (4, 2))],
)
def test_bad_shapes_are_refused(arguments):
    with pytest.raises(InvalidValueError):
        BucketShape(*arguments)
