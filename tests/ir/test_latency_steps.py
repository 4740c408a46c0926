"""Latencies of a collective: trees by depth, rings by hops."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.latency_steps import INNER_HOP, RING_HOP, RINGS, SINGLE, latency_steps
from shardwise.ir.link import COLLECTIVES

KINDS = st.sampled_from(COLLECTIVES)
SIZES = st.integers(2, 4096)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_two_ranks_pay_one_latency(kind) -> None:
    assert latency_steps(kind, 2) == 1


@pytest.mark.parametrize("kind", SINGLE)
def test_a_message_between_two_ranks_pays_one_latency_in_any_group(kind) -> None:
    assert latency_steps(kind, 512, 8) == 1


def test_trees_pay_their_depth() -> None:
    assert [latency_steps("all_reduce", size, 8) for size in (8, 9, 16, 512)] == [3, 4, 4, 9]


def test_rings_pay_every_hop() -> None:
    """8 nodes of 8: 64 hops but one, 7 of them between nodes (the first of those a whole
    latency), 56 inside."""
    assert math.isclose(latency_steps("all_gather", 64, 8), 1 + 6 * RING_HOP + 56 * INNER_HOP)
    assert math.isclose(latency_steps("all_gather", 64), 1 + 62 * RING_HOP)


def test_the_hops_of_a_long_ring_are_those_that_nccl_counts() -> None:
    """The table of tuning.cc: (nodes - 1) hops of 4.0 and the rest of 1.9 microseconds."""
    counted = (63 * 4.0 + 448 * 1.9) * 1e-6
    assert abs(latency_steps("reduce_scatter", 512, 8) * 14e-6 / counted - 1) < 0.02


@settings(deadline=None, max_examples=200)
@given(KINDS, SIZES, st.sampled_from([1, 2, 4, 8]), st.integers(1, 64))
def test_more_members_never_pay_less(kind, size, inside, more) -> None:
    inside = min(inside, size)
    assert latency_steps(kind, size + more * inside, inside) >= latency_steps(kind, size, inside)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(RINGS), st.integers(1, 512), st.sampled_from([2, 4, 8]))
def test_a_ring_through_full_nodes_beats_one_rank_in_each(kind, nodes, inside) -> None:
    """Of the same size: hops inside a node are the cheaper ones."""
    size = nodes * inside
    assert latency_steps(kind, size, inside) <= latency_steps(kind, size) + INNER_HOP
