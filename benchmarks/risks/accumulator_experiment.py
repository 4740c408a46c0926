"""The steps of the accumulator experiment, run by one rank and compared with one process.

A case is (mesh, sizes, strategy, rule, menu of buckets, precision, fault). Its schedule is run
twice from the same weights: with switches in the order given, and grouped by bucket. Each step
is compared with the whole model in float64 in this process: loss, gradients, input gradients,
weights after AdamW.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import torch

from benchmarks.risks.accumulator_collectives import Communicator, Cut, apply_steps, slice_to
from benchmarks.risks.accumulator_formulas import Slot, predict
from benchmarks.risks.accumulator_layout import (
    Layout,
    Mesh,
    lower,
    shard_interval,
    working_layout,
)
from benchmarks.risks.accumulator_model import (
    Batch,
    bucket_output,
    local_batch,
    loss_sum,
    parameter_specs,
    reference_output,
)
from benchmarks.risks.accumulator_parameter import (
    Bucket,
    Choice,
    ParameterSpec,
    ParameterState,
    Precision,
)
from benchmarks.risks.accumulator_schedule import (
    ROLES_ONE_AXIS,
    ROLES_TWO_AXES,
    SCHEDULES,
    make_batch,
)

FLOAT64 = Precision()


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the experiment."""

    mesh: Mesh
    strategy: str
    rule: str = "join_plan"
    schedule: str = "full"
    width: int = 8
    hidden: int = 24
    precision: Precision = FLOAT64
    fault: str = ""
    steps: int = 5


@dataclass(slots=True)
class Outcome:
    """What one rank saw in a case; errors are relative to the tensor's largest entry."""

    gradient_error: float = 0.0
    input_error: float = 0.0
    weight_error: float = 0.0
    loss_error: float = 0.0
    empty_gradient: float = 0.0
    """Largest input gradient on a replica without a token; exactly 0."""
    measured: tuple[Counter[tuple[str, str]], ...] = ()
    """Per step, by (purpose, collective)."""
    predicted: tuple[Counter[tuple[str, str]], ...] = ()
    grouped: tuple[Counter[tuple[str, str]], ...] = ()
    """Measured with the slots of each step grouped by bucket."""
    switch_bytes: int = 0
    """Sum over steps and (purpose, collective) of |switched - grouped|."""
    accumulator_bytes: int = 0
    masters: tuple[tuple[str, int, int, str], ...] = ()
    """(parameter, start, stop, digest) after the last step."""


def choices(strategy: str, mesh: Mesh, specs: tuple[ParameterSpec, ...]) -> dict[str, Choice]:
    """The plan choice of every parameter under a named strategy (design section 1)."""
    every, inner = mesh.names, mesh.names[:1]
    table = {
        "DDP": Choice("DDP", (), (), "step"),
        "ZeRO-1": Choice("ZeRO-1", every, (), "step"),
        "ZeRO-2": Choice("ZeRO-2", every, every, "step"),
        "ZeRO-2 micro_batch": Choice("ZeRO-2 micro_batch", every, every, "micro_batch"),
        "ZeRO-3": Choice("ZeRO-3", every, every, "use"),
        "HSDP": Choice("HSDP", inner, inner, "use"),
        "ZeRO-1 copy=step": Choice("ZeRO-1 copy=step", every, (), "step", "step"),
        "ZeRO-1 copy=first_use": Choice("ZeRO-1 copy=first_use", every, (), "step", "first_use"),
    }
    if strategy == "ZeRO-3 small whole":
        return {s.name: table["DDP" if len(s.shape) == 1 else "ZeRO-3"] for s in specs}
    return {spec.name: table[strategy] for spec in specs}


def run_case(case: Case, communicator: Communicator) -> Outcome:
    """Run a case on this rank, switched and grouped."""
    communicator.fault = case.fault
    outcome = Outcome()
    outcome.measured = _run_schedule(case, communicator, False, outcome)
    outcome.grouped = _run_schedule(case, communicator, True, outcome)
    for switched, grouped in zip(outcome.measured, outcome.grouped, strict=True):
        outcome.switch_bytes += sum(abs(switched[key] - grouped[key]) for key in switched | grouped)
    return outcome


def _run_schedule(
    case: Case, communicator: Communicator, grouped: bool, outcome: Outcome
) -> tuple[Counter[tuple[str, str]], ...]:
    mesh = case.mesh
    roles = ROLES_ONE_AXIS if len(mesh.axes) == 1 else ROLES_TWO_AXES
    schedule = tuple(
        tuple(slot for slot in step if slot[0] in roles)
        for step in SCHEDULES[case.schedule][: case.steps]
    )
    names = {name for step in schedule for name, _ in step}
    buckets = {
        name: Bucket(name, tuple(zip(mesh.names, roles[name], strict=True)))
        for name in sorted(names)
    }
    plan = tuple(buckets.values())
    specs = parameter_specs(case.width, case.hidden)
    chosen = choices(case.strategy, mesh, specs)
    generator = torch.Generator().manual_seed(7)
    reference = {
        spec.name: torch.nn.Parameter(torch.randn(spec.shape, generator=generator).double() / 2)
        for spec in specs
    }
    states = {
        spec.name: ParameterState(
            spec, chosen[spec.name], communicator, reference[spec.name].detach(), case.precision
        )
        for spec in specs
    }
    optimizers = [
        torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
        for parameters in (list(reference.values()), [s.master for s in states.values()])
    ]
    log, predicted = [], []
    for number, step in enumerate(schedule):
        batches = [
            (
                buckets[name],
                make_batch(documents, buckets[name], mesh, case.width, (number, index)),
            )
            for index, (name, documents) in enumerate(step)
        ]
        if grouped:
            batches.sort(key=lambda item: item[0].name)
        communicator.records.clear()
        _step(case, communicator, batches, plan, states, reference, outcome)
        bytes_by_key: Counter[tuple[str, str]] = Counter()
        for record in communicator.records:
            bytes_by_key[record.purpose, record.kind] += record.message_bytes
        log.append(bytes_by_key)
        slots = tuple(Slot(bucket, *batch.mask.shape) for bucket, batch in batches)
        predicted.append(predict(mesh, specs, chosen, slots, plan, case.rule, 8))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        for name, state in states.items():
            error = _error(state, state.master.detach(), reference[name].detach())
            outcome.weight_error = max(outcome.weight_error, error)
    outcome.predicted = tuple(predicted)
    outcome.accumulator_bytes = sum(state.accumulator_bytes for state in states.values())
    outcome.masters = tuple(_digest(name, state) for name, state in states.items())
    return tuple(log)


def _step(
    case: Case,
    communicator: Communicator,
    batches: list[tuple[Bucket, Batch]],
    plan: tuple[Bucket, ...],
    states: dict[str, ParameterState],
    reference: dict[str, torch.nn.Parameter],
    outcome: Outcome,
) -> None:
    """Forward and backward of every slot, then the gradients in the layout of the masters."""
    mesh = case.mesh
    tokens = sum(float(batch.mask.sum()) for _, batch in batches)
    slots = tuple(bucket for bucket, _ in batches)
    for state in states.values():
        state.begin_step(slots, plan, case.rule)
    loss_working = working_layout(mesh, (), tuple(bucket.gradient("token") for bucket in slots))
    totals = torch.zeros(2, dtype=torch.float64)
    whole_loss = 0.0
    for index, (bucket, batch) in enumerate(batches):
        communicator.phase = f"slot {index} {bucket.name}"
        for state in states.values():
            state.begin_slot(bucket)
        local = local_batch(batch, bucket, communicator)
        local_x = local.x.to(case.precision.compute).clone().requires_grad_()
        y = bucket_output(local_x, bucket, states, communicator, case.hidden)
        loss = loss_sum(y.double(), local)
        torch.autograd.backward(loss)
        pair = torch.stack([loss.detach(), local.mask.sum()])
        steps = lower(bucket.gradient("token"), loss_working)
        totals += apply_steps(communicator, steps, pair, Cut(0, 2), "loss")
        x = batch.x.clone().requires_grad_()
        whole = loss_sum(reference_output(x, dict(reference)), batch)
        torch.autograd.backward(whole)
        whole_loss += float(whole.detach()) / tokens
        if local_x.grad is None or x.grad is None:
            raise RuntimeError("the input of a slot received no gradient")
        expected = local_batch(Batch(x.grad, batch.target, batch.mask), bucket, communicator).x
        error = float((local_x.grad - expected).abs().max() / x.grad.abs().max())
        outcome.input_error = max(outcome.input_error, error)
        if not local.mask.any():
            outcome.empty_gradient = max(outcome.empty_gradient, float(local_x.grad.abs().max()))
    communicator.phase = "end of step"
    totals = apply_steps(communicator, lower(loss_working, Layout()), totals, Cut(0, 2), "loss")
    error = abs(float(totals[0] / totals[1]) / whole_loss - 1) if totals[1] else float("inf")
    outcome.loss_error = max(outcome.loss_error, error)
    for name, state in states.items():
        state.finish(float(totals[1]))
        gradient, summed = state.master.grad, reference[name].grad
        if gradient is None or summed is None:
            raise RuntimeError(f"{name} received no gradient")
        reference[name].grad = summed / tokens
        error = _error(state, gradient, summed / tokens)
        outcome.gradient_error = max(outcome.gradient_error, error)


def _error(state: ParameterState, held: torch.Tensor, whole: torch.Tensor) -> float:
    communicator = state.communicator
    layout = Layout(state.choice.master)
    expected = slice_to(whole, communicator.mesh, layout, state.spec.cut, communicator.rank)
    if not expected.numel():
        return 0.0
    return float((held - expected).abs().max() / whole.abs().max())


def _digest(name: str, state: ParameterState) -> tuple[str, int, int, str]:
    communicator = state.communicator
    start, stop = shard_interval(
        communicator.mesh, state.choice.master, state.spec.cut.size, communicator.rank
    )
    data = state.master.detach().contiguous().numpy().tobytes()
    return name, start, stop, hashlib.sha256(data).hexdigest()
