"""Mean slot counts against the batcher, document by document."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError
from shardwise.solvers.batcher import BucketShape, batch_slots
from shardwise.solvers.slot_counts import SlotCounts, filled_slots, sample_batches
from tests.support.planning import SOME

EDGES = (0, 32, 128, 512, 1024)
TOKENS = 16384


def slots_of(batch, edges, ks, *, fill):
    shapes = [
        BucketShape(low, high, 1, k, (high,))
        for low, high, k in zip(edges, edges[1:], ks, strict=False)
    ]
    counts = [0] * len(shapes)
    for slot in batch_slots(batch.tolist(), shapes, fill=fill):
        counts[slot.bucket] += 1
    return counts


def test_exact_on_the_same_batches():
    batches = sample_batches(SOME, TOKENS, count=40, seed=1)
    counts = SlotCounts.of(batches, EDGES)
    ks = (8, 4, 3, 2)
    mean = np.mean([slots_of(batch, EDGES, ks, fill=False) for batch in batches], axis=0)
    assert [counts.mean_slots(i, i + 1, k) for i, k in enumerate(ks)] == pytest.approx(mean)
    assert counts.mean_slots(0, 4, 5) == np.mean([-(-len(batch) // 5) for batch in batches])
    assert counts.mean_documents(1, 3) == np.mean(
        [((batch > 32) & (batch <= 512)).sum() for batch in batches]
    )


def test_fresh_batches_agree_within_four_standard_errors():
    counts = SlotCounts.of(sample_batches(SOME, TOKENS), EDGES)
    fresh = sample_batches(SOME, TOKENS, count=256, seed=99)
    ks = (8, 4, 3, 2)
    slots = np.array([slots_of(batch, EDGES, ks, fill=False) for batch in fresh])
    for i, k in enumerate(ks):
        documents = counts.below[:, i + 1] - counts.below[:, i]
        ours = np.ceil(documents / k)
        error = np.sqrt(ours.var() / len(ours) + slots[:, i].var() / len(fresh))
        assert abs(counts.mean_slots(i, i + 1, k) - slots[:, i].mean()) <= 4 * error + 1e-12


def test_the_sample_is_a_pure_function_of_its_seed():
    one, two = (sample_batches(SOME, TOKENS, count=3, seed=5) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    more = sample_batches(SOME, TOKENS, count=5, seed=5)
    assert all(np.array_equal(a, b) for a, b in zip(one, more, strict=False))
    assert all(batch.sum() >= TOKENS > batch[:-1].sum() for batch in more)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=4),
    st.lists(st.integers(1, 5), min_size=3, max_size=3),
)
def test_filled_slots_are_those_of_the_batcher(documents, ks):
    edges = (0, 10, 20, 30)
    found = filled_slots(np.array(documents, dtype=np.int64), ks)
    for row, counts in zip(found, documents, strict=True):
        batch = np.repeat([5, 15, 25], counts)
        assert row.tolist() == slots_of(batch, edges, ks, fill=True)


@pytest.mark.parametrize("edges", [(1, 1024), (0, 512, 512, 1024), (0, 64)])
def test_bad_edges_are_refused(edges):
    with pytest.raises(InvalidValueError):
        SlotCounts.of(sample_batches(SOME, TOKENS, count=4), edges)
