"""Zero-bubble orders: the paper's closed forms and its bubble rates, and the limit kept."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.schedule import ScheduleKind, actions
from shardwise.ir.schedule_action import ActionKind, link
from shardwise.ir.schedule_by_hand import zb_h
from shardwise.ir.schedule_zero_bubble import Costs
from shardwise.solvers.event_simulator import simulate
from shardwise.solvers.timeline import memory

F, B, W = ActionKind.F, ActionKind.B, ActionKind.W
H1, H2, ZB_V = ScheduleKind.ZB_H1, ScheduleKind.ZB_H2, ScheduleKind.ZB_V


def run(orders, costs):
    return simulate(orders, costs.duration_s, costs.transfer_s)


def made(kind, p, m, costs, **more):
    return run(actions(kind, devices=p, micro_batches=m, costs=costs, **more), costs)


def held(timeline, share, parts=1):
    """Most micro-batches whose activations each device holds."""
    peaks = memory(timeline, lambda *_: 1 / parts, lambda *_: share / parts)
    return [peak.bytes for peak in peaks]


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 4), (3, 9), (4, 8), (8, 24)])
def test_bubbles_of_equal_times(p, m):
    costs = Costs.equal(1, 1, 1)
    h1, h2, v = (made(kind, p, m, costs) for kind in (H1, H2, ZB_V))
    assert h1.period_s == pytest.approx(3 * m + p - 1)
    assert h2.period_s == pytest.approx(3 * m)
    assert h2.makespan_s == pytest.approx(3 * m + p - 1)
    assert v.period_s == pytest.approx(6 * m)  # two chunks, each of a device's time
    assert max(held(h1, 1)) <= p and max(held(h2, 1)) <= 2 * p and max(held(v, 1, 2)) <= p


@pytest.mark.parametrize(("f", "b", "w"), [(2, 2, 1), (3, 2, 2), (5, 4, 4), (2, 3, 2)])
def test_bubble_of_zb_h1_is_forward_and_backward_less_weights(f, b, w):
    p, m = 4, 12
    timeline = made(H1, p, m, Costs.equal(f, b, w))
    assert timeline.period_s == pytest.approx(m * (f + b + w) + (p - 1) * (f + b - w))


def test_by_hand():
    assert [" ".join(map(str, order)) for order in zb_h(2, 3, 1)] == [
        "F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2",
        "F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 B1.2 W1.1 W1.2",
    ]
    for rounds, most in ((1, 4), (2, 7)):
        timeline = run(zb_h(4, 12, rounds), Costs.equal(1, 1, 1))
        assert held(timeline, 1) == [most] * 4


# arXiv:2401.10241: T_F, T_B, T_W, T_comm in ms (table 9), and rates of 1F1B, ZB-H1, ZB-H2, ZB-1p
# and ZB-2p that the paper computes from them: 1 - m (T_F + T_B + T_W) / longest span (table 5).
PUBLISHED = [
    (8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585, 0.1083, 0.1585, 0.0433),
    (8, 32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242, 0.0837, 0.1242, 0.0039),
    (8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674, 0.0444, 0.0674, 0.0026),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323, 0.0698, 0.1323, 0.0029),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397, 0.0672, 0.1397, 0.0066),
    (32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1421, 0.0641, 0.1421, 0.0038),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row[0]}x{row[1]}")
def test_bubble_rates_of_the_paper(row):
    p, m, f, b, w, transfer, *rates = row
    share = 0.43  # of attention that is not fused, at 6.2B to 28.3B; 0.37 at 1.5B
    costs = Costs.equal(f, b, w, transfer, weight_share=share)
    one_f_one_b = actions(ScheduleKind.ONE_F_ONE_B, devices=p, micro_batches=m)
    timelines = [
        run(one_f_one_b, Costs.equal(f, b + w, 0, transfer)),
        run(zb_h(p, m, 1), costs),
        run(zb_h(p, m, 2), costs),
        made(H1, p, m, costs),
        made(H2, p, m, costs),
    ]
    found = [1 - m * (f + b + w) / timeline.period_s for timeline in timelines]
    assert found == pytest.approx(rates, abs=1.5e-4)
    assert max(held(timelines[3], share)) <= p and max(held(timelines[4], share)) <= 2 * p


@st.composite
def cases(draw):
    kind = draw(st.sampled_from([H1, H2, ZB_V]))
    p, m = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    chunks = p * (2 if kind is ZB_V else 1)
    number = st.floats(0, 9)
    times = {(k, c, i): draw(number) for k in ActionKind for c in range(chunks) for i in range(m)}
    hops = [draw(number) for _ in range(chunks)]
    share = draw(st.floats(0, 1))
    costs = Costs(lambda k, c, i: times[k, c, i], lambda a, b, i: hops[max(a, b)], share)
    return kind, p, m, costs, draw(st.none() | st.floats(1 + 0.5 * (kind is ZB_V), 2 * p + 1))


@settings(max_examples=150, deadline=None)
@given(cases())
def test_any_costs_give_orders_that_run_under_the_limit(case):
    kind, p, m, costs, limit = case
    orders = actions(kind, devices=p, micro_batches=m, costs=costs, activation_limit=limit)
    links = link(orders)
    assert (links.devices, links.micro_batches, links.splits_backward) == (p, m, True)
    if limit is None:
        limit = max(2 * p if kind is H2 else p, 1)
    parts = 2 if kind is ZB_V else 1
    assert max(held(run(orders, costs), costs.weight_share, parts)) <= limit * (1 + 1e-6)
    again = actions(kind, devices=p, micro_batches=m, costs=costs, activation_limit=limit)
    assert again == orders


@pytest.mark.parametrize("kind", [H1, H2, ZB_V])
def test_the_unit_of_time_changes_nothing(kind):
    p, m, *times = PUBLISHED[1][:6]
    found = {
        actions(
            kind,
            devices=p,
            micro_batches=m,
            costs=Costs.equal(*(unit * time for time in times), weight_share=0.37),
        )
        for unit in (1.0, 1e-3, 1 / 3, 7.0)
    }
    assert len(found) == 1


def test_more_memory_never_costs_much_time():
    costs = Costs.equal(2.0, 1.9, 1.2, 0.05, weight_share=0.5)
    periods = [made(H2, 6, 18, costs, activation_limit=k).period_s for k in (2, 3, 6, 9, 12)]
    assert periods == sorted(periods, reverse=True)
    assert periods[0] > 1.5 * periods[-1]


def test_orders_by_hand_are_left_out_where_they_hold_too_much():
    costs = Costs.equal(1, 1, 1)
    assert max(held(made(ZB_V, 4, 12, costs, activation_limit=2), 1, 2)) <= 2
    assert max(held(made(H1, 4, 12, costs, activation_limit=2), 1)) <= 2
    assert max(held(made(H2, 4, 12, costs, activation_limit=6.5), 1)) <= 6.5


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_from_0_to_1(share):
    with pytest.raises(InvalidValueError, match="weight_share"):
        Costs.equal(1, 1, 1, weight_share=share)
