"""The plan says what the search found."""

import pytest

from shardwise.ir.layout import Layout
from shardwise.ir.mesh import Mesh
from shardwise.ir.strategy import Recompute
from shardwise.planner import menu
from shardwise.planner.api import plan
from shardwise.planner.assemble import hidden_layouts, strategy_id
from shardwise.planner.candidates import MeshPrograms, Option
from shardwise.planner.score import fixed_s, score_plan
from shardwise.planner.search import Search
from tests.support.planning import SOME, TRAINING, machine, request, traced_hand_model


@pytest.fixture(scope="module")
def found():
    return Search(request(4))


@pytest.fixture(scope="module")
def made():
    limit = request(4).memory_limit_bytes_per_rank
    return plan(
        traced_hand_model(), cluster=machine(4), lengths=SOME, tokens_per_step=8192,
        training=TRAINING, memory_limit_bytes_per_rank=limit,
    )  # fmt: skip


def test_buckets_are_the_bands(found, made):
    best = found.best()
    assert made.mesh == best.mesh
    assert made.step_s == best.step_s
    assert made.menu_strategies == len(found.tables)
    assert made.bound_s == min(
        answer.step_s for i in range(len(found.tables)) if (answer := found.best([i]))
    )
    for bucket, band in zip(made.buckets, best.bands, strict=True):
        assert bucket.bucket.largest() == {"S": found.edges[band.high]}
        assert bucket.documents_per_slot == band.option.documents_per_slot
        strategy = made.strategy(bucket.runs[0].strategy)
        assert strategy.implementation == band.option.implementation
        assert strategy.recompute is band.option.recompute
        assert bucket.unit_count == len(traced_hand_model().units)


def test_compiled_prices_are_those_of_the_search(found, made):
    for bucket, band in zip(made.buckets, found.best().bands, strict=True):
        assert bucket.largest_slot_time_s() == pytest.approx(band.price.time_s)
        assert bucket.largest_peak_bytes() == pytest.approx(band.price.peak_bytes)
        assert bucket.time.fit_error < 1e-9


@pytest.mark.parametrize(
    ("mesh", "name", "expected"),
    [
        ("x0=2@l data=2@l", "data", "x0:S(0) data:S(0)"),
        ("x0=2@l data=2@l", "tensor_sequence", "x0:S(1) data:S(0)"),
        ("x0=2@l data=2@l", "ulysses", "x0:S(1) data:S(0)"),
        ("data=4@l", "data", "data:S(0)"),
        ("1", "data", "R"),
    ],
)
def test_hidden_layouts_are_stated(mesh, name, expected):
    programs = MeshPrograms.of(traced_hand_model(), Mesh.parse(mesh), TRAINING)
    (layout,) = hidden_layouts(programs.programs[name])
    assert layout.forward == layout.gradient == Layout.parse(expected)


def test_strategies_of_the_plan_state_their_layouts(made):
    for _, strategy in made.strategies:
        assert len(strategy.inputs) == len(strategy.outputs) == 1


def test_ids():
    assert strategy_id(Option("ulysses", Recompute.NONE, 1, 1)) == "ulysses"
    assert strategy_id(Option("ulysses", Recompute.LAYER, 1, 1)) == "ulysses.layer"


def test_groups_are_each_axis_and_all(made):
    names = made.mesh.axis_names
    assert set(made.groups) == {(n,) for n in names} | ({names} if len(names) > 1 else set())


def test_the_certificate_says_what_it_covers(made):
    sizes = sorted({menu.model_size(mesh) for mesh in menu.meshes(machine(4)[0])})
    assert f"model axis of {', '.join(map(str, sizes))}," in made.covers
    assert "one strategy for all layers" in made.covers


def test_the_fixed_part_of_a_step_can_be_read_back(found, made):
    assert fixed_s(made, SOME) == pytest.approx(found.best().table.fixed_s, rel=1e-6)


def test_the_real_batcher_needs_no_more_slots(made):
    scored = score_plan(made, SOME)
    assert 0 <= scored.idle_share < 1
    assert scored.mean_s <= scored.p95_s
    assert scored.mean_s <= made.step_s * 1.1
    assert "of seats idle" in str(scored)
