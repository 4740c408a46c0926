"""Stated bytes against what autograd is seen to keep, and against sums by hand."""

from functools import lru_cache

import pytest
import torch

from shardwise.ir.mesh import Mesh
from shardwise.ir.trace_language import trace_language_model
from shardwise.ir.trace_models import load_model
from shardwise.ir.training import TrainingSpec
from shardwise.planner.candidates import MeshPrograms
from shardwise.planner.memory_model import gathered_bytes, rest_memory, slot_memory
from shardwise.planner.scheme import SCHEMES, scheme_rest
from shardwise.planner.traffic import Traffic, at_rest
from shardwise.runtime.regather import Regather
from shardwise.runtime.thread_communicator import run_ranks
from tests.support.hand_model import INNER, VOCABULARY, WIDTH, HandModel
from tests.support.planning import TRAINING, traced_hand_model
from tests.support.rig import Rig, strategy


@lru_cache
def model_and_trace(name):
    """(weights by name, trace) of a small model in float64."""
    if name == "hand":
        model = HandModel()
        traced = traced_hand_model()
        return {p.name: model.weight(p.name).detach() for p in traced.graph.parameters}, traced
    model = load_model("hf:configs/models/tiny-llama.json").to_empty(device="cpu").double()
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.02)
    traced = trace_language_model(model, compute_dtype="float64", longest=4096)
    constants = {n: torch.ones_like(b) for n, b in model.named_buffers()}
    object.__setattr__(traced, "constants", {**traced.constants, **constants})
    return {n: p.detach() for n, p in model.named_parameters()}, traced


def run_slot(communicator, weights, traced, mesh, name, batch, length):
    """(the rank's store, addresses that stay anyway, loss) of one forward."""
    torch.set_num_threads(1)
    rig = Rig(
        communicator, traced.graph, traced.units, mesh, [strategy(name, Mesh.parse(mesh))],
        "ddp", weights, {},
    )  # fmt: skip
    rig.executor.constants = dict(traced.constants)
    ids = torch.randint(0, 40, (batch, length), generator=torch.Generator().manual_seed(1))
    whole = {item.name: ids for item in traced.graph.inputs}
    loss, _ = rig.executor.run(0, {n: rig.local(0, w) for n, w in whole.items()})
    stay = [state.local for state in rig.store.states.values()]
    stay += [copy for state in rig.store.states.values() for copy in state.copies.values()]
    stay += list(rig.executor.constants.values())
    return rig.store, {t.untyped_storage().data_ptr() for t in stay}, loss


@pytest.mark.parametrize(("batch", "length"), [(4, 16), (4, 96), (2, 32)])
@pytest.mark.parametrize(
    ("mesh", "name"),
    [("1", "data"), ("x0=2@l", "data"), ("x0=2@l", "tensor_sequence"), ("x0=2@l", "ulysses")],
)
@pytest.mark.parametrize("model", ["hand", "llama"])
def test_saved_bytes_are_those_that_autograd_keeps(
    model, mesh, name, batch, length, monkeypatch
):
    weights, traced = model_and_trace(model)
    kept = {}
    pack = Regather._pack

    def record(self, tensor):
        storage = tensor.untyped_storage()
        mine = kept.setdefault(id(self.gather.__self__), {})
        mine[storage.data_ptr()] = storage.nbytes()
        return pack(self, tensor)

    monkeypatch.setattr(Regather, "_pack", record)
    results = run_ranks(
        Mesh.parse(mesh).world_size,
        lambda c: run_slot(c, weights, traced, mesh, name, batch, length),
        timeout_s=60,
    )
    programs = MeshPrograms.of(traced, Mesh.parse(mesh), TRAINING)
    traffic = Traffic(programs.programs[name], {}, TRAINING)
    memory = slot_memory(
        traffic, programs.groups[name], programs.like[name], [False] * len(traced.units)
    )
    stated = memory.kept_bytes({"B": batch, "S": length})
    for store, stay, _ in results:
        seen = sum(size for at, size in kept[id(store)].items() if at not in stay)
        assert stated == seen
