"""The accumulator experiment stays true: a small instance of it on 2 and 4 real ranks.

Parity with one process, bytes equal to the closed forms, no byte for a switch, and seeded
faults that have to show. The whole experiment is `python -m benchmarks.risks.accumulator`.
"""

import multiprocessing

import pytest

from benchmarks.risks import accumulator_report as report
from benchmarks.risks.accumulator import ERROR_LIMIT, MESHES, failures
from benchmarks.risks.accumulator_collectives import FAULTS
from benchmarks.risks.accumulator_costs import compare
from benchmarks.risks.accumulator_experiment import Case
from benchmarks.risks.accumulator_launch import launch
from benchmarks.risks.accumulator_layout import (
    FREE_KINDS,
    Layout,
    Mesh,
    copy_layout,
    lower,
    shard_interval,
    working_layout,
)
from benchmarks.risks.accumulator_pairs import ordered_layouts

TIMEOUT_S = 300.0
SQUARE = MESHES[4][-1]
PARITY = {
    2: [
        Case(MESHES[2][0], strategy, rule, width=2, hidden=10, steps=3)
        for strategy, rule in (
            ("DDP", "every_bucket"),
            ("DDP", "join_plan"),
            ("ZeRO-1", "join_plan"),
            ("ZeRO-1", "join_step"),
            ("ZeRO-2 micro_batch", "join_plan"),
            ("ZeRO-3", "join_plan"),
        )
    ],
    4: [
        Case(SQUARE, "DDP", "join_step", width=2, hidden=10, steps=4),
        Case(SQUARE, "ZeRO-1", width=2, hidden=10, steps=3),
        Case(SQUARE, "ZeRO-2", width=2, hidden=10, steps=3),
        Case(SQUARE, "ZeRO-3", width=2, hidden=10, steps=3),
        Case(SQUARE, "HSDP", steps=1),
        Case(MESHES[4][0], "ZeRO-3 small whole", width=2, hidden=10, steps=1),
        Case(SQUARE, "ZeRO-1", "every_bucket", "data+mixed", steps=1),
    ],
}
SEEDED = [
    Case(SQUARE, strategy, fault=fault, steps=2 if fault == "stale_copy" else 1)
    for fault, strategy in zip(FAULTS, ("DDP", "DDP", "ZeRO-2", "ZeRO-3", "ZeRO-1"), strict=True)
]
COPIES = [Case(SQUARE, f"ZeRO-1 copy={name}", steps=2) for name in ("step", "first_use")]


def rows_of(results, cases):
    return list(zip(cases, zip(*(result.outcomes for result in results), strict=True), strict=True))


@pytest.fixture(scope="module")
def two_ranks():
    return launch(tuple(PARITY[2]), TIMEOUT_S)


@pytest.fixture(scope="module")
def four_ranks():
    return launch((*PARITY[4], *SEEDED, *COPIES), TIMEOUT_S)


def test_two_ranks_agree_with_one_process_and_closed_forms(two_ranks):
    rows = rows_of(two_ranks, PARITY[2])
    assert failures({"parity": rows, "menu": []}) == []
    assert all(sum(step.total() for step in ranks[0].measured) > 0 for _, ranks in rows)


def test_four_ranks_agree_with_one_process_and_closed_forms(four_ranks):
    rows = rows_of(four_ranks, [*PARITY[4], *SEEDED, *COPIES])[: len(PARITY[4])]
    assert failures({"parity": rows, "menu": []}) == []


def test_the_join_moves_each_parameter_once_a_step(two_ranks):
    rows = {(c.strategy, c.rule): ranks[0] for c, ranks in rows_of(two_ranks, PARITY[2])}
    elements = 2 + 10 * 2 + 10 + 2 * 10 + 2
    for step in rows["DDP", "join_plan"].measured:
        assert step["gradient", "all_reduce"] == 8 * elements
    for step in rows["ZeRO-1", "join_plan"].measured:
        assert step["gradient", "reduce_scatter"] == 8 * elements
    designed = sum(step["gradient", "all_gather"] for step in rows["DDP", "every_bucket"].measured)
    assert designed > 0


@pytest.mark.parametrize("index", range(len(SEEDED)), ids=FAULTS)
def test_a_seeded_fault_shows(four_ranks, index):
    _, ranks = rows_of(four_ranks, [*PARITY[4], *SEEDED, *COPIES])[len(PARITY[4]) + index]
    error = max(report.worst(ranks, "gradient_error"), report.worst(ranks, "weight_error"))
    assert error > 1e-3


def test_copies_gathered_at_first_use_depend_on_the_order_of_slots(four_ranks):
    rows = rows_of(four_ranks, [*PARITY[4], *SEEDED, *COPIES])[-2:]
    joined, first_use = (ranks for _, ranks in rows)
    assert report.worst(joined, "switch_bytes") == 0
    assert report.is_as_predicted(joined)
    assert report.worst(first_use, "switch_bytes") > 0


def test_every_pair_of_layouts_is_lowered_right_on_ranks(two_ranks, four_ranks):
    pairs = {mesh: (n, e) for r in (*two_ranks, *four_ranks) for mesh, n, e in r.pairs}
    assert {mesh: n for mesh, (n, _) in pairs.items()} == {
        "x0=2": 9,
        "x0=4": 9,
        "x0=2 data=2": 100,
    }
    assert max(e for r in (*two_ranks, *four_ranks) for _, _, e in r.pairs) < ERROR_LIMIT


def test_lowerings_over_three_axes_are_chains_with_legal_steps():
    layouts = ordered_layouts(("x0", "x1", "data"))
    assert len(layouts) == 38
    before_after = {
        "all_gather": ("S", "R"),
        "reduce_scatter": ("P", "S"),
        "all_reduce": ("P", "R"),
        "slice": ("R", "S"),
        "pad": ("S", "P"),
        "mask": ("R", "P"),
    }
    for source in layouts:
        for target in layouts:
            here = source
            for step in lower(source, target):
                assert step.source == here
                for axis in step.axes:
                    states = (here.state(axis), step.target.state(axis))
                    assert states == before_after[step.kind]
                here = step.target
            assert here == target


@pytest.mark.parametrize("mesh", [*MESHES[2], *MESHES[4]], ids=str)
@pytest.mark.parametrize("sharded", [False, True])
def test_the_join_is_free_and_never_dearer_but_for_crossed_cuts(mesh, sharded):
    result = compare(mesh, Layout(mesh.names if sharded else ()))
    assert result.combinations == result.cheaper + result.equal + len(result.dearer)
    assert result.cheaper > result.equal
    if sharded or len(mesh.axes) == 1:
        assert result.dearer == ()
    else:
        assert len(result.dearer) == 4
        assert all("[data:S] + [x0:S" in text and "P" not in text for text in result.dearer)


def test_crossed_cuts_raise_the_join_to_partial():
    wide, crossed = Layout(("x0", "data")), Layout(("data",), ("x0",))
    assert str(working_layout(SQUARE, (), (wide, wide))) == "x0:S data:S"
    assert str(working_layout(SQUARE, (), (crossed,))) == "data:S x0:P"
    joined = working_layout(SQUARE, (), (wide, crossed))
    assert str(joined) == "data:P x0:P"
    for deposit in (wide, crossed):
        assert {step.kind for step in lower(deposit, joined)} <= set(FREE_KINDS)


def test_intervals_are_nested_chunks_in_the_order_of_the_axes():
    held = [shard_interval(SQUARE, ("x0", "data"), 10, rank) for rank in range(4)]
    assert held == [(0, 3), (5, 8), (3, 5), (8, 10)]
    assert [shard_interval(SQUARE, ("x0", "data"), 2, rank) for rank in range(4)] == [
        (0, 1),
        (1, 2),
        (1, 1),
        (2, 2),
    ]


def test_copy_is_cut_by_the_common_prefix_of_its_uses():
    assert copy_layout((("x0", "data"), ("x0",))) == ("x0",)
    assert copy_layout((("x0", "data"), ("x0", "data"))) == ("x0", "data")
    assert copy_layout((("x0",), ("data",))) == ()
    assert copy_layout((("x0",), ())) == ()


def test_a_failing_rank_is_reported_and_no_process_is_left():
    before = set(multiprocessing.active_children())
    with pytest.raises(RuntimeError, match=r"(?s)rank \d failed.*KeyError: 'ZeRO-9'"):
        launch((Case(Mesh((("x0", 2),)), "ZeRO-9"),), TIMEOUT_S)
    assert set(multiprocessing.active_children()) == before


def test_a_launch_that_takes_too_long_ends_its_processes():
    before = set(multiprocessing.active_children())
    with pytest.raises(TimeoutError, match=r"ranks \[0, 1\]"):
        launch((Case(Mesh((("x0", 2),)), "DDP"),), 0.2)
    assert set(multiprocessing.active_children()) == before
