"""One step on real ranks against the unmodified module in one process, in float64.

Lengths from 1 to 1000 in one step that switches strategy between slots; replicas with unequal
tokens, and with no document; documents without a target.
"""

from functools import cache
from itertools import chain

import pytest
import torch

from shardwise.ir.trace_language import trace_language_model
from shardwise.ir.training import TrainingSpec
from shardwise.runtime.data import IGNORED
from shardwise.runtime.program import Program
from shardwise.runtime.verify_data import Slot
from shardwise.runtime.verify_precision import whole_tensors
from shardwise.runtime.verify_report import gradient_errors
from tests.support.tiny_decoder import VOCABULARY, Decoder, plan_of

TOLERANCE = 1e-11
LONGEST = 1000
BANDS = ((0, 16, "data", 2), (16, 144, "tensor_sequence", 2), (144, LONGEST, "ulysses", 1))
WIDE = TrainingSpec("adamw", "float64", "float64", "float64", "float64")
CASES = (
    ("x0=2@l", "ZeRO-3"), ("x0=2@l", "TP"), ("data=2@l", "ZeRO-2"), ("x0=2@l data=2@l", "ZeRO-3"),
    ("x0=4@l", "ZeRO-1"), ("x0=2@l data=2@l", "DDP"),
)  # fmt: skip


@cache
def model():
    torch.manual_seed(7)
    made = Decoder().double()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, mean=0.05, std=0.2)
    return made


@cache
def traced():
    return trace_language_model(model(), compute_dtype="float64", longest=LONGEST)


def document(length, seed, targets=True):
    """Tokens and labels, a fifth of them masked; a document of 1 token has no target anyway."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    tokens = torch.randint(0, VOCABULARY, (length,), generator=generator)
    masked = torch.rand(length, generator=generator) < 0.2
    labels = torch.where(masked, IGNORED, tokens) if targets else torch.full_like(tokens, IGNORED)
    return {"input_ids": tokens, "labels": labels}


def slots(plan):
    """The step: (bucket, padded length, lengths by replica); replicas are filled unevenly."""
    wanted = (
        (0, 16, ((1, 7), (7,), (), (13,))),
        (2, 1000, ((1000,), (), (500,), ())),
        (1, 92, ((89, 1), (), (37,), (89,))),
        (0, 8, ((), (7, 7), (1,), ())),
        (1, 140, ((137,), (89, 137), (), (7,))),
        (2, 640, ((637,), (1,), (), (3,))),
    )
    made = []
    for number, (bucket, size, rows) in enumerate(wanted):
        shape = plan.buckets[bucket]
        replicas = [list(row) for row in rows[: shape.batch_degree]]
        for place, length in enumerate(chain.from_iterable(rows[shape.batch_degree :])):
            row = replicas[place % len(replicas)]
            if len(row) < shape.seats:
                row.append(length)
        documents = tuple(
            tuple(
                document(length, 10 * number + place, targets=(number, place) != (3, 1))
                for place, length in enumerate(row[: shape.seats])
            )
            for row in replicas
        )
        made.append(Slot(bucket, {"S": size}, documents, shape.seats))
    return made


def plan_in(mesh, scheme):
    return plan_of(mesh, scheme, BANDS, found=traced(), training=WIDE)


def step(context, mesh, scheme):
    """A case: the loss and the whole gradients of the step."""
    torch.set_num_threads(1)
    plan = plan_in(mesh, scheme)
    program = Program.from_plan(model(), plan, traced(), context.communicator)
    total = 0.0
    for slot in slots(plan):
        batch = slot.batch(plan.replica(slot.bucket, context.rank), traced().graph)
        total += program.run_slot(slot.bucket, batch).loss_sum
    weight = program.finish_step()
    return total / weight, weight, whole_tensors(program, of_grad=True)


def alone(documents):
    """The same of one process, document by document, unpadded."""
    reference, total, weight = model(), 0.0, 0
    reference.zero_grad()
    for each in documents:
        count = int((each["labels"][1:] != IGNORED).sum())
        if count == 0:
            continue
        loss = reference(each["input_ids"][None], each["labels"][None]) * count
        loss.backward()
        total, weight = total + float(loss.detach()), weight + count
    gradients = {name: p.grad / weight for name, p in reference.named_parameters()}
    return total / weight, weight, gradients


def test_the_step_has_what_is_hard():
    plan = plan_in("x0=2@l data=2@l", "ZeRO-3")
    made = slots(plan)
    lengths = {len(d["labels"]) for slot in made for d in slot.documents()}
    assert {1, 7, 89, 137, 1000} <= lengths
    assert [slot.bucket for slot in made] == [0, 2, 1, 0, 1, 2]
    tokens = [[sum(len(d["labels"]) for d in row) for row in slot.rows] for slot in made]
    assert any(0 in row for row in tokens) and all(len(set(row)) > 1 for row in tokens)
    without = [d for slot in made for d in slot.documents() if (d["labels"][1:] == IGNORED).all()]
    assert {len(d["labels"]) for d in without} >= {1, 7}


@pytest.mark.parametrize(("mesh", "scheme"), CASES)
def test_loss_and_gradients_are_those_of_the_module(real_ranks, mesh, scheme):
    plan = plan_in(mesh, scheme)
    wanted, weight, gradients = alone(d for slot in slots(plan) for d in slot.documents())
    results = real_ranks(plan.mesh.world_size).run(step, mesh, scheme, timeout_s=120)
    for loss, targets, found in results:
        assert targets == weight
        assert abs(loss - wanted) <= TOLERANCE * wanted
        errors = gradient_errors(found, gradients)
        assert found.keys() == gradients.keys() and max(errors.values()) <= TOLERANCE, errors
