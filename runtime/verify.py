"""Proof that a plan computes what its model computes: both are run, in float64, and compared.

    report = verify(plan, model)
    print(report)                      # what was covered, the largest errors, passed or not

The plan is replayed on simulated ranks (threads of this process; big plans are projected to a few,
see verify_project) for three optimizer steps, each of which switches between all buckets, with
replicas that have unequal numbers of documents, or none. The one process that it must equal runs
the module itself on every document alone (verify_reference). In float64 rounding leaves about
1e-15, so that the tolerances here separate rounding from faults by orders of magnitude.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shardwise.ir.layout import Layout
from shardwise.ir.lift import lifted
from shardwise.ir.localise import localise
from shardwise.ir.plan import Plan
from shardwise.ir.trace import TracedModel
from shardwise.ir.trace_export import LossFunction
from shardwise.ir.trace_language import trace_language_model
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.program import Program
from shardwise.runtime.rank_failure import RanksFailedError
from shardwise.runtime.thread_communicator import run_ranks
from shardwise.runtime.verify_data import Sample, Slot, replica_of, step_slots, token_documents
from shardwise.runtime.verify_project import Projection, project
from shardwise.runtime.verify_reference import Reference, StepResult

GRADIENT_TOLERANCE = 1e-11
"""Of loss and gradients: largest difference over the tensor's largest element."""
WEIGHT_TOLERANCE = 1e-9
"""Of weights after all steps; AdamW divides by small second moments, which magnifies rounding."""
GRADIENT_FLOOR = 1e-5
"""Of the global gradient norm: a tensor whose gradient is smaller is compared with this."""
WEIGHT_FLOOR = 1e-2
"""Of the model's largest weight, likewise."""
STEPS = 3
"""AdamW steps of a replay."""
LEARNING_RATE = 1e-3
"""Small: where a gradient is about AdamW's epsilon, a step carries its rounding to the weight."""
TIMEOUT_S = 600.0

Errors = Mapping[str, float]
"""Largest relative difference by parameter."""
Tensors = Mapping[str, torch.Tensor]
Tracer = Callable[[nn.Module], TracedModel]
"""Traces the float64 copy of the model; needed for models of other inputs."""
_WHOLE = Layout(())


@dataclass(frozen=True, slots=True)
class StepErrors:
    """Largest differences of one step, over all ranks."""

    loss: float
    gradient: float
    gradient_of: str
    """The parameter with the largest."""
    weight: float
    weight_of: str

    def within(self) -> bool:
        """Whether all are inside the tolerances; nan is not."""
        return (
            self.loss <= GRADIENT_TOLERANCE
            and self.gradient <= GRADIENT_TOLERANCE
            and self.weight <= WEIGHT_TOLERANCE
        )


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was compared, and how far apart it was. Printed by `str`."""

    covered: tuple[str, ...]
    steps: tuple[StepErrors, ...]
    failure: str = ""
    """How a rank failed, where one did."""

    @property
    def passed(self) -> bool:
        """All steps ran and all differences are inside the tolerances."""
        return not self.failure and bool(self.steps) and all(s.within() for s in self.steps)

    def __str__(self) -> str:
        lines = list(self.covered)
        for number, step in enumerate(self.steps, 1):
            lines.append(
                f"step {number}: loss {step.loss:.1e}, gradients {step.gradient:.1e} "
                f"({step.gradient_of}), weights {step.weight:.1e} ({step.weight_of})"
            )
        if self.failure:
            lines.append(f"failed: {self.failure}")
        limits = f"loss and gradients <= {GRADIENT_TOLERANCE:g}, weights <= {WEIGHT_TOLERANCE:g}"
        lines.append(f"{'passed' if self.passed else 'NOT PASSED'} ({limits}, relative, float64)")
        return "\n".join(lines)


def verify(
    plan: Plan,
    model: nn.Module,
    *,
    trace: Tracer | None = None,
    loss: LossFunction | None = None,
    sample: Sample | None = None,
    seed: int = 0,
    notes: Sequence[str] = (),
) -> VerifyReport:
    """Replay `plan` for three steps against `model` in one process, in float64.

    `model` has weights, small enough for float64 copies in memory; it is the plan's model, or a
    smaller one of the same architecture (`verify_project.small_config`), and is left as it was.
    `trace` and `loss` are as the plan's model was traced with (default: a language model that
    returns its loss), `sample` makes documents of a model of other inputs, `notes` go into the
    report. Raises ShardwiseError where plan and model do not fit; what ranks raise is reported.
    """
    found = Verification(plan, model, trace=trace, loss=loss, sample=sample, seed=seed).replay()
    return replace(found, covered=(*notes, *found.covered))


class Verification:
    """The one process, run once, and any number of replays that are compared with it."""

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        *,
        trace: Tracer | None = None,
        loss: LossFunction | None = None,
        sample: Sample | None = None,
        seed: int = 0,
        steps: int = STEPS,
    ) -> None:
        self.model = copy.deepcopy(model).double()
        longest = plan.buckets[-1].bucket.ranges[0].high
        tracer = trace or (
            lambda wide: trace_language_model(wide, compute_dtype="float64", longest=longest)
        )
        traced = tracer(self.model)
        self.traced = replace(
            traced,
            graph=lifted(traced.graph),
            constants={
                name: value.double() if value.is_floating_point() else value
                for name, value in traced.constants.items()
            },
        )
        self.projection: Projection = project(plan, self.traced)
        self.plan = self.projection.plan
        graph = self.traced.graph
        dims = [symbol.name for symbol in graph.symbols if symbol.name != "B"]
        make = sample or token_documents(graph)
        self.slots = [step_slots(self.plan, step, make, dims, seed) for step in range(steps)]
        self.wanted = self._reference(loss)

    def _reference(self, loss: LossFunction | None) -> list[StepResult]:
        """Every step in one process, on a copy of the model."""
        trains = {p.name: self.plan.training.trains(p.name) for p in self.traced.graph.parameters}
        reference = Reference(copy.deepcopy(self.model), self.traced, loss, trains, LEARNING_RATE)
        clip = self.plan.training.clip_norm
        return [
            reference.step([document for slot in slots for document in slot.documents()], clip)
            for slots in self.slots
        ]

    def replay(self, steps: int | None = None) -> VerifyReport:
        """Run the plan on simulated ranks and compare; `steps` are fewer than all."""
        for bucket in self.plan.buckets:  # once here instead of once on every rank
            strategies = [self.plan.strategy(i) for i in self.plan.unit_strategies(bucket)]
            localise(self.traced.graph, self.traced.units, self.plan.mesh, strategies)
        try:
            ranks = run_ranks(
                self.plan.mesh.world_size,
                lambda rank: self.on_rank(rank, steps),
                timeout_s=TIMEOUT_S,
            )
        except RanksFailedError as error:
            return VerifyReport(self._covered(), (), " ".join(str(error).split()))
        worst = tuple(_worst(errors) for errors in zip(*ranks, strict=True))
        return VerifyReport(self._covered(), worst)

    def on_rank(self, communicator: Communicator, steps: int | None = None) -> list[StepErrors]:
        """The errors of every step on one rank, simulated or real, of whole tensors.

        A collective of all ranks; each has made the same Verification.
        """
        program = Program.from_plan(self.model, self.plan, self.traced, communicator)
        optimizer = torch.optim.AdamW(program.parameters(), lr=LEARNING_RATE)
        found = []
        for slots, wanted in zip(self.slots[:steps], self.wanted[:steps], strict=True):
            total, count = 0.0, 0.0
            for slot in slots:
                result = program.run_slot(slot.bucket, self._batch(slot, communicator.rank))
                total, count = total + result.loss_sum, count + result.weight
            program.finish_step()
            errors = dict(gradient_errors(_gathered(program, of_grad=True), wanted.gradients))
            if self.plan.training.clip_norm is not None:
                # compared on its own: Adam, and a clipped gradient, hide a wrong scale
                norm = program.clip_grad_norm_(self.plan.training.clip_norm)
                errors["the norm"] = abs(norm - wanted.norm) / wanted.norm
                clipped = gradient_errors(_gathered(program, of_grad=True), wanted.clipped)
                errors |= {f"{name}, clipped": error for name, error in clipped.items()}
            gradient, gradient_of = _largest(errors)
            optimizer.step()
            program.refresh()
            optimizer.zero_grad()
            after = _gathered(program, of_grad=False)
            weight, weight_of = _largest(weight_errors(after, wanted.weights))
            loss = abs(total / count - wanted.loss) / abs(wanted.loss)
            found.append(StepErrors(loss, gradient, gradient_of, weight, weight_of))
        return found

    def _batch(self, slot: Slot, rank: int) -> dict[str, torch.Tensor]:
        return slot.batch(replica_of(self.plan, slot.bucket, rank), self.traced.graph)

    def _covered(self) -> tuple[str, ...]:
        plan = self.plan
        lengths = [n for slots in self.slots for slot in slots for n in slot.sizes.values()]
        counts = [len(slot.documents()) for slots in self.slots for slot in slots]
        return (
            f"replayed on {plan.mesh.world_size} simulated ranks, mesh {plan.mesh}: "
            f"{len(plan.buckets)} buckets ({', '.join(name for name, _ in plan.strategies)}), "
            f"{len(plan.parameters)} parameter choices, {len(self.traced.units)} units",
            f"{len(self.slots)} AdamW steps of {len(self.slots[0])} slots that switch between the "
            f"buckets, {sum(counts)} documents padded to {min(lengths)} to {max(lengths)} tokens",
            *(f"projected: {note}" for note in self.projection.notes),
        )


def gradient_errors(found: Tensors, wanted: Tensors) -> Errors:
    """Relative max-norm errors; gradients below the floor are compared with it."""
    norm = sum(float(g.square().sum()) for g in wanted.values()) ** 0.5
    return {
        name: _difference(found[name], g, max(_size(g), GRADIENT_FLOOR * norm))
        for name, g in wanted.items()
    }


def weight_errors(found: Tensors, wanted: Tensors) -> Errors:
    """Relative max-norm errors; small weights are compared with a share of the largest."""
    largest = max(_size(w) for w in wanted.values())
    return {
        name: _difference(found[name], w, max(_size(w), WEIGHT_FLOOR * largest))
        for name, w in wanted.items()
    }


def _size(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _difference(found: torch.Tensor, wanted: torch.Tensor, scale: float) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    error = _size(found - wanted)
    return error / scale if scale > 0 else error


def _order(error: float) -> tuple[bool, float]:
    """Larger errors come later, nan last of all."""
    return error != error, error


def _largest(errors: Errors) -> tuple[float, str]:
    """The largest error and whose it is."""
    name = max(errors, key=lambda key: _order(errors[key]))
    return errors[name], name


def _worst(ranks: Sequence[StepErrors]) -> StepErrors:
    """The largest errors of one step over its ranks."""
    gradient = max(ranks, key=lambda rank: _order(rank.gradient))
    weight = max(ranks, key=lambda rank: _order(rank.weight))
    loss = max((rank.loss for rank in ranks), key=_order)
    return StepErrors(
        loss, gradient.gradient, gradient.gradient_of, weight.weight, weight.weight_of
    )


def _gathered(program: Program, *, of_grad: bool) -> dict[str, torch.Tensor]:
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
