"""Link classes from a rate per GPU and a kind of fabric."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.cluster import Cluster
from shardwise.ir.curve import Constant
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.fabric import fabric_link, with_link
from shardwise.ir.fabric_kinds import FABRIC_KINDS
from shardwise.ir.link import COLLECTIVES, LinkClass
from shardwise.ir.span import Span
from tests.support.profiles import hardware

GIGA = 1 << 30
KINDS = sorted(FABRIC_KINDS)
BETWEEN_NODES = [kind for kind in KINDS if kind != "direct"]
RATE = Constant(25e9, "bytes/s", "data sheet, a card")


def bandwidth(link, kind="all_reduce"):
    (curve,) = [item.curve for item in link.collectives if item.kind == kind]
    return curve.y[0]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_prices_every_collective_below_its_rate(kind) -> None:
    link = fabric_link("ib", kind, 25e9, nodes=16)
    for collective in COLLECTIVES:
        assert 0 < bandwidth(link, collective) <= 25e9
        seconds = link.seconds(collective, Span("ib", 16), GIGA)
        assert seconds > link.seconds(collective, Span("ib", 16), GIGA / 2) > 0


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(BETWEEN_NODES),
    st.sampled_from(COLLECTIVES),
    st.integers(1, 4096),
    st.integers(1, 4096),
)
def test_more_nodes_never_reach_more_of_the_rate(kind, collective, few, more) -> None:
    first, second = (fabric_link("ib", kind, 25e9, nodes=n) for n in (few, few + more))
    assert bandwidth(second, collective) <= bandwidth(first, collective)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(KINDS), st.floats(1e8, 1e12), st.floats(1.01, 10))
def test_seconds_of_large_messages_go_as_one_over_the_rate(kind, rate, faster) -> None:
    slow, fast = (fabric_link("ib", kind, r, nodes=4) for r in (rate, rate * faster))
    assert math.isclose(bandwidth(fast) / bandwidth(slow), faster)
    assert fast.latency_s == slow.latency_s


def test_measured_points_come_back() -> None:
    """The figures of NVIDIA/nccl issues 1229 and 1218, for eight cards of 400 Gb/s."""
    for nodes, giga in ((4, 360), (8, 345), (16, 320), (32, 300), (64, 280), (128, 260)):
        link = fabric_link("ib", "infiniband", 50e9, nodes=nodes)
        assert math.isclose(8 * bandwidth(link, "reduce_scatter"), giga * 1e9)
    assert math.isclose(8 * bandwidth(fabric_link("ib", "infiniband", 50e9, nodes=32)), 340e9)


def test_rings_share_the_cards_of_a_node() -> None:
    """800 Gb/s for a node of 8: one group over all of it has 100 GB/s, one rank's group an
    eighth."""
    link = fabric_link("ib", "direct", 100e9 / 8)
    whole = link.seconds("all_reduce", Span("ib", 32, Span("nvlink", 8)), GIGA)
    alone = link.seconds("all_reduce", Span("ib", 4), GIGA)
    steps = link.latency_s.value
    assert math.isclose(whole - 5 * steps, 2 * 31 / 32 * GIGA / 100e9)
    assert math.isclose(alone - 2 * steps, 2 * 3 / 4 * GIGA / 12.5e9)


def test_a_mesh_gives_a_group_its_own_wires_only() -> None:
    link = fabric_link("xgmi", "direct", 7 * 48e9, mesh_of=8)
    for size in range(2, 9):
        seconds = link.seconds("all_gather", Span("xgmi", size), 4 * GIGA)
        least = 4 * GIGA * (size - 1) / size / ((size - 1) * 48e9)
        assert least < seconds < least * 1.01
    pair = link.seconds("send_recv", Span("xgmi", 8), 4 * GIGA)
    assert math.isclose(pair, 4 * GIGA / 48e9, rel_tol=0.01)


def test_a_mesh_is_a_line_between_its_points() -> None:
    link = fabric_link("xgmi", "direct", 7 * 48e9, mesh_of=8)
    for power in range(10, 32):
        size = 1.5 * 2**power
        exact = 3 * link.latency_s.value + 2 * 7 / 8 * size / (7 * 48e9)
        assert math.isclose(link.seconds("all_reduce", Span("xgmi", 8), size), exact, rel_tol=0.15)


def test_a_measured_collective_replaces_the_share() -> None:
    sharp = Constant(30e9, "bytes/s", "measured, with reduction in the switch")
    link = fabric_link("ib", "infiniband", RATE, collectives={"all_reduce": sharp})
    assert bandwidth(link) == 30e9
    assert bandwidth(link, "reduce_scatter") < 25e9


def test_sources_say_what_is_assumed() -> None:
    """An assumption in the rate or in the share makes one of the product."""
    stated = {item.kind: item.curve for item in fabric_link("ib", "infiniband", RATE).collectives}
    assert stated["reduce_scatter"].source.startswith("published, 0.863 of 25 GB/s at 8 nodes")
    assert "data sheet, a card" in stated["reduce_scatter"].source
    assert stated["all_gather"].is_assumed
    assert all(i.curve.is_assumed for i in fabric_link("ib", "infiniband", 25e9).collectives)
    assert all(i.curve.is_assumed for i in fabric_link("ib", "omni_path", RATE).collectives)
    for kind in KINDS:
        link = fabric_link("ib", kind, RATE)
        assert LinkClass.parse(str(link)) == link


def test_a_profile_takes_a_link() -> None:
    profile = hardware("a100-sxm-80")
    changed = with_link(profile, fabric_link("ib", "omni_path", 6.25e9, nodes=48))
    assert [link.name for link in changed.links] == ["nvlink", "ib"]
    cluster = Cluster.parse("jean-zay a100-sxm-80 node:8@nvlink cluster:48@ib")
    span = cluster.span(8, 48)
    slower = changed.collective_s("all_reduce", span, GIGA)
    assert slower > 3 * profile.collective_s("all_reduce", span, GIGA)
    added = with_link(profile, fabric_link("rail", "infiniband", 25e9))
    assert [link.name for link in added.links] == ["nvlink", "ib", "rail"]


@pytest.mark.parametrize(
    ("arguments", "options", "problem"),
    [
        (("ib", "token_ring", 1e9), {}, "fabric 'token_ring' of link ib is not known; use infin"),
        (("ib", "infiniband", 0), {}, "give bytes/s above 0"),
        (("ib", "infiniband", float("nan")), {}, "not negative"),
        (("ib", "infiniband", Constant(1, "s", "x")), {}, "give bytes/s"),
        (("ib", "infiniband", 1e9), {"nodes": 0}, "nodes of link ib is 0"),
        (("x", "direct", 1e9), {"mesh_of": 1}, "mesh_of is 1; give 2 to 64"),
        (("ib", "efa", 1e9), {"collectives": {"gossip": RATE}}, "collective 'gossip' of link ib"),
        (("IB", "efa", 1e9), {}, "link 'IB'"),
    ],
)
def test_bad_fabrics_say_what_is_wrong(arguments, options, problem) -> None:
    with pytest.raises(InvalidValueError, match=problem) as error:
        fabric_link(*arguments, **options)
    assert "\n" not in str(error.value)
