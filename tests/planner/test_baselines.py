"""Rivals by the same tables, and the price of sharing parameters."""

import numpy as np
import pytest

from shardwise.ir.global_batch import global_batches
from shardwise.planner import baselines as module
from shardwise.planner.baselines import baselines, free_switching_price
from shardwise.planner.score import score_found
from shardwise.planner.search import Search
from shardwise.solvers.batcher import BucketShape, batch_slots
from tests.support.planning import SOME, machine, request


@pytest.fixture(scope="module")
def search():
    return Search(request(4))


def test_every_rival_is_named_and_none_beats_the_plan(search):
    best = search.best()
    found = baselines(search)
    assert [one.name for one in found] == [rival.name for rival in module._RIVALS]
    for one in found:
        assert one.step_s is not None
        assert one.step_s >= best.step_s
        assert "of seats idle" in one.note


def test_rivals_have_the_form_that_their_name_says(search):
    for rival in module._RIVALS:
        tables = [t for t in search.tables if module._is(t, rival)]
        assert tables
        assert {t.implementations for t in tables} == {(rival.implementation,)}
        assert {t.scheme.name for t in tables} == set(rival.scheme)
        sizes = {t.activations.programs.mesh.axis_names[0] for t in tables}
        assert sizes == ({"x0"} if rival.model_axis else {"data"})


def test_a_rival_that_cannot_run_says_by_how_much():
    limit = min(
        search.best([i]).peak_bytes
        for search in (Search(request(2)),)
        for i, table in enumerate(search.tables)
        if table.scheme.name == "ZeRO-3"
    )
    lacking = Search(request(2, limit=limit))
    notes = {one.name: one for one in baselines(lacking)}
    infeasible = [one for one in notes.values() if one.step_s is None]
    for one in infeasible:
        assert "bytes short at length" in one.note
        short = int(one.note.partition("infeasible: ")[2].split()[0])
        assert one.peak_bytes == limit + short


def test_on_one_rank_tensor_parallelism_has_no_form():
    found = {one.name: one for one in baselines(Search(request(1)))}
    assert found["Megatron TP+SP"].step_s is None
    assert "no mesh" in found["Megatron TP+SP"].note


def test_free_switching_costs_nothing_where_there_is_one_choice():
    search = Search(request(1))
    assert free_switching_price(search, search.best()) == pytest.approx(1.0)


def test_free_switching_is_the_step_over_independent_optima(search):
    best = search.best()
    alone = min(table.fixed_s for table in search.tables)
    for band in best.bands:
        alone += min(
            search.counts.mean_slots(band.low, band.high, o.documents_per_slot) * p.time_s
            for table in search.tables
            for o, p in search.fitting(table, search.edges[band.high])
        )
    assert free_switching_price(search, best) == pytest.approx(max(1.0, best.step_s / alone))


def test_scores_are_those_of_the_real_batcher(search):
    best, one = search.best(), request(4)
    edges = [0, *(search.edges[band.high] for band in best.bands)]
    shapes = [
        BucketShape(low, high, b.option.batch_degree, b.option.seats, (high,))
        for low, high, b in zip(edges, edges[1:], best.bands, strict=False)
    ]
    steps, documents, seats = [], 0, 0
    for batch in global_batches(SOME, one.tokens_per_step, count=64, seed=20261130):
        slots = batch_slots(batch[:, 0].tolist(), shapes)
        steps.append(
            sum(best.bands[slot.bucket].price.time_s for slot in slots) + best.table.fixed_s
        )
        documents += len(batch)
        seats += sum(shapes[slot.bucket].documents_per_slot for slot in slots)
    scored = score_found(best, search.edges, SOME, one.tokens_per_step)
    assert scored.mean_s == pytest.approx(np.mean(steps))
    assert scored.p95_s == pytest.approx(np.percentile(steps, 95))
    assert scored.idle_share == pytest.approx(1 - documents / seats)
    assert machine(4)[0].world_size == 4
