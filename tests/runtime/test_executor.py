"""The executor: what a batch must be, what is kept between units, recomputation."""

import gc
import weakref

import pytest
import torch

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.localise import localise
from shardwise.ir.mesh import Mesh
from shardwise.ir.strategy import Recompute
from shardwise.runtime.executor import _last_reads, length_multiples
from shardwise.runtime.thread_communicator import ThreadCommunicator, ThreadWorld, run_ranks
from tests.support.hand_model import TENSOR_DIM, VOCABULARY, HandModel, hand_graph
from tests.support.rig import Rig, strategy


def rig(communicator, mesh="1", names=("data",), recompute=Recompute.NONE, scheme="ddp"):
    torch.set_num_threads(1)
    model, (graph, units) = HandModel(), hand_graph()
    full = {p.name: model.weight(p.name).detach() for p in graph.parameters}
    mesh = Mesh.parse(mesh)
    strategies = [strategy(name, mesh, recompute) for name in names]
    return Rig(communicator, graph, units, mesh, strategies, scheme, full, TENSOR_DIM)


def alone(**options):
    return rig(ThreadCommunicator(0, ThreadWorld(1)), **options)


def batch(rows=2, length=4):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCABULARY, (rows, length), generator=generator)
    return {"ids": ids, "labels": ids}


def test_a_batch_has_every_input_in_one_size():
    executor = alone().executor
    with pytest.raises(InvalidValueError, match="the model reads labels"):
        executor.run(0, {"ids": batch()["ids"]})
    with pytest.raises(InvalidValueError, match="pad all inputs of a micro-batch alike"):
        executor.run(0, {"ids": batch()["ids"], "labels": batch(length=5)["labels"]})


@pytest.mark.parametrize(
    ("mesh", "name", "multiples"),
    [
        ("x0=2@l data=2@l", "data", {}),
        ("x0=2@l data=2@l", "tensor", {}),
        ("x0=2@l data=2@l", "ulysses", {"S": 2}),
        ("x0=4@l", "tensor_sequence", {"S": 4}),
    ],
)
def test_lengths_are_multiples_of_what_cuts_them(mesh, name, multiples):
    graph, units = hand_graph()
    mesh = Mesh.parse(mesh)
    assert length_multiples(localise(graph, units, mesh, [strategy(name, mesh)] * 4)) == multiples


def test_a_length_that_does_not_divide_is_refused_before_anything_runs():
    def rank(communicator):
        executor = rig(communicator, "x0=2@l", ("ulysses", "data")).executor
        with communicator.recording() as log:
            with pytest.raises(InvalidValueError, match=r"bucket 0 has S = 5.*multiple of 2"):
                executor.run(0, batch(length=5))
            sent = len(log)
            executor.run(1, batch(rows=1, length=5))  # this bucket's strategy cuts no length
        return sent

    assert run_ranks(2, rank) == [0, 0]


@pytest.mark.parametrize("scheme", ["ddp", "zero3"])
def test_recomputed_layers_give_the_same_and_run_twice(scheme):
    def run(recompute):
        made = alone(recompute=recompute, scheme=scheme)
        calls, original = [], made.store.use
        made.store.use = lambda use, *more: calls.append(use.parameter) or original(use, *more)
        loss, _ = made.executor.run(0, batch())
        loss.backward()
        return calls, loss.item(), made.store.gradients(1.0)

    once, loss, gradients = run(Recompute.NONE)
    twice, again, same = run(Recompute.LAYER)
    assert loss == again and all(torch.equal(gradients[n], same[n]) for n in gradients)
    layers = [name for name in once if name.startswith("layers.")]
    assert sorted(twice) == sorted([*once, *layers])


def test_without_gradients_nothing_is_accumulated():
    made = alone()
    with torch.no_grad():
        loss, weight = made.executor.run(0, batch())
    assert not loss.requires_grad and weight.item() == 8
    assert all(state.sum is None for state in made.store.states.values())


def test_hidden_states_are_freed_once_they_are_read():
    """Without gradients, nothing but the next unit's inputs stays alive."""
    executor = alone().executor
    made, alive, original = [], [], executor._unit

    def unit(*args):
        gc.collect()
        alive.append([ref() is not None for ref in made])
        results = original(*args)
        made.append(weakref.ref(results[0]))
        return results

    executor._unit = unit
    with torch.no_grad():
        executor.run(0, batch())
    assert alive == [[], [True], [False, True], [False, False, True]]


@pytest.mark.parametrize("name", ["data", "tensor_sequence", "ulysses"])
def test_values_are_dropped_after_their_last_reader(name):
    graph, units = hand_graph()
    mesh = Mesh.parse("x0=2@l")
    program = localise(graph, units, mesh, [strategy(name, mesh)] * 4)
    drops = _last_reads(program)
    alive = {"ids", "labels"}
    for unit, dropped in zip(program.units, drops, strict=True):
        assert set(unit.reads) <= alive
        alive |= set(unit.writes)
        alive -= set(dropped)
    assert alive - {"ids", "labels"} == set(program.outputs)
