"""The search against an enumerator that shares only the prices, and its promises."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from shardwise.ir.errors import InfeasibleError, UnsupportedError
from shardwise.ir.lengths import Lengths
from shardwise.planner import edges as edges_module
from shardwise.planner import menu
from shardwise.planner import search as module
from shardwise.planner.candidates import (
    ActivationTable,
    MeshPrograms,
    Option,
    SchemeTable,
    batch_degree,
)
from shardwise.planner.scheme import SCHEMES
from shardwise.planner.search import Found, Search, Shortfall, infeasible
from shardwise.planner.time_model import Pricer
from shardwise.solvers.slot_counts import sample_batches
from tests.support.planning import SOME, lengths, request

SEATS = (1, 4)


@pytest.fixture
def small(monkeypatch):
    """Few edges, seats and schemes, so that everything can be enumerated."""
    monkeypatch.setattr(edges_module, "MAX_EDGES", 4)
    monkeypatch.setattr(menu, "seat_counts", lambda: SEATS)
    kept = tuple(s for s in SCHEMES if s.name in ("DDP", "TP+ZeRO-1", "ZeRO-3"))
    monkeypatch.setattr(module, "SCHEMES", kept)
    return kept


def enumerated(one, schemes, most=8):
    """Least expected step over everything that the menu says, or None; no use of Search."""
    batches = sample_batches(one.lengths, one.tokens_per_step)
    edges = edges_module.candidate_edges(
        one.lengths, edges_module.edge_multiple(one.cluster.world_size)
    )
    reserve = int(one.hardware.context_bytes.value + 3 * one.hardware.group_bytes.value)
    pricer = Pricer(one.cluster, one.hardware, one.software, one.training)
    best = None
    for mesh in menu.meshes(one.cluster):
        programs = MeshPrograms.of(one.traced, mesh, one.training)
        table = ActivationTable(programs, pricer, one.training)
        names = menu.implementations(mesh)
        for scheme in schemes:
            for size in range(1, len(names) + 1):
                for subset in combinations(names, size):
                    prices = SchemeTable(table, scheme, subset, reserve)
                    step = best_step(one, prices, mesh, subset, edges, batches, most)
                    if step is not None and (best is None or step < best):
                        best = step
    return best


def best_step(one, prices, mesh, subset, edges, batches, most):
    cost = {}
    for low, high in combinations(edges, 2):
        documents = [int(((b > low) & (b <= high)).sum()) for b in batches]
        for name in subset:
            for recompute in menu.RECOMPUTES:
                degree = batch_degree(menu.strategy(name, mesh, recompute), mesh)
                for seats in SEATS:
                    option = Option(name, recompute, seats, degree)
                    price = prices.price(option, high)
                    if price.peak_bytes > one.memory_limit_bytes_per_rank:
                        continue
                    slots = np.mean([-(-n // (degree * seats)) for n in documents])
                    step = slots * price.time_s
                    cost[low, high] = min(step, cost.get((low, high), step))
    best = None
    for count in range(min(most, len(edges) - 1)):
        for inner in combinations(edges[1:-1], count):
            bands = list(pairwise((0, *inner, edges[-1])))
            if all(band in cost for band in bands):
                total = sum(cost[band] for band in bands) + prices.fixed_s
                best = total if best is None or total < best else best
    return best


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("limit", ["roomy", "tight"])
def test_the_answer_is_the_least_of_all(small, ranks, limit):
    one = request(ranks)
    if limit == "tight":
        one = replace(one, memory_limit_bytes_per_rank=halfway(one))
    answer = Search(one).best()
    expected = enumerated(one, small)
    assert isinstance(answer, Found)
    assert answer.step_s == pytest.approx(expected, rel=1e-12)
    assert answer.peak_bytes <= one.memory_limit_bytes_per_rank


def halfway(one):
    """A limit between what the leanest plan needs and what the fastest takes."""
    most = Search(one).best().peak_bytes
    short = Search(replace(one, memory_limit_bytes_per_rank=1)).best()
    return (short.needed_bytes + most) // 2


@pytest.mark.usefixtures("small")
def test_more_memory_is_never_slower_and_no_limit_is_broken():
    one = request(2)
    least = Search(replace(one, memory_limit_bytes_per_rank=1)).best().needed_bytes
    most = Search(one).best().peak_bytes
    steps = []
    for limit in np.linspace(least, most * 1.01, 6).astype(int):
        answer = Search(replace(one, memory_limit_bytes_per_rank=int(limit))).best()
        assert isinstance(answer, Found)
        assert all(band.price.peak_bytes <= limit for band in answer.bands)
        steps.append(answer.step_s)
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


def test_the_shortfall_is_exact():
    one = request(2, limit=1)
    search = Search(one)
    short = search.best()
    assert isinstance(short, Shortfall)
    error = infeasible(search, short)
    assert isinstance(error, InfeasibleError)
    assert f"{short.needed_bytes - 1} bytes short" in str(error)
    assert str(short.length) in str(error)
    enough = Search(replace(one, memory_limit_bytes_per_rank=short.needed_bytes)).best()
    assert isinstance(enough, Found)
    assert enough.peak_bytes <= short.needed_bytes
    lacking = Search(replace(one, memory_limit_bytes_per_rank=short.needed_bytes - 1)).best()
    assert isinstance(lacking, Shortfall)
    assert lacking.needed_bytes == short.needed_bytes


def test_an_infeasible_length_names_one_that_fits():
    one = request(2, limit=1)
    short = Search(one).best()
    search = Search(replace(one, memory_limit_bytes_per_rank=short.needed_bytes - 1))
    fits = search.longest_that_fits()
    assert 0 < fits < search.edges[-1]
    assert f"split documents at {fits} tokens" in str(infeasible(search, search.best()))


@pytest.mark.usefixtures("small")
def test_more_buckets_are_never_worse(monkeypatch):
    steps = []
    for most in (1, 3, 8):
        monkeypatch.setattr(edges_module, "MAX_BUCKETS", most)
        answer = Search(request(2)).best()
        assert len(answer.bands) <= most
        steps.append(answer.step_s)
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


@pytest.mark.usefixtures("small")
def test_a_candidate_edge_more_is_never_worse(monkeypatch):
    steps = []
    for edges in ((0, 1024), (0, 64, 1024), (0, 64, 256, 1024), (0, 16, 64, 256, 1024)):
        monkeypatch.setattr(module, "candidate_edges", lambda *_, edges=edges: edges)
        steps.append(Search(request(2)).best().step_s)
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


@pytest.mark.usefixtures("small")
def test_a_strategy_more_is_never_worse(monkeypatch):
    steps = []
    for names in (("data",), ("data", "ulysses"), ("data", "tensor_sequence", "ulysses")):
        chosen = dict.fromkeys(names)
        monkeypatch.setattr(menu, "implementations",
                            lambda mesh, c=chosen: tuple(c) if menu.model_size(mesh) > 1
                            else ("data",))  # fmt: skip
        steps.append(Search(request(2)).best().step_s)
    assert steps == sorted(steps, reverse=True)


def test_every_scheme_of_the_best_table_is_kept_apart():
    search = Search(request(2))
    forms = [
        (str(t.activations.programs.mesh), t.scheme.name, t.implementations) for t in search.tables
    ]
    assert len(set(forms)) == len(forms)
    meshes = {form[0] for form in forms}
    assert meshes == {"data=2@loopback", "x0=2@loopback"}


def test_two_length_dims_are_refused():
    two = Lengths.parse('S_src,S_tgt empty=0 "t" (0,8]*(0,4]:2:9,5')
    with pytest.raises(UnsupportedError, match="S_src, S_tgt"):
        Search(request(2, histogram=two))


def test_no_more_seats_than_documents():
    few = lengths((4, 64, 60))
    search = Search(request(2, histogram=few, tokens=256))
    most = int(search.counts.below[:, -1].max())
    for table in search.tables:
        for option, _ in search.fitting(table, search.edges[-1]):
            assert option.documents_per_slot < 2 * most * option.batch_degree


def test_units_that_differ_are_not_priced_as_one():
    programs = MeshPrograms.of(request(2).traced, next(iter(menu.meshes(request(2).cluster))),
                               request(2).training)  # fmt: skip
    assert programs.groups["data"] == ((0, 1), (1, 2), (3, 1))
    assert programs.like["data"] == (0, 1, 1, 3)
    assert SOME.largest() == {"S": 1024}
