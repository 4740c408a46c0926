"""Stated peaks of slots against the storages that are seen alive while they run."""

from functools import lru_cache

import pytest
import torch

from benchmarks.predicted_slots import Live
from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Use
from shardwise.ir.strategy import Recompute
from shardwise.planner.memory_model import slot_bytes, slot_memory
from shardwise.planner.traffic import Traffic, at_rest
from shardwise.runtime.thread_communicator import run_ranks
from tests.planner.test_stated_work import MODELS, form
from tests.support.hand_model import TENSOR_DIM
from tests.support.planning import TRAINING
from tests.support.rig import SCHEMES, Rig, strategy

WITHIN = 0.01


class LiveOfRank(Live):
    """Of this thread's storages: a collective, which touches other ranks' tensors, gives one
    result."""

    def __init__(self, communicator):
        super().__init__()
        self.is_meeting = False
        self.execute, communicator._execute = communicator._execute, self.meet

    def note(self, result, given):
        if not self.is_meeting:
            super().note(result, given)

    def meet(self, call, x):
        self.is_meeting = True
        result = self.execute(call, x)
        self.is_meeting = False
        self.note(result, [x])
        return result


def execute(communicator, model, mesh, strategies, scheme, rows, length):
    """(rig, live bytes at the peak of a slot of each program)."""
    torch.set_num_threads(1)
    traced, full, constants = form(model)
    rig = Rig(communicator, traced.graph, traced.units, mesh, strategies, scheme, full, TENSOR_DIM)
    rig.executor.constants = dict(constants)
    peaks = []
    for bucket in range(len(strategies)):
        rig.store.prepare()
        run(rig, bucket, rows, length)  # makes the accumulators
        live = LiveOfRank(communicator)
        with live:
            run(rig, bucket, rows, length)
        communicator._execute = live.execute
        peaks.append(live.peak)
    return rig, peaks


def run(rig, bucket, rows, length):
    ids = torch.randint(0, 40, (rows, length), generator=torch.Generator().manual_seed(1))
    batch = {item.name: rig.local(bucket, ids).clone() for item in rig.graph.inputs}
    del ids
    loss, _ = rig.executor.run(bucket, batch)
    loss.backward()


@lru_cache
def stated_and_seen(mesh, model, scheme, size):
    """(implementation, recomputation, stated, largest seen) of every program on a mesh."""
    parsed, (rows, length) = Mesh.parse(mesh), size
    names = ("data", "tensor_sequence", "ulysses") if "x0" in mesh else ("data",)
    cases = [(name, again) for name in names for again in (Recompute.NONE, Recompute.LAYER)]
    strategies = [strategy(name, parsed, again) for name, again in cases]
    traced, _, _ = form(model)
    results = run_ranks(
        parsed.world_size,
        lambda c: execute(c, model, mesh, strategies, scheme, rows, length),
        timeout_s=120,
    )
    rig = results[0][0]
    uses = [step for one in rig.programs for step in one.steps() if isinstance(step, Use)]
    parameters = at_rest(rig.rests, uses, parsed)
    found = []
    for index, ((name, recompute), program) in enumerate(zip(cases, rig.programs, strict=True)):
        again = [recompute is Recompute.LAYER and bool(unit.module_path) for unit in traced.units]
        traffic = Traffic(program, parameters, TRAINING)
        memory = slot_memory(traffic, range(len(again)), again)
        stated = slot_bytes(memory.under(traffic), {"B": rows, "S": length})
        found.append((name, str(recompute), stated, max(peaks[index] for _, peaks in results)))
    return found


MESHES = ("1", "x0=2@l", "x0=4@l", "x0=2@l data=2@l", "data=2@l")
SIZES = ((8, 32), (4, 128), (16, 8))
CASES = tuple(
    (mesh, model, SCHEMES[(i + j) % 4], SIZES[(i + 2 * j) % 3])
    for i, mesh in enumerate(MESHES)
    for j, model in enumerate(MODELS)
    if (i + j) % 2
)


@pytest.mark.parametrize(("mesh", "model", "scheme", "size"), CASES)
def test_stated_peaks_are_those_seen(mesh, model, scheme, size):
    for name, recompute, stated, seen in stated_and_seen(mesh, model, scheme, size):
        assert abs(stated / seen - 1) <= WITHIN, (name, recompute, stated, seen)


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mesh", MESHES)
def test_stated_peaks_of_every_combination(mesh, model, scheme, size):
    test_stated_peaks_are_those_seen(mesh, model, scheme, size)
