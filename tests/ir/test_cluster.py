"""Clusters: spans of groups, text."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.cluster import Cluster, Level
from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.span import Span

SETTINGS = settings(deadline=None, max_examples=100)
NODE, PODS = Level("node", 4, "nvlink"), Level("cluster", 4, "ib")
SMALL = Cluster("small", "gpu", (NODE, PODS))


@st.composite
def clusters(draw):
    count = draw(st.integers(1, 3))
    levels = tuple(
        Level(f"level{index}", draw(st.integers(1, 4)), f"link{index}") for index in range(count)
    )
    world = 1
    for level in levels:
        world *= level.size
    shared = draw(st.sampled_from([n for n in range(1, world + 1) if world % n == 0]))
    limit = draw(st.none() | st.integers(1, 2**40))
    return Cluster("a-cluster.1", "b", levels, limit, shared)


@SETTINGS
@given(clusters())
def test_a_cluster_parses_back(cluster) -> None:
    assert Cluster.parse(str(cluster)) == cluster


def test_texts() -> None:
    levels = (Level("node", 8, "nvlink"), Level("cluster", 8, "ib"))
    cluster = Cluster("h100-8x8", "h100-sxm", levels, 80_000_000_000)
    assert str(cluster) == "h100-8x8 h100-sxm node:8@nvlink cluster:8@ib limit=80000000000"
    assert str(Cluster("a", "b", levels[:1], None, 2)) == "a b node:8@nvlink shared=2"
    assert Level.parse("node:8@nvlink") == levels[0]


def test_world_size_and_limit() -> None:
    assert SMALL.world_size == 16
    limited = SMALL.limited(100)
    assert limited.memory_limit_bytes == 100
    assert limited.limited(None) == SMALL


def common_level(cluster, a, b):
    """Index of the innermost level whose unit holds both ranks, by its definition."""
    capacity = 1
    for index, level in enumerate(cluster.levels):
        capacity *= level.size
        if a // capacity == b // capacity:
            return index
    raise AssertionError


@SETTINGS
@given(clusters(), st.data())
def test_the_link_of_a_group_is_the_slowest_between_two_of_its_members(cluster, data) -> None:
    ranks = st.integers(0, cluster.world_size - 1)
    group = data.draw(st.lists(ranks, min_size=1, unique=True))
    span = cluster.span_of(group)
    assert span.size == len(group)
    if len(group) == 1:
        assert span == Span("", 1, None, cluster.ranks_per_device)
        return
    levels = [common_level(cluster, a, b) for a, b in itertools.combinations(group, 2)]
    assert span.link == cluster.levels[max(levels)].link
    together = [
        sum(common_level(cluster, a, b) < max(levels) for b in group if b != a) for a in group
    ]
    assert span.members_inside == max(together) + 1


def test_spans_of_a_mesh() -> None:
    assert str(SMALL.span(1, 4)) == "4@nvlink"
    assert str(SMALL.span(4, 4)) == "4@ib"
    assert str(SMALL.span(2, 4)) == "4@ib/2@nvlink"
    assert str(SMALL.span(1, 16)) == "16@ib/4@nvlink"
    assert str(SMALL.span(1, 1)) == "1"
    assert SMALL.link_of(1, 2) == "nvlink"
    assert SMALL.link_of(1, 8) == "ib"


def test_the_worst_group_counts() -> None:
    """Groups of 2 out of nodes of 3: the second group spans two nodes."""
    cluster = Cluster("odd", "gpu", (Level("node", 3, "nvlink"), Level("cluster", 2, "ib")))
    assert str(cluster.span_of([0, 1])) == "2@nvlink"
    assert str(cluster.span(1, 2)) == "2@ib"


def test_levels_of_one_unit_do_not_matter() -> None:
    cluster = Cluster("one", "gpu", (Level("die", 1, "on_die"), NODE, Level("cluster", 1, "ib")))
    assert str(cluster.span(1, 4)) == "4@nvlink"


def test_three_levels_nest() -> None:
    cluster = Cluster(
        "deep",
        "gpu",
        (Level("pair", 2, "pcie"), Level("node", 2, "nvlink"), Level("all", 2, "ib")),
    )
    assert str(cluster.span(1, 8)) == "8@ib/4@nvlink/2@pcie"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("Big", "gpu", (NODE,)), "lower-case"),
        (("a b", "gpu", (NODE,)), "lower-case"),
        (("a", "", (NODE,)), "hardware"),
        (("a", "gpu", ()), "levels"),
        (("a", "gpu", [NODE]), "levels"),
        (("a", "gpu", (NODE, NODE)), "its own name"),
        (("a", "gpu", (NODE,), 0), "memory_limit_bytes"),
        (("a", "gpu", (NODE,), 1.5), "memory_limit_bytes"),
        (("a", "gpu", (NODE,), None, 0), "ranks_per_device"),
        (("a", "gpu", (NODE,), None, 3), "half used"),
    ],
)
def test_a_bad_cluster_says_what_is_wrong(arguments, problem) -> None:
    with pytest.raises(InvalidValueError, match=problem) as error:
        Cluster(*arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("arguments", [("Node", 2, "ib"), ("node", 0, "ib"), ("node", 2, "IB")])
def test_a_bad_level_is_refused(arguments) -> None:
    with pytest.raises(InvalidValueError):
        Level(*arguments)


@pytest.mark.parametrize("group", [[], [0, 0], [16], [-1], [0.5]])
def test_bad_groups_are_refused(group) -> None:
    with pytest.raises(InvalidValueError):
        SMALL.span_of(group)


@pytest.mark.parametrize(("stride", "size"), [(0, 2), (1, 0), (1, 3), (8, 4)])
def test_groups_that_do_not_tile_the_world_are_refused(stride, size) -> None:
    with pytest.raises(InvalidValueError):
        SMALL.span(stride, size)


def test_one_rank_has_no_link() -> None:
    with pytest.raises(InvalidValueError, match="no link"):
        SMALL.link_of(1, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a b",
        "a b node:0@ib",
        "a b node:2",
        "a b node:2@ib limit=0",
        "a b node:2@ib shared=3",
        "a b node:2@ib limit=1 shared=2",
        "a b node:2@ib ",
        "A b node:2@ib",
    ],
)
def test_a_bad_text_does_not_parse(text) -> None:
    with pytest.raises(ParseError):
        Cluster.parse(text)
