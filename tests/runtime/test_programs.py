"""Whole programs against one process: gradients of a step, and weights after three AdamW steps.

A step runs slots of every strategy in turn into one accumulator. Documents have odd lengths, the
replicas unequal numbers of them, and some replicas none: empty seats are masked dummies. One
process runs each document alone and unpadded, in float64.
"""

import itertools
from dataclasses import replace

import pytest
import torch

from shardwise.ir.mesh import Mesh
from shardwise.ir.strategy import Recompute
from shardwise.runtime.thread_communicator import run_ranks
from shardwise.runtime.verify import Verification
from tests.support import fault_model
from tests.support.hand_model import TENSOR_DIM, VOCABULARY, HandModel, hand_graph
from tests.support.rig import SCHEMES, Rig, batch_axes, strategy
from tests.support.tiny_decoder import plan_of

GRADIENT_TOLERANCE, WEIGHT_TOLERANCE = 1e-11, 1e-9
FLOOR = 1e-5
"""Of the global gradient norm: tensors with smaller gradients are compared with this."""
STRATEGIES = ("data", "tensor_sequence", "ulysses", "tensor")
IGNORED = -100
BANDS = ((0, 8, "data", 2), (8, 16, "tensor_sequence", 2), (16, 64, "ulysses", 1))


def documents(count, seed=0):
    """Token arrays of 3 to 13 tokens, mostly odd numbers of them; some targets are masked."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for index in range(count):
        length = 3 + 2 * index % 11
        ids, labels = torch.randint(0, VOCABULARY, (2, length), generator=generator)
        labels[torch.rand(length, generator=generator) < 0.2] = IGNORED
        found.append((ids, labels))
    return found


def slots_of(strategies, mesh, step):
    """(bucket, documents per replica) of a step: full slots, ragged ones, and nearly empty ones."""
    slots, number = [], 100 * step
    for place, bucket in enumerate((*range(len(strategies)), 0, len(strategies) - 1)):
        degree = 1
        for axis in batch_axes(strategies[bucket]):
            degree *= mesh.axis(axis).size
        full, ragged, empty = [2] * degree, [1, *[2] * (degree - 1)], [1, *[0] * (degree - 1)]
        rows = (ragged, empty, full)[(place + step) % 3]
        slots.append((bucket, [documents(count, number + i) for i, count in enumerate(rows)]))
        number += degree
    return slots


def padded(rows, seats, multiple):
    """Global ids and labels [replicas x seats, S]; S holds the longest document."""
    longest = max(len(ids) for row in rows for ids, _ in row)
    length = -(-longest // multiple) * multiple
    ids = torch.zeros(len(rows) * seats, length, dtype=torch.int64)
    labels = torch.full_like(ids, IGNORED)
    for replica, row in enumerate(rows):
        for seat, (tokens, targets) in enumerate(row):
            ids[replica * seats + seat, : len(tokens)] = tokens
            labels[replica * seats + seat, : len(tokens)] = targets
    return ids, labels


def reference(model, slots):
    """(mean loss, gradients by name) of the step's documents, one at a time."""
    names = [name for name, _ in model.named_parameters()]
    total, weight = 0.0, 0
    model.zero_grad()
    for _, rows in slots:
        for ids, labels in itertools.chain.from_iterable(rows):
            loss, count = model(ids[None], labels[None])
            loss.backward()
            total, weight = total + loss.item(), weight + count.item()
    for parameter in model.parameters():
        parameter.grad /= weight
    return total / weight, {n: model.get_parameter(n).grad.clone() for n in names}


def errors(found, wanted):
    """Largest difference per tensor over the larger of its size and the floor."""
    norm = sum(float(g.square().sum()) for g in wanted.values()) ** 0.5
    return {
        name: float((found[name] - g).abs().max()) / max(float(g.abs().max()), FLOOR * norm)
        for name, g in wanted.items()
    }


def train(communicator, mesh, names, scheme, recompute, kv_heads, steps):
    """Three steps of AdamW on this rank; the losses, gradients and weights of each, whole."""
    torch.set_num_threads(1)
    mesh = Mesh.parse(mesh)
    model = HandModel(kv_heads=kv_heads)
    graph, units = hand_graph(kv_heads=kv_heads)
    full = {p.name: model.weight(p.name).detach() for p in graph.parameters}
    strategies = [strategy(name, mesh, Recompute(recompute)) for name in names]
    rig = Rig(communicator, graph, units, mesh, strategies, scheme, full, TENSOR_DIM)
    states = rig.store.states
    masters = {name: torch.nn.Parameter(state.local) for name, state in states.items()}
    optimizer = torch.optim.AdamW(masters.values(), lr=1e-2)
    multiple = mesh.axis("x0").size if "x0" in mesh.axis_names else 1
    history = []
    for step in range(steps):
        total, weight = 0.0, 0
        for bucket, rows in slots_of(strategies, mesh, step):
            ids, labels = padded(rows, 2, multiple)
            loss, count = rig.slot(bucket, ids=ids, labels=labels)
            total, weight = total + loss, weight + count
        gradients = rig.store.gradients(1.0 / weight)
        for name, master in masters.items():
            master.grad = gradients[name]
        optimizer.step()
        rig.store.refresh()
        whole = {
            name: rig.router.run(g, states[name].rest.master, states[name].rest.master.without(
                mesh.axis_names), states[name].rest.shape).clone()
            for name, g in gradients.items()
        }  # fmt: skip
        weights = {name: rig.store.full(name).detach().clone() for name in masters}
        history.append((total / weight, whole, weights))
    return history


def check(histories, mesh, names, kv_heads, steps):
    """Every rank's history against one process."""
    parsed = Mesh.parse(mesh)
    model = HandModel(kv_heads=kv_heads)
    strategies = [strategy(name, parsed) for name in names]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        loss, gradients = reference(model, slots_of(strategies, parsed, step))
        optimizer.step()
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        largest = max(float(w.abs().max()) for w in weights.values())
        for history in histories:
            found_loss, found, found_weights = history[step]
            found = {name.replace(".", "_"): g for name, g in found.items()}
            found_weights = {name.replace(".", "_"): w for name, w in found_weights.items()}
            assert abs(found_loss - loss) <= 1e-12 * abs(loss)
            worst = errors(found, gradients)
            assert max(worst.values()) <= GRADIENT_TOLERANCE, worst
            for name, w in weights.items():
                scale = max(float(w.abs().max()), 1e-2 * largest)
                error = float((found_weights[name] - w).abs().max()) / scale
                assert error <= WEIGHT_TOLERANCE, (name, error)


def names_on(mesh):
    return STRATEGIES if "x0" in mesh else ("data",)


MESHES = (("x0=2@l", 2), ("x0=4@l", 1), ("x0=2@l data=2@l", 2), ("data=2@l", 2))
"""(mesh, key heads): fewer key heads than ranks, as many, more."""
COVERING = [
    (mesh, kv, scheme, ("none", "layer")[(i + j) % 2])
    for i, (mesh, kv) in enumerate(MESHES)
    for j, scheme in enumerate(SCHEMES)
]
"""Every pair of mesh and scheme, mesh and recomputation, scheme and recomputation."""


def test_the_cases_cover_every_pair():
    for left, right in itertools.combinations(range(3), 2):
        columns = [((m, kv), scheme, again) for m, kv, scheme, again in COVERING]
        pairs = {(case[left], case[right]) for case in columns}
        assert len(pairs) == len({p[0] for p in pairs}) * len({p[1] for p in pairs})


@pytest.mark.parametrize(("mesh", "kv_heads", "scheme", "recompute"), COVERING)
def test_gradients_of_a_step_that_switches_between_all_strategies(
    mesh, kv_heads, scheme, recompute
):
    names = names_on(mesh)
    histories = run_ranks(
        Mesh.parse(mesh).world_size,
        lambda c: train(c, mesh, names, scheme, recompute, kv_heads, 1),
        timeout_s=120,
    )
    check(histories, mesh, names, kv_heads, 1)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_after_three_steps(scheme):
    mesh = "x0=2@l data=2@l" if scheme == "zero1" else "x0=2@l"
    names = names_on(mesh)
    histories = run_ranks(
        Mesh.parse(mesh).world_size,
        lambda c: train(c, mesh, names, scheme, "none", 2, 3),
        timeout_s=120,
    )
    check(histories, mesh, names, 2, 3)


def real_case(context, mesh, scheme, recompute, kv_heads, steps):
    return train(context.communicator, mesh, names_on(mesh), scheme, recompute, kv_heads, steps)


@pytest.mark.parametrize(
    ("mesh", "kv_heads", "scheme", "recompute", "steps"),
    [
        ("x0=2@l", 1, "zero3", "none", 2),
        ("data=2@l", 2, "zero2", "none", 1),
        ("x0=2@l data=2@l", 2, "zero1", "layer", 1),
    ],
)
def test_the_same_on_real_ranks(real_ranks, mesh, kv_heads, scheme, recompute, steps):
    world = Mesh.parse(mesh).world_size
    histories = real_ranks(world).run(
        real_case, mesh, scheme, recompute, kv_heads, steps, timeout_s=120
    )
    check(histories, mesh, names_on(mesh), kv_heads, steps)


def optimizer_case(context, scheme):
    """Masters as DTensors, stepped by AdamW: what `verify` does on simulated ranks."""
    torch.set_num_threads(1)
    model = fault_model.build(layers=1)
    plan = plan_of("x0=2@l", scheme, BANDS, found=fault_model.traced(model))
    plan = replace(plan, training=replace(plan.training, clip_norm=0.1))
    verification = Verification(plan, model, steps=2)
    return verification.on_rank(context.communicator), len(list(verification.slots))


@pytest.mark.parametrize("scheme", ["ZeRO-3", "ZeRO-1"])
def test_masters_are_dtensors_on_real_ranks(real_ranks, scheme):
    for errors, steps in real_ranks(2).run(optimizer_case, scheme, timeout_s=120):
        assert len(errors) == steps == 2
        assert all(step.within() for step in errors), errors
