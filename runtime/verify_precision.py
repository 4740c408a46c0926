"""The second replay of a verification: in the plan's own dtypes, measured by the module itself.

float64 shows what a program computes; it cannot show where a dtype is narrower than the plan says.
Here the plan runs in its dtypes (masters, compute, reduction, accumulation), the module runs alone
in the same ones (`OwnReference`), and the error of each against float64 is taken:

    ratio = |ours - float64| / max(|module's own - float64|, floor)

in 2-norms over all steps: of the losses of slots, of each parameter's gradients, of each weight
after the last step. The floor, so that an own error which is small by luck blames nobody, is u
times the float64 norm, where u is half a unit in the last place of the compute dtype. Weights after
steps of AdamW have another: a gradient that is rounding has any sign, and AdamW steps by the sign,
so errors up to the steps themselves are allowed, and the steps are tiny (SMALL_RATE).
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shardwise.ir.layout import Layout
from shardwise.ir.plan import Plan
from shardwise.ir.trace import TracedModel
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.program import Program
from shardwise.runtime.thread_communicator import run_ranks
from shardwise.runtime.verify_data import Slot
from shardwise.runtime.verify_reference import StepResult
from shardwise.runtime.verify_report import GRADIENT_FLOOR, Precision, Tensors, largest, order

CHECKED = ("float32", "bfloat16")
"""Compute dtypes that are checked: float16 needs loss scaling, float64 is its own reference."""
SMALL_RATE = 1e-6
"""Learning rate: steps so small that a weight's error is that of how it is kept."""
TIMEOUT_S = 600.0
_WHOLE = Layout(())

Slots = Sequence[Sequence[Slot]]
"""Of every step."""


def own_precision(
    plan: Plan,
    model: nn.Module,
    traced: TracedModel,
    slots: Slots,
    *,
    wanted: Sequence[StepResult],
    own: Sequence[StepResult],
) -> Precision:
    """The largest ratios over simulated ranks; RanksFailedError where one raises.

    `model` has its parameters in the master dtype, `wanted` is what float64 gives and `own` what
    the module gives in the plan's dtypes, for the documents of `slots` and SMALL_RATE.
    """
    ranks = run_ranks(
        plan.mesh.world_size,
        lambda rank: on_rank(rank, plan, model, traced, slots, wanted, own),
        timeout_s=TIMEOUT_S,
    )
    loss = max((rank.loss for rank in ranks), key=order)
    gradient = max(ranks, key=lambda rank: order(rank.gradient))
    weight = max(ranks, key=lambda rank: order(rank.weight))
    return Precision(
        plan.training.compute_dtype, loss, gradient.gradient, gradient.gradient_of,
        weight.weight, weight.weight_of,
    )  # fmt: skip


def on_rank(
    communicator: Communicator,
    plan: Plan,
    model: nn.Module,
    traced: TracedModel,
    slots: Slots,
    wanted: Sequence[StepResult],
    own: Sequence[StepResult],
) -> Precision:
    """The ratios of one rank, simulated or real; a collective of all ranks."""
    program = Program.from_plan(model, plan, traced, communicator)
    optimizer = torch.optim.AdamW(program.parameters(), lr=SMALL_RATE)
    losses: list[float] = []
    gradients: list[Tensors] = []
    for step in slots:
        for slot in step:
            batch = slot.batch(plan.replica(slot.bucket, communicator.rank), traced.graph)
            losses.append(program.run_slot(slot.bucket, batch).loss_sum)
        program.finish_step()
        gradients.append(whole_tensors(program, of_grad=True))
        if plan.training.clip_norm is not None:
            program.clip_grad_norm_(plan.training.clip_norm)
        optimizer.step()
        program.refresh()
        optimizer.zero_grad()
    weights = whole_tensors(program, of_grad=False)
    unit = torch.finfo(getattr(torch, plan.training.compute_dtype)).eps / 2
    norm = max(_norm(step.gradients.values()) for step in wanted)
    expected = _slot_losses(wanted, slots)
    loss = _ratio(
        [torch.tensor(losses, dtype=torch.float64)],
        [_slot_losses(own, slots)],
        [expected],
        unit * _norm([expected]),
    )
    by_gradient = {
        name: _ratio(
            [step[name] for step in gradients],
            [step.gradients[name] for step in own],
            [step.gradients[name] for step in wanted],
            unit * max(_norm(step.gradients[name] for step in wanted), GRADIENT_FLOOR * norm),
        )
        for name in weights
    }
    by_weight = {
        name: _ratio(
            [weight],
            [own[-1].weights[name]],
            [wanted[-1].weights[name]],
            SMALL_RATE * len(slots) * weight.numel() ** 0.5,
        )
        for name, weight in weights.items()
    }
    return Precision(plan.training.compute_dtype, loss, *largest(by_gradient), *largest(by_weight))


def _ratio(
    found: Sequence[torch.Tensor],
    own: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    floor: float,
) -> float:
    """Our error over the module's own, which counts as the floor at least; nan where one is."""
    ours = _norm(f.double() - w for f, w in zip(found, wanted, strict=True))
    theirs = _norm(o.double() - w for o, w in zip(own, wanted, strict=True))
    scale = theirs if theirs != theirs else max(theirs, floor)
    if scale == 0:
        return 0.0 if ours == 0 else float("inf")
    return ours / scale


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    """2-norm of all elements; float64."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


def _slot_losses(steps: Sequence[StepResult], slots: Slots) -> torch.Tensor:
    """Loss sums of the documents, added up by slot: [slots of all steps]."""
    found = []
    for result, step in zip(steps, slots, strict=True):
        documents = iter(result.loss_sums)
        found += [sum(next(documents) for _ in slot.documents()) for slot in step]
    return torch.tensor(found, dtype=torch.float64)


def whole_tensors(program: Program, *, of_grad: bool) -> dict[str, torch.Tensor]:
    """Whole gradients, or weights, of the parameters that train: a collective of all ranks."""
    found = {}
    for name, master in program.named_parameters():
        if not master.requires_grad:
            continue
        rest = program.store.states[name].rest
        local = master.grad if of_grad else master.detach()
        assert local is not None
        local = local.to_local() if isinstance(local, DTensor) else local
        found[name] = program.router.run(local, rest.master, _WHOLE, rest.shape).clone()
    return found
