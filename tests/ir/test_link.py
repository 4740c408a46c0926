"""Link classes: what collectives cost."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.curve import Constant, Curve
from shardwise.ir.errors import InvalidValueError, ParseError, UnsupportedError
from shardwise.ir.latency_steps import RINGS, latency_steps
from shardwise.ir.link import COLLECTIVES, CollectiveCurve, LinkClass, bus_factor
from shardwise.ir.span import Span

SECONDS = Constant(1e-5, "s", "made up")
HALF = Constant(0.5, "ratio", "made up")
TWICE = Constant(2, "ratio", "made up")


def timed(kind, group_size, *points, shared=1):
    x, y = zip(*points, strict=True)
    curve = Curve(x, y, "bytes", "s", "made up", "proportional")
    return CollectiveCurve(kind, curve, group_size, shared)


def bus(kind, bandwidth=1e9):
    return CollectiveCurve(kind, Curve((1.0,), (bandwidth,), "bytes", "bytes/s", "made up"))


def link(*collectives, name="test"):
    return LinkClass(name, SECONDS, HALF, TWICE, collectives)


def span(size, inner=None, shared=1):
    inside = Span("inside", inner, None, shared) if inner else None
    return Span("test", size, inside, shared)


@st.composite
def collective_curves(draw):
    kind = draw(st.sampled_from(COLLECTIVES))
    if draw(st.booleans()):
        return bus(kind, draw(st.floats(1e6, 1e12)))
    points = draw(st.dictionaries(st.floats(1, 1e9), st.floats(1e-6, 1), min_size=1, max_size=4))
    return timed(
        kind, draw(st.integers(2, 64)), *sorted(points.items()), shared=draw(st.integers(1, 4))
    )


@settings(deadline=None, max_examples=100)
@given(collective_curves())
def test_a_collective_curve_parses_back(curve) -> None:
    assert CollectiveCurve.parse(str(curve)) == curve


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        collective_curves(),
        max_size=5,
        unique_by=lambda item: (item.kind, item.group_size, item.ranks_per_device),
    )
)
def test_a_link_class_parses_back(collectives) -> None:
    made = link(*collectives)
    assert LinkClass.parse(str(made)) == made


def test_a_measured_point_is_returned_as_it_is() -> None:
    made = link(timed("all_reduce", 2, (1000, 0.1), (2000, 0.3)))
    assert made.seconds("all_reduce", span(2), 1000) == 0.1
    assert math.isclose(made.seconds("all_reduce", span(2), 2000), 0.3)


def test_above_the_measured_sizes_the_bandwidth_stays() -> None:
    made = link(timed("all_reduce", 2, (1000, 0.1), (2000, 0.3)))
    assert math.isclose(made.seconds("all_reduce", span(2), 20_000), 3.0)


def test_each_kind_has_its_own_curve() -> None:
    made = link(timed("all_reduce", 2, (1, 0.1)), timed("reduce_scatter", 2, (1, 0.7)))
    assert made.seconds("reduce_scatter", span(2), 1) == 0.7
    with pytest.raises(UnsupportedError, match="all_reduce, reduce_scatter"):
        made.seconds("all_gather", span(2), 1)


def test_group_sizes_between_measured_ones_interpolate() -> None:
    made = link(timed("all_gather", 2, (1, 1.0)), timed("all_gather", 8, (1, 4.0)))
    assert math.isclose(made.seconds("all_gather", span(4), 1), 2.0)
    assert 1.0 < made.seconds("all_gather", span(3), 1) < 2.0


def test_group_sizes_outside_the_measured_ones() -> None:
    made = link(timed("all_gather", 4, (1, 3.0)), timed("all_gather", 2, (1, 1.0), shared=2))
    assert made.seconds("all_gather", span(2), 1) == 3.0
    assert math.isclose(made.seconds("all_gather", span(16), 1), 15.0)


def test_ranks_that_share_a_device_take_the_curves_measured_so() -> None:
    made = link(timed("all_gather", 4, (1, 3.0)), timed("all_gather", 4, (1, 5.0), shared=2))
    assert made.seconds("all_gather", span(4), 1) == 3.0
    assert made.seconds("all_gather", span(4, shared=2), 1) == 5.0
    assert math.isclose(made.seconds("all_gather", span(4, shared=4), 1), 10.0)


def test_a_curve_of_more_sharing_is_not_scaled_down() -> None:
    made = link(timed("all_gather", 4, (1, 5.0), shared=2))
    assert made.seconds("all_gather", span(4), 1) == 5.0


def test_bus_curves_are_latency_and_bandwidth() -> None:
    made = link(*(bus(kind) for kind in COLLECTIVES))
    latency, share = 1e-5, 7 / 8
    steps = {"send_recv": 1, "ring_exchange": 1}
    factors = {
        "all_reduce": 2 * share,
        "broadcast": 1.0,
        "send_recv": 1.0,
        "ring_exchange": 1.0,
    }
    for kind in COLLECTIVES:
        expected = latency * steps.get(kind, 3) + factors.get(kind, share) * 1e6 / 1e9
        if kind in RINGS:
            expected += latency * (latency_steps(kind, 8) - 3)
        assert math.isclose(made.seconds(kind, span(8), 1e6), expected)


def test_bus_curves_scale_with_the_links_that_a_unit_has() -> None:
    assert bus_factor("all_reduce", 16, 8) == bus_factor("all_reduce", 16, 1) / 8
    assert bus_factor("all_to_all", 16, 8) == 0.5
    assert bus_factor("send_recv", 2, 1) == 1.0
    assert bus_factor("ring_exchange", 16, 8) == 1.0
    made = link(bus("all_gather"))
    few, many = (made.seconds("all_gather", span(16, inner), 1e9) for inner in (None, 8))
    assert many < few / 7


def test_rings_inside_units_pay_the_cheaper_hops() -> None:
    made = link(bus("reduce_scatter"))
    for inner in (None, 8):
        steps = latency_steps("reduce_scatter", 16, inner or 1)
        expected = 1e-5 * steps + 15 / 16 / (inner or 1) * 1e6 / 1e9
        assert math.isclose(made.seconds("reduce_scatter", span(16, inner), 1e6), expected)


def test_nothing_to_do_costs_nothing() -> None:
    made = link(timed("all_gather", 2, (1, 1.0)))
    assert made.seconds("all_gather", Span("", 1), 100) == 0
    assert made.seconds("all_gather", span(2), 0) == 0


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 64), st.floats(1, 1e9), st.floats(1, 8))
def test_more_bytes_never_cost_less_on_monotone_curves(size, message, more) -> None:
    made = link(timed("all_gather", 4, (1e3, 0.1), (1e6, 0.2)), bus("all_reduce"))
    for kind in ("all_gather", "all_reduce"):
        first = made.seconds(kind, span(size), message)
        assert made.seconds(kind, span(size), message * more) >= first * (1 - 1e-12)


@pytest.mark.parametrize("message", [-1, math.nan, math.inf])
def test_bytes_are_checked(message) -> None:
    with pytest.raises(InvalidValueError, match="bytes"):
        link(bus("all_gather")).seconds("all_gather", span(2), message)


def test_bad_values_say_what_is_wrong() -> None:
    seconds = Curve((1,), (1,), "bytes", "s", "made up", "proportional")
    clamped = Curve((1,), (1,), "bytes", "s", "made up")
    bandwidth = Curve((1,), (1,), "bytes", "bytes/s", "made up")
    for arguments, problem in (
        (("reduce", bandwidth), "collective 'reduce' is not known"),
        (("all_reduce", seconds), "bus curve is"),
        (("all_reduce", bandwidth, 2), "a timed one is"),
        (("all_reduce", clamped, 2), "a timed one is"),
        (("all_reduce", seconds, 1), "2 or more"),
        (("all_reduce", seconds, 2, 0), "at least 1"),
        (("all_reduce", bandwidth, None, 2), "bus curve is"),
    ):
        with pytest.raises(InvalidValueError, match=problem):
            CollectiveCurve(*arguments)
    for arguments, problem in (
        (("Ib", SECONDS, HALF, TWICE, ()), "link 'Ib'"),
        (("ib", HALF, HALF, TWICE, ()), "latency_s of link ib is in ratio"),
        (("ib", SECONDS, TWICE, TWICE, ()), "overlap is at most 1"),
        (("ib", SECONDS, HALF, HALF, ()), "contention at least 1"),
        (("ib", SECONDS, HALF, TWICE, (bus("all_reduce"), bus("all_reduce"))), "two curves"),
    ):
        with pytest.raises(InvalidValueError, match=problem):
            LinkClass(*arguments)


@pytest.mark.parametrize("text", ["", "ib", 'ib latency 1 s "x"', "all_reduce group=2 1:1 bytes"])
def test_bad_texts_do_not_parse(text) -> None:
    with pytest.raises(ParseError):
        LinkClass.parse(text)
    with pytest.raises(ParseError):
        CollectiveCurve.parse(text)
