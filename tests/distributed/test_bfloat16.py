"""Training in bfloat16 with float32 masters: on ranks against one process, by its own error.

Both are compared with float64: what ranks add may be as large as four times what bfloat16 itself
costs the module.
"""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch

from shardwise.runtime.program import Program
from shardwise.runtime.verify import Verification
from shardwise.runtime.verify_reference import OwnReference, Reference
from tests.support import fault_model
from tests.support.tiny_decoder import plan_of

BANDS = ((0, 16, "data", 2), (16, 32, "tensor_sequence", 2), (32, 64, "ulysses", 1))
MESH, STEPS, RATE = "x0=2@l", 4, 1e-2
HALF_A_UNIT = torch.finfo(torch.bfloat16).eps / 2


@cache
def prepared(scheme):
    """Model, plan, trace and the slots of every step: the same in every process."""
    torch.set_num_threads(1)
    model = fault_model.build(layers=1)
    traced = fault_model.traced(model, "bfloat16")
    plan = plan_of(MESH, scheme, BANDS, found=traced)
    plan = replace(plan, training=replace(plan.training, compute_dtype="bfloat16", clip_norm=1.0))
    return model, plan, traced, Verification(plan, model, steps=STEPS)


def train(context, scheme):
    """A case: the losses of the steps, and the dtypes of what is kept."""
    model, plan, traced, verification = prepared(scheme)
    program = Program.from_plan(model, plan, traced, context.communicator)
    optimizer = torch.optim.AdamW(program.parameters(), lr=RATE)
    losses, copies, gradients = [], set(), set()
    for slots in verification.slots:
        total = 0.0
        for slot in slots:
            batch = slot.batch(plan.replica(slot.bucket, context.rank), traced.graph)
            total += program.run_slot(slot.bucket, batch).loss_sum
        states = program.store.states.values()
        copies |= {copy_.dtype for state in states for copy_ in state.copies.values()}
        losses.append(total / program.finish_step())
        gradients |= {p.grad.dtype for p in program.parameters()}
        program.clip_grad_norm_(1.0)
        optimizer.step()
        program.refresh()
        optimizer.zero_grad()
    masters = {p.dtype for p in program.parameters()}
    masters |= {v.dtype for s in optimizer.state.values() for k, v in s.items() if k != "step"}
    return losses, masters, gradients, copies


def norm(values):
    return sum(value**2 for value in values) ** 0.5


@pytest.mark.parametrize("scheme", ["ZeRO-3", "ZeRO-1"])
def test_losses_are_as_near_as_those_of_one_process(ranks, scheme):
    model, plan, traced, verification = prepared(scheme)  # before threads need it
    trains = {p.name: True for p in traced.graph.parameters}
    wide = Reference(copy.deepcopy(verification.model), verification.traced, None, trains, RATE)
    own = OwnReference(copy.deepcopy(model), traced, None, plan.training, RATE)
    steps = [[d for slot in slots for d in slot.documents()] for slots in verification.slots]
    wanted = [wide.step(documents, 1.0).loss for documents in steps]
    single = [own.step(documents, 1.0).loss for documents in steps]
    theirs = norm(one - right for one, right in zip(single, wanted, strict=True))
    assert theirs > 1e-5 * norm(wanted), "the single process computes in more than bfloat16"
    for losses, masters, gradients, copies in ranks(2).run(train, scheme, timeout_s=120):
        ours = norm(one - right for one, right in zip(losses, wanted, strict=True))
        assert ours <= 4 * max(theirs, HALF_A_UNIT * norm(wanted))
        assert losses != single
        assert masters == gradients == {torch.float32} and copies == {torch.bfloat16}
