"""FLOPs, saved bytes and messages that the planner states are those of the executed program.

Counted by tests/support/executed.py, which knows nothing of the statements: exactly equal, but for
one target where a rank has one document (see the last test).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import pytest
import torch

from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Use
from shardwise.ir.strategy import Recompute
from shardwise.planner.memory_model import slot_memory
from shardwise.planner.traffic import Traffic, at_rest
from shardwise.planner.work import slot_work
from shardwise.runtime.interpreter import module_values
from shardwise.runtime.thread_communicator import run_ranks
from tests.support.executed import Operators, Watch, counting
from tests.support.hand_model import TENSOR_DIM, HandModel
from tests.support.planning import TRAINING, traced_hand_model
from tests.support.rig import SCHEMES, Rig, strategy
from tests.support.traced import traced_model


@lru_cache
def form(model):
    """(trace, whole values of the parameters, constants) of a model named in MODELS."""
    name, *option = model.split(" ")
    if name == "hand":
        kv_heads = int(option[0].removeprefix("kv="))
        traced, module = traced_hand_model(1, kv_heads), HandModel(1, kv_heads)
        return traced, {p.name: module.weight(p.name).detach() for p in traced.graph.parameters}, {}
    module, traced = traced_model(name, getattr(torch, *option) if option else torch.float64)
    values = module_values(module, traced.graph, traced.constants)
    constants = {constant.name: values[constant.name] for constant in traced.graph.constants}
    return traced, {p.name: values[p.name].detach() for p in traced.graph.parameters}, constants


def execute(communicator, model, mesh, names, scheme, recompute, rows, length):
    """(rig, what is counted of a slot of each program)."""
    torch.set_num_threads(1)
    traced, full, constants = form(model)
    strategies = [strategy(name, Mesh.parse(mesh), recompute) for name in names]
    rig = Rig(communicator, traced.graph, traced.units, mesh, strategies, scheme, full, TENSOR_DIM)
    rig.executor.constants = dict(constants)
    operators = Operators()
    counting(rig.executor, operators)
    return rig, [one_slot(rig, bucket, operators, rows, length) for bucket in range(len(names))]


def batch_of(rig, bucket, rows, length):
    """Inputs that nothing else holds."""
    ids = torch.randint(0, 40, (rows, length), generator=torch.Generator().manual_seed(1))
    return {item.name: rig.local(bucket, ids).clone() for item in rig.graph.inputs}


@dataclass(frozen=True)
class Counted:
    """Of one micro-batch on one rank."""

    forward: int
    again: int
    """FLOPs of the operators that the forward calls, and that recomputation calls again."""
    kernels_forward: int
    products_forward: int
    """FLOPs of product kernels in the forward, and of the operators that they compute."""
    kernels_backward: int
    products_again: int
    """Of product kernels in the backward, recomputation included; of what it recomputes."""
    kept_bytes: int
    """Storages alive between forward and backward."""
    messages: Mapping[tuple[str, int, int], int]
    """(kind, ranks of the group, bytes) of the slot -> how many."""


def one_slot(rig, bucket, operators, rows, length):
    rig.store.prepare()
    everyone = tuple(range(rig.mesh.world_size))
    with Watch(rig.communicator) as watch:
        with rig.communicator.recording() as log:
            loss, weight = rig.executor.run(bucket, batch_of(rig, bucket, rows, length))
        sent = Counter((r.kind, len(r.group), r.message_bytes) for r in log)
        loss = loss * 1.0  # a storage of its own, so that only what autograd saves stays
        del weight
        kernels_forward, (forward, products_forward) = watch.take(), operators.take()
        states = rig.store.states.values()
        staying = [rig.store.anchor, loss, *rig.executor.constants.values()]
        staying += [state.local for state in states]
        staying += [copy for state in states for copy in state.copies.values()]
        rig.communicator.barrier(everyone)  # no rank still holds what another has sent it
        kept = watch.alive(staying)
        with rig.communicator.recording() as log:
            loss.backward()
        sent += Counter((r.kind, len(r.group), r.message_bytes) for r in log)
        kernels_backward, (again, products_again) = watch.take(), operators.take()
    return Counted(
        forward, again, kernels_forward, products_forward, kernels_backward, products_again, kept,
        sent,
    )  # fmt: skip


MESHES = ("1", "x0=2@l", "x0=4@l", "x0=2@l data=2@l", "data=2@l")
MODELS = ("hand kv=4", "hand kv=2", "hand kv=1", "llama", "gpt2", "llama bfloat16")
RECOMPUTES = (Recompute.NONE, Recompute.LAYER)
SIZES = ((12, 20), (8, 28), (16, 4))
"""Documents and length: odd parts of both, many short ones."""
PAIRS = tuple(
    (mesh, model, RECOMPUTES[(i + j // 2) % 2], SIZES[(i + 2 * j) % 3], SCHEMES[(i + j) // 2 % 4])
    for i, mesh in enumerate(MESHES)
    for j, model in enumerate(MODELS)
    if (i + j) % 2
)
"""Every mesh, model, recomputation and size in some company; the full product is exhaustive."""


@pytest.mark.parametrize(("mesh", "model", "recompute", "size", "scheme"), PAIRS)
def test_work_and_saved_bytes(mesh, model, recompute, size, scheme):
    check(mesh, model, recompute, size, scheme)


@pytest.mark.exhaustive
@pytest.mark.parametrize("scheme", ("ddp", "zero3"))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("recompute", RECOMPUTES)
@pytest.mark.parametrize("model", (*MODELS, "hand-written"))
@pytest.mark.parametrize("mesh", MESHES)
def test_work_and_saved_bytes_of_every_combination(mesh, model, recompute, size, scheme):
    check(mesh, model, recompute, size, scheme)


def check(mesh, model, recompute, size, scheme, *, spare_bytes=0):
    parsed, (rows, length) = Mesh.parse(mesh), size
    names = ("data", "tensor_sequence", "ulysses", "tensor") if "x0" in mesh else ("data",)
    traced, _, _ = form(model)  # traced here: ranks that trace at once get in each other's way
    results = run_ranks(
        parsed.world_size,
        lambda c: execute(c, model, mesh, names, scheme, recompute, rows, length),
        timeout_s=120,
    )
    again = [recompute is Recompute.LAYER and bool(unit.module_path) for unit in traced.units]
    sizes = {"B": rows, "S": length}
    for rig, slots in results:
        uses = [step for one in rig.programs for step in one.steps() if isinstance(step, Use)]
        parameters = at_rest(rig.rests, uses, parsed)
        for program, counted in zip(rig.programs, slots, strict=True):
            traffic = Traffic(program, parameters, TRAINING)
            work = slot_work(traffic, sizes, again)
            assert counted.forward == work.forward
            assert counted.again == work.again
            assert counted.kernels_forward == counted.products_forward > 0
            assert counted.kernels_backward - counted.products_again == work.backward
            stated = slot_memory(traffic, range(len(again)), again).kept_bytes(sizes)
            assert stated <= counted.kept_bytes <= stated + spare_bytes
            messages = traffic.slot(sizes, again)
            assert as_counter(messages, parsed) == counted.messages


def as_counter(messages, mesh):
    total = Counter()
    for message, count in messages.items():
        size = message.message_bytes_per_rank
        total[message.kind, mesh.group_size(message.axes), size] += count
    return total


@pytest.mark.parametrize("model", ["hand kv=2", "llama", "gpt2"])
def test_one_document_keeps_at_most_one_target_more(model):
    """The shift of the targets is a view where there is one document, and else a copy."""
    check("1", model, Recompute.NONE, (1, 21), "ddp", spare_bytes=8)
