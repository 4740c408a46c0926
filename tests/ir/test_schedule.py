"""Orders of pipelines: their values and rules, and PyTorch's own schedules as the oracle."""

from itertools import pairwise, product
from types import SimpleNamespace

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.schedule import Schedule, ScheduleKind, actions, device_of
from shardwise.ir.schedule_action import Action, ActionKind, link

F, B, W = ActionKind.F, ActionKind.B, ActionKind.W
KINDS = list(ScheduleKind)
SIZES = list(product(range(1, 6), range(1, 14)))


def made(kind, p, m, v=2, **more):
    chunks = v if kind is ScheduleKind.INTERLEAVED else None
    return actions(kind, devices=p, micro_batches=m, chunks_per_device=chunks, **more)


def text(orders):
    return [" ".join(map(str, order)) for order in orders]


def orders_of(*texts):
    return tuple(tuple(map(Action.parse, one.split())) for one in texts)


# Values


@given(st.sampled_from(ActionKind), st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1))
def test_an_action_parses_back(kind, chunk, micro_batch):
    action = Action(kind, chunk, micro_batch)
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize("bad", ["", "F1", "F1.", "f1.2", "F01.2", "F1.2 ", "X1.2", "F-1.2", 3])
def test_no_action(bad):
    with pytest.raises(ParseError, match=r"F2\.5"):
        Action.parse(bad)


@pytest.mark.parametrize("bad", [("F", 0, 0), (F, -1, 0), (F, 0, 1.0), (F, True, 0), (F, 0, 10**9)])
def test_a_bad_action_is_refused(bad):
    with pytest.raises(InvalidValueError, match="give an ActionKind"):
        Action(*bad)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_parses_back(kind):
    schedule = Schedule(kind, made(kind, 3, 4))
    assert Schedule.parse(str(schedule)) == schedule


@pytest.mark.parametrize("bad", ["", "1f1b", "1F1B F0.0 B0.0", "1f1b F0.0", "1f1b F0.0  B0.0 x", 7])
def test_no_schedule(bad):
    with pytest.raises(ParseError):
        Schedule.parse(bad)


# What may run


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        ([], "no action"),
        (["F0.0"], "1 actions of 1 chunks and 1 micro-batches: 2 are needed, F, B of every"),
        (["F0.0 B0.0 W0.0 F0.1 B0.1"], "6 are needed, F, B, W"),
        (["F0.0 F0.0 B0.0"], "F0.0 comes twice"),
        (["B0.0 F0.0"], "B0.0 comes before F0.0, whose result it needs, on device 0"),
        (["F0.0 W0.0 B0.0"], "W0.0 comes before B0.0"),
        (["F1.0 F0.0 B1.0 B0.0"], "F1.0 comes before F0.0"),
        (["F0.0 F1.0 B0.0 B1.0"], "B0.0 comes before B1.0"),
        (["F0.0", "B0.0"], "B0.0 is on device 1 and chunk 0 is on device 0"),
        (["F0.0 F2.0 B2.0 B0.0", "B1.0 F1.0"], "B1.0 comes before F1.0"),
        (
            ["F0.0 B0.0 F0.1 B0.1", "F1.0 F1.1 B1.0 B1.1"],
            "there wait device 0 before B0.0 for B1.0, device 1 before F1.1 for F0.1",
        ),
        (["F1000000.0"], "needed"),
    ],
)
def test_what_cannot_run_is_refused(orders, said):
    with pytest.raises(InvalidValueError, match=said.replace("(", r"\(")):
        link(orders_of(*orders))


def needs(action, chunks):
    """What an action waits for, written out again."""
    kind, c, i = action.kind, action.chunk, action.micro_batch
    if kind is W:
        return [Action(B, c, i)]
    if kind is F:
        return [Action(F, c - 1, i)] if c else []
    return [Action(F, c, i), *([Action(B, c + 1, i)] if c < chunks - 1 else [])]


def graph_of(orders, chunks):
    graph = nx.DiGraph()
    for order in orders:
        graph.add_nodes_from(order)
        graph.add_edges_from(pairwise(order))
        graph.add_edges_from((before, one) for one in order for before in needs(one, chunks))
    return graph


@st.composite
def placed_actions(draw):
    """Chunks dealt to devices, and all actions, shuffled."""
    chunks, count = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    devices = draw(st.integers(1, 3))
    place = [draw(st.integers(0, devices - 1)) for _ in range(chunks)]
    kinds = [F, B, W] if draw(st.booleans()) else [F, B]
    names = [Action(*one) for one in product(kinds, range(chunks), range(count))]
    return chunks, devices, place, draw(st.permutations(names))


@settings(max_examples=300, deadline=None)
@given(placed_actions(), st.booleans(), st.randoms(use_true_random=False))
def test_orders_run_exactly_where_the_graph_has_no_cycle(case, sort, random):
    chunks, devices, place, names = case
    if sort:  # one order in which all can run, so that half the cases do
        graph = graph_of([[name] for name in names], chunks)
        rank = {name: random.random() for name in names}
        names = list(nx.lexicographical_topological_sort(graph, rank.__getitem__))
    orders = [[one for one in names if place[one.chunk] == d] for d in range(devices)]
    graph = graph_of(orders, chunks)
    if not nx.is_directed_acyclic_graph(graph):
        with pytest.raises(InvalidValueError):
            link(orders)
        return
    links = link(orders)
    flat = [one for order in orders for one in order]
    position = {flat[number]: k for k, number in enumerate(links.sequence)}
    assert len(position) == len(flat)
    assert all(position[a] < position[b] for a, b in graph.edges)
    for number, one in enumerate(flat):
        remote = [a for a in needs(one, chunks) if place[a.chunk] != place[one.chunk]]
        assert [flat[k] for k in (links.producer[number],) if k >= 0] == remote
        assert links.producer[number] < 0 or links.consumer[links.producer[number]] == number


# The kinds


@pytest.mark.parametrize("kind", KINDS)
def test_all_sizes_run(kind):
    for p, m in SIZES:
        links = link(made(kind, p, m, v=2 + (p + m) % 2))
        assert (links.devices, links.micro_batches) == (p, m)
        assert links.splits_backward == kind.splits_backward
        assert (links.chunks > p) == kind.takes_chunks
        assert links.device_of_chunk == tuple(device_of(kind, c, p) for c in range(links.chunks))


def test_gpipe():
    assert text(made(ScheduleKind.GPIPE, 2, 3)) == [
        "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2",
        "F1.0 F1.1 F1.2 B1.0 B1.1 B1.2",
    ]


def test_1f1b():
    assert text(made(ScheduleKind.ONE_F_ONE_B, 3, 4)) == [
        "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3",
        "F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 B1.3",
        "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3",
    ]


def test_1f1b_with_fewer_micro_batches_than_devices():
    assert text(made(ScheduleKind.ONE_F_ONE_B, 4, 2)) == [
        "F0.0 F0.1 B0.0 B0.1",
        "F1.0 F1.1 B1.0 B1.1",
        "F2.0 F2.1 B2.0 B2.1",
        "F3.0 B3.0 F3.1 B3.1",
    ]


def torch_order(rows):
    kinds = {"F": F, "B": B, "I": B, "W": W}
    return tuple(
        Action(kinds[one.computation_type.value], one.stage_index, one.microbatch_index)
        for one in rows
        if one is not None and one.computation_type.value in kinds
    )


@pytest.mark.parametrize(
    ("p", "v", "rounds"), [(1, 3, 2), (2, 2, 3), (4, 3, 2), (3, 2, 1), (8, 4, 3)]
)
def test_interleaved_is_that_of_torch(p, v, rounds):
    from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B as Theirs

    state = SimpleNamespace(
        n_local_stages=v, pp_group_size=p, _n_microbatches=p * rounds, number_of_rounds=rounds,
        microbatches_per_round=p,
    )  # fmt: skip
    ours = made(ScheduleKind.INTERLEAVED, p, p * rounds, v)
    for d in range(p):
        assert ours[d] == torch_order(Theirs._calculate_single_rank_operations(state, d))


@pytest.mark.parametrize(
    ("p", "m"), [(1, 1), (1, 4), (2, 1), (2, 8), (3, 3), (4, 7), (4, 12), (5, 9)]
)
def test_zb_v_by_hand_is_that_of_torch(p, m):
    from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble as Theirs

    from shardwise.ir.schedule_by_hand import zb_v

    state = SimpleNamespace(pp_group_size=p, _n_microbatches=m, num_stages=2 * p)
    ours = zb_v(p, m)
    for d in range(p):
        assert ours[d] == torch_order(Theirs._calculate_single_rank_operations(state, d))


@pytest.mark.parametrize(("p", "m", "v"), [(4, 6, 2), (3, 2, 3), (4, 1, 2), (5, 7, 2)])
def test_interleaved_leaves_out_what_a_full_last_group_would_have(p, m, v):
    full = made(ScheduleKind.INTERLEAVED, p, -(-m // p) * p, v)
    kept = tuple(tuple(one for one in order if one.micro_batch < m) for order in full)
    assert made(ScheduleKind.INTERLEAVED, p, m, v) == kept


@pytest.mark.parametrize(
    ("kind", "sizes", "said"),
    [
        (ScheduleKind.GPIPE, {"devices": 0}, "devices is 0"),
        (ScheduleKind.GPIPE, {"micro_batches": 1.0}, "micro_batches is 1.0"),
        (ScheduleKind.ONE_F_ONE_B, {"chunks_per_device": 2}, "1f1b has 1"),
        (ScheduleKind.ZB_V, {"chunks_per_device": 1}, "zb_v has 2"),
        (ScheduleKind.INTERLEAVED, {}, "give 2 or more"),
        (ScheduleKind.INTERLEAVED, {"chunks_per_device": 1}, "give 2 or more"),
        (ScheduleKind.ZB_H1, {"activation_limit": 0.5}, "limit of 0.5"),
    ],
)
def test_sizes_that_no_schedule_has(kind, sizes, said):
    with pytest.raises(InvalidValueError, match=said):
        actions(kind, **{"devices": 2, "micro_batches": 2, **sizes})
