"""Candidate edges, and the dynamic program over them against all partitions."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.strategy import Recompute
from shardwise.planner import edges as module
from shardwise.planner.candidates import Option, SlotPrice
from shardwise.planner.edges import Band, best_partition, candidate_edges, last_edge, lengths_of
from tests.support.planning import SOME, lengths

OPTION = Option("data", Recompute.NONE, 1, 1)


def band_of(costs):
    """The band (low, high] costs costs[low, high]; None is infeasible."""

    def best(low, high):
        cost = costs[low, high]
        return None if cost is None else Band(low, high, OPTION, SlotPrice(cost, 1), 1.0)

    return best


def brute_force(costs, count, most):
    best = None
    for size in range(1, most + 1):
        for inner in combinations(range(1, count - 1), size - 1):
            ends = (0, *inner, count - 1)
            parts = [costs[pair] for pair in pairwise(ends)]
            if None not in parts and (best is None or sum(parts) < best):
                best = sum(parts)
    return best


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_partition_is_the_best_of_all(data):
    count = data.draw(st.integers(2, 8))
    most = data.draw(st.integers(1, 8))
    number = st.one_of(st.none(), st.integers(1, 50).map(float))
    costs = {(low, high): data.draw(number) for high in range(1, count) for low in range(high)}
    old = module.MAX_BUCKETS
    module.MAX_BUCKETS = most
    try:
        bands = best_partition(count, band_of(costs))
    finally:
        module.MAX_BUCKETS = old
    expected = brute_force(costs, count, min(most, count - 1))
    if expected is None:
        assert bands is None
        return
    assert sum(band.step_s for band in bands) == expected
    assert len(bands) <= most
    assert [(b.low, b.high) for b in bands] == list(pairwise([0, *(b.high for b in bands)]))
    assert bands[-1].high == count - 1


def test_fewer_buckets_win_a_tie():
    costs = {(0, 1): 1.0, (1, 2): 1.0, (0, 2): 2.0}
    assert len(best_partition(3, band_of(costs))) == 1


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 64), st.integers(1, 2000), st.integers(1, 2000))
def test_candidates_are_ascending_multiples_that_hold_the_longest(multiple, low, width):
    histogram = lengths((low, low + width, 10))
    edges = candidate_edges(histogram, multiple)
    assert edges[0] == 0
    assert list(edges) == sorted(set(edges))
    assert all(edge % multiple == 0 for edge in edges)
    assert edges[-1] - multiple < low + width <= edges[-1]
    assert len(edges) <= module.MAX_EDGES + 1


@pytest.mark.parametrize("world", [1, 2, 64, 1024])
def test_the_last_edge_is_the_last_candidate(world):
    assert last_edge(SOME, world) == candidate_edges(SOME, module.edge_multiple(world))[-1]


def test_a_band_in_tokens():
    band = Band(1, 3, OPTION, SlotPrice(0.5, 1), 4.0)
    assert lengths_of((0, 8, 16, 32), band) == (8, 32)
    assert band.step_s == 2.0
