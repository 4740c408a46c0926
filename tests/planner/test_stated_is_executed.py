"""The messages that the planner states are those that the program is recorded to send."""

from collections import Counter

import pytest
import torch

from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Use
from shardwise.ir.strategy import Recompute
from shardwise.ir.training import TrainingSpec
from shardwise.planner.traffic import Traffic, at_rest
from shardwise.runtime.thread_communicator import run_ranks
from tests.support.hand_model import TENSOR_DIM, HandModel, hand_graph
from tests.support.rig import SCHEMES, Rig, strategy

TRAINING = TrainingSpec(
    master_dtype="float64", compute_dtype="float64", reduce_dtype="float64",
    accumulate_dtype="float64",
)  # fmt: skip


def record(communicator, mesh, names, scheme, recompute, form):
    """Messages of each slot and of the step's end, as (kind, group size, bytes) counters."""
    torch.set_num_threads(1)
    model = HandModel(*form)
    graph, units = hand_graph(*form)
    full = {p.name: model.weight(p.name).detach() for p in graph.parameters}
    strategies = [strategy(name, Mesh.parse(mesh), recompute) for name in names]
    rig = Rig(communicator, graph, units, mesh, strategies, scheme, full, TENSOR_DIM)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 48, (4, 8), generator=generator)
    for bucket in range(len(names)):
        rig.slot(bucket, ids=ids, labels=ids)  # copies that live for a step are gathered here
    counters = []
    for bucket in range(len(names)):
        with communicator.recording() as log:
            rig.slot(bucket, ids=ids, labels=ids)
        counters.append(Counter((r.kind, len(r.group), r.message_bytes) for r in log))
    with communicator.recording() as log:
        rig.store.gradients(1.0)
    counters.append(Counter((r.kind, len(r.group), r.message_bytes) for r in log))
    rig.store.refresh()
    with communicator.recording() as log:
        for use in {(s.parameter, s.spec.dtype): s for p in rig.programs for s in p.steps()
                    if type(s).__name__ == "Use"}.values():  # fmt: skip
            if rig.store.states[use.parameter].rest.lifetime != "use":
                rig.store.compute_copy(use)
    counters.append(Counter((r.kind, len(r.group), r.message_bytes) for r in log))
    stated_for = [rig.programs, rig.rests]
    return counters, stated_for


def as_counter(messages, mesh):
    total = Counter()
    for m, n in messages.items():
        total[m.kind, mesh.group_size(m.axes), m.message_bytes_per_rank] += n
    return total


MESHES = (("x0=2@l", 2), ("x0=4@l", 2), ("x0=4@l", 1), ("x0=2@l data=2@l", 2), ("data=2@l", 2))
RECOMPUTES = (Recompute.NONE, Recompute.LAYER)
PAIRS = tuple(
    (*mesh, scheme, RECOMPUTES[(i + j) % 2])
    for i, mesh in enumerate(MESHES)
    for j, scheme in enumerate(SCHEMES)
)
"""Every pair of values, on one layer; the full product on two layers is exhaustive."""


@pytest.mark.parametrize(("mesh", "kv_heads", "scheme", "recompute"), PAIRS)
def test_messages(mesh, kv_heads, scheme, recompute):
    check(mesh, kv_heads, scheme, recompute, layers=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("recompute", RECOMPUTES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("mesh", "kv_heads"), MESHES)
def test_messages_of_every_combination(mesh, kv_heads, scheme, recompute):
    check(mesh, kv_heads, scheme, recompute, layers=2)


def check(mesh, kv_heads, scheme, recompute, *, layers):
    parsed = Mesh.parse(mesh)
    names = ("data", "tensor_sequence", "ulysses", "tensor") if "x0" in mesh else ("data",)
    results = run_ranks(
        parsed.world_size,
        lambda c: record(c, mesh, names, scheme, recompute, (layers, kv_heads)),
        timeout_s=120,
    )
    _, units = hand_graph(layers, kv_heads)
    for counters, (programs, rests) in results:
        uses = [s for p in programs for s in p.steps() if isinstance(s, Use)]
        parameters = at_rest(rests, uses, parsed)
        again = [recompute is Recompute.LAYER and bool(u.module_path) for u in units]
        for program, counted in zip(programs, counters, strict=False):
            stated = Traffic(program, parameters, TRAINING).slot({"B": 4, "S": 8}, again)
            assert as_counter(stated, parsed) == counted
        traffic = Traffic(programs[0], parameters, TRAINING)
        assert as_counter(traffic.step_end(), parsed) == counters[-2]
        assert as_counter(traffic.step_copies(), parsed) == counters[-1]
