"""The event simulator: closed forms, a second simulator that shares no code, and memory."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.schedule import ScheduleKind, actions
from shardwise.ir.schedule_action import Action, ActionKind
from shardwise.solvers.event_simulator import Transfers, simulate
from shardwise.solvers.timeline import Timeline, memory

F, B, W = ActionKind.F, ActionKind.B, ActionKind.W
OVERLAPPED, RECEIVER, BLOCKING = Transfers
UNSPLIT = (ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.INTERLEAVED)


def made(kind, p, m, v=2):
    chunks = v if kind is ScheduleKind.INTERLEAVED else None
    return actions(kind, devices=p, micro_batches=m, chunks_per_device=chunks)


def times(forward, backward, weight=0.0):
    return lambda kind, *_: {F: forward, B: backward, W: weight}[kind]


def orders_of(*texts):
    return [[Action.parse(one) for one in text.split()] for text in texts]


# Closed forms


@pytest.mark.parametrize("kind", UNSPLIT[:2])
@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 7), (2, 1), (4, 3), (4, 8), (7, 20)])
def test_bubble_of_gpipe_and_1f1b(kind, p, m):
    timeline = simulate(made(kind, p, m), times(3, 5))
    assert timeline.makespan_s == (m + p - 1) * 8
    for d in range(p):
        assert timeline.busy_s(d) == m * 8
        assert timeline.idle_s(d) == (p - 1) * 8
    assert timeline.bubble_s(0) == (p - 1) * 8
    assert timeline.idle_share == pytest.approx((p - 1) / (m + p - 1))


@pytest.mark.parametrize(("p", "m", "v"), [(1, 3, 2), (2, 4, 2), (4, 4, 3), (4, 12, 2), (6, 18, 4)])
def test_bubble_of_interleaved_is_divided_by_the_chunks(p, m, v):
    timeline = simulate(made(ScheduleKind.INTERLEAVED, p, m, v), times(3 / v, 5 / v))
    assert timeline.makespan_s == pytest.approx(m * 8 + (p - 1) * 8 / v)


@pytest.mark.parametrize(("p", "m"), [(1, 5), (3, 2), (4, 9)])
def test_micro_batches_in_flight(p, m):
    run = times(1, 2)
    assert simulate(made(ScheduleKind.GPIPE, p, m), run).in_flight() == (m,) * p
    expected = tuple(min(m, p - d) for d in range(p))
    assert simulate(made(ScheduleKind.ONE_F_ONE_B, p, m), run).in_flight() == expected


@pytest.mark.parametrize(("p", "m", "v"), [(2, 6, 2), (4, 12, 2), (4, 12, 3), (8, 24, 4)])
def test_chunks_in_flight_of_interleaved(p, m, v):
    found = simulate(made(ScheduleKind.INTERLEAVED, p, m, v), times(1, 2)).in_flight()
    assert found == tuple(2 * (p - d - 1) + (v - 1) * p + 1 for d in range(p))
    # Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3: 1F1B's times 1 + (p - 1) / (p v)
    assert found[0] / v == pytest.approx(p * (1 + (p - 1) / (p * v)))


def test_transfers_of_a_filled_pipe():
    p, m, hop = 4, 1, 0.5
    for way in Transfers:
        timeline = simulate(made(UNSPLIT[1], p, m), times(1, 2), lambda *_: hop, transfers=way)
        assert timeline.makespan_s == p * 3 + 2 * (p - 1) * hop
        assert len(timeline.messages) == 2 * (p - 1)


def test_what_blocks_and_what_does_not():
    orders = orders_of("F0.0 F0.1 B0.0 B0.1", "F1.0 F1.1 B1.0 B1.1")
    free = simulate(orders, times(1, 1), lambda *_: 0.5)
    assert free.start_s == ((0, 1, 5, 6), (1.5, 2.5, 3.5, 4.5))
    half = simulate(orders, times(1, 1), lambda *_: 0.5, transfers=RECEIVER)
    assert half.start_s == ((0, 1, 5.5, 7), (1.5, 3, 4, 5))
    wait = simulate(orders, times(1, 1), lambda *_: 0.5, transfers=BLOCKING)
    # Device 0 is held by F0.0's message up to 1.5; F1.0 and F0.1 run to 2.5, where the next goes.
    assert wait.start_s == ((0, 1.5, 5.5, 7), (1.5, 3, 4, 5.5))
    assert [(str(a), str(b), s, e) for a, b, s, e in wait.messages] == [
        ("F0.0", "F1.0", 1, 1.5), ("F0.1", "F1.1", 2.5, 3),
        ("B1.0", "B0.0", 5, 5.5), ("B1.1", "B0.1", 6.5, 7),
    ]  # fmt: skip


# A second simulator: the definitions, iterated until nothing moves


def relaxed(orders, duration, hop, way):
    """Starts by action, or None where they grow for ever."""
    chunks = 1 + max(one.chunk for order in orders for one in order)
    place = {one: (d, k) for d, order in enumerate(orders) for k, one in enumerate(order)}

    def wants(one):
        if one.kind is F and one.chunk:
            return Action(F, one.chunk - 1, one.micro_batch)
        if one.kind is B and one.chunk < chunks - 1:
            return Action(B, one.chunk + 1, one.micro_batch)
        return None

    def before(one):
        d, k = place[one]
        return orders[d][k - 1] if k else None

    start = dict.fromkeys(place, 0.0)
    end = lambda one: 0.0 if one is None else start[one] + duration[one]  # noqa: E731
    for _ in range(3 * len(place) + 3):
        moved = False
        for one in place:
            at = end(before(one))
            source = wants(one)
            received = source is not None and place[source][0] != place[one][0]
            if received and way is not OVERLAPPED:
                at = max(at, end(source)) + hop[one]
            elif received:
                at = max(at, end(source) + hop[one])
            last = before(one)
            if way is BLOCKING and last is not None:
                for target in place:
                    if wants(target) == last and place[target][0] != place[last][0]:
                        at = max(at, max(end(last), end(before(target))) + hop[target])
            if at > start[one]:
                start[one], moved = at, True
        if not moved:
            return start
    return None


@st.composite
def cases(draw):
    """Orders of a kind, or any that can run, with a time of each action and message."""
    m = draw(st.integers(1, 4))
    if draw(st.booleans()):
        kind = draw(st.sampled_from(ScheduleKind))
        orders = made(kind, draw(st.integers(1, 3)), m)
    else:
        chunks, devices = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        place = [draw(st.integers(0, devices - 1)) for _ in range(chunks)]
        line = [Action(F, c, i) for i in range(m) for c in range(chunks)]
        line += [Action(k, c, i) for i in range(m) for c in reversed(range(chunks)) for k in (B, W)]
        for _ in range(draw(st.integers(0, 40))):  # neighbours that do not need each other swap
            k = draw(st.integers(0, len(line) - 2)) if len(line) > 1 else 0
            if len(line) > 1 and line[k].micro_batch != line[k + 1].micro_batch:
                line[k], line[k + 1] = line[k + 1], line[k]
        orders = [[one for one in line if place[one.chunk] == d] for d in range(devices)]
    ticks = st.integers(0, 8)  # whole numbers: a cycle of positive time never comes to rest
    names = [one for order in orders for one in order]
    durations = {one: draw(ticks) for one in names}
    return orders, durations, {one: draw(ticks) for one in names}


def run(case, way):
    orders, durations, hops = case

    def transfer(a, b, i):
        return hops[Action(F if a < b else B, b, i)]

    return simulate(orders, lambda *key: durations[Action(*key)], transfer, transfers=way)


@settings(max_examples=200, deadline=None)
@given(cases(), st.sampled_from([OVERLAPPED, RECEIVER]))
def test_two_simulators_agree(case, way):
    orders, durations, hops = case
    timeline = run(case, way)
    expected = relaxed(orders, durations, hops, way)
    assert {one: start for _, one, start, _ in timeline.tasks()} == expected


@settings(max_examples=200, deadline=None)
@given(cases())
def test_two_simulators_agree_on_blocking_messages(case):
    orders, durations, hops = case
    positive = {one: 1 + seconds for one, seconds in durations.items()}
    expected = relaxed(orders, positive, hops, BLOCKING)
    if expected is None:
        with pytest.raises(InvalidValueError, match="blocking messages deadlock"):
            run((orders, positive, hops), BLOCKING)
        return
    timeline = run((orders, positive, hops), BLOCKING)
    assert {one: start for _, one, start, _ in timeline.tasks()} == expected
    free, half = (run((orders, positive, hops), way) for way in (OVERLAPPED, RECEIVER))
    assert free.makespan_s <= half.makespan_s <= timeline.makespan_s


@settings(max_examples=100, deadline=None)
@given(cases())
def test_what_holds_of_every_timeline(case):
    orders, durations, _ = case
    timeline = run(case, OVERLAPPED)
    for d, order in enumerate(orders):
        spans = sorted(zip(timeline.start_s[d], timeline.end_s[d], strict=True))
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert timeline.busy_s(d) == sum(durations[one] for one in order)
        assert timeline.busy_s(d) <= timeline.span_s(d) <= timeline.makespan_s
    slower = {one: seconds + 1 for one, seconds in durations.items()}
    assert run((orders, slower, case[2]), OVERLAPPED).makespan_s >= timeline.makespan_s
    assert all(a.end_s - a.start_s == case[2][a.target] for a in timeline.messages)


def test_one_device_is_the_sum():
    for kind in ScheduleKind:
        orders = made(kind, 1, 5)
        timeline = simulate(orders, times(2, 3, 1), lambda *_: -1.0)  # which would be refused
        assert timeline.makespan_s == sum({F: 2, B: 3, W: 1}[one.kind] for one in orders[0])
        assert (timeline.messages, timeline.idle_share) == ((), 0.0)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_seconds_are_finite_and_not_negative(wrong):
    orders = made(UNSPLIT[1], 2, 2)
    with pytest.raises(InvalidValueError, match=r"duration of B1\.1"):
        simulate(orders, lambda *key: wrong if key == (B, 1, 1) else 1.0)
    with pytest.raises(InvalidValueError, match=r"transfer to F1\.0"):
        simulate(orders, times(1, 1), lambda *key: wrong if key == (0, 1, 0) else 1.0)


def test_a_deadlock_is_named():
    with pytest.raises(InvalidValueError, match=r"device 0 before B0\.0 for B1\.0"):
        simulate(orders_of("F0.0 B0.0 F0.1 B0.1", "F1.0 F1.1 B1.0 B1.1"), times(1, 1))


def test_a_timeline_has_no_two_actions_at_once():
    (order,) = orders_of("F0.0 B0.0")
    with pytest.raises(InvalidValueError, match=r"B0\.0 runs from 1 to 3 s on device 0"):
        Timeline((tuple(order),), ((0, 1),), ((2, 3),))


# Memory


def test_memory_of_1f1b_by_hand():
    timeline = simulate(made(UNSPLIT[1], 2, 3), times(1, 2))
    peaks = memory(
        timeline,
        lambda chunk, i: 10 * (i + 1),
        lambda *_: 99,  # nothing: no W
        lambda kind, chunk, i: 5 if kind is B else 1,
        (100, 200),
    )
    # Device 0: F0, F1 (30 held), B0, then F2 beside F1 (20 + 30), B1 with its transient.
    assert [(p.bytes, p.time_s, str(p.action)) for p in peaks] == [
        (155, 7, "B0.1"), (235, 8, "B1.2"),
    ]  # fmt: skip


def test_memory_kept_for_weights():
    timeline = simulate(orders_of("F0.0 F0.1 B0.0 B0.1 W0.0 W0.1"), times(1, 1, 1))
    (peak,) = memory(timeline, lambda *_: 10, lambda *_: 4, lambda kind, *_: 20 * (kind is W))
    assert (peak.bytes, peak.time_s, str(peak.action)) == (4 + 4 + 20, 4, "W0.0")
    (peak,) = memory(timeline, lambda *_: 10, lambda *_: 4)
    assert (peak.bytes, peak.time_s, str(peak.action)) == (20, 1, "F0.1")


@settings(max_examples=100, deadline=None)
@given(cases(), st.data())
def test_memory_grows_with_each_input(case, data):
    orders = case[0]
    timeline = run(case, OVERLAPPED)
    size = st.integers(0, 20)
    pairs = {(one.chunk, one.micro_batch) for order in orders for one in order}
    saved = {pair: data.draw(size) for pair in sorted(pairs)}
    weight = {pair: data.draw(size) for pair in sorted(pairs)}
    transient = {one: data.draw(size) for order in orders for one in order}
    fixed = [data.draw(size) for _ in orders]

    def walk():
        return memory(
            timeline, lambda *p: saved[p], lambda *p: weight[p],
            lambda *key: transient[Action(*key)], fixed,
        )  # fmt: skip

    before = walk()
    for d, order in enumerate(orders):  # again, from intervals: who is alive at the start of each
        where = {one: k for k, one in enumerate(order)}
        split = any(one.kind is W for one in order)
        totals = [fixed[d]]
        for k, one in enumerate(order):
            alive = transient[one] + fixed[d]
            for pair in {(a.chunk, a.micro_batch) for a in order}:
                if where[Action(F, *pair)] <= k <= where[Action(B, *pair)]:
                    alive += saved[pair]
                elif split and where[Action(B, *pair)] < k <= where[Action(W, *pair)]:
                    alive += weight[pair]
            totals.append(alive)
        assert before[d].bytes == max(totals)
        if before[d].action is not None:
            assert totals[1 + where[before[d].action]] == before[d].bytes
    table = data.draw(st.sampled_from([saved, weight, transient]))
    table[data.draw(st.sampled_from(list(table)))] += 7
    assert all(a.bytes <= b.bytes for a, b in zip(before, walk(), strict=True))


def test_a_device_without_actions_holds_what_is_fixed():
    timeline = simulate(orders_of("F0.0 B0.0", ""), times(1, 1))
    assert memory(timeline, lambda *_: 1, lambda *_: 1, fixed_bytes=(5, 7))[1].bytes == 7
    assert timeline.idle_s(1) == timeline.makespan_s == 2
