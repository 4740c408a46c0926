"""Proof that a plan computes what its model computes: both are run and compared.

    report = verify(plan, model)
    print(report)                      # what was covered, the largest errors, passed or not

The plan is replayed on simulated ranks (threads of this process; big plans are projected to a few,
see verify_project) for three optimizer steps, each of which switches between all buckets, with
replicas that have unequal numbers of documents, or none. The one process that it must equal runs
the module itself on every document alone (verify_reference). In float64 rounding leaves about
1e-15, so that the tolerances here separate rounding from faults by orders of magnitude. What only
shows in the plan's own dtypes is looked for by a second replay (verify_precision).
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

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
from shardwise.runtime.verify_data import Sample, Slot, step_slots, token_documents
from shardwise.runtime.verify_precision import (
    CHECKED,
    SMALL_RATE,
    TIMEOUT_S,
    own_precision,
    whole_tensors,
)
from shardwise.runtime.verify_project import Projection, project
from shardwise.runtime.verify_reference import (
    OwnReference,
    Reference,
    StepResult,
    cast_parameters,
)
from shardwise.runtime.verify_report import (
    Precision,
    StepErrors,
    VerifyReport,
    gradient_errors,
    largest,
    weight_errors,
    worst,
)

STEPS = 3
"""AdamW steps of a replay."""
LEARNING_RATE = 1e-3
"""Small: where a gradient is about AdamW's epsilon, a step carries its rounding to the weight."""

Tracer = Callable[[nn.Module], TracedModel]
"""Traces a copy of the model in the dtype of its parameters; needed for models of other inputs."""


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
    """Replay `plan` for three steps against `model` in one process, in float64; once more in the
    plan's own dtypes where it computes in float32 or bfloat16.

    `model` has weights, small enough for float64 copies in memory; it is the plan's model, or a
    smaller one of the same architecture (`verify_project.small_config`), and is left as it was.
    `trace` and `loss` are as the plan's model was traced with (default: a language model that
    returns its loss), `sample` makes documents of a model of other inputs, `notes` go into the
    report. Raises ShardwiseError where plan and model do not fit; what ranks raise is reported.
    """
    verification = Verification(plan, model, trace=trace, loss=loss, sample=sample, seed=seed)
    found = verification.replay()
    found = replace(found, covered=(*notes, *found.covered))
    if found.failure or plan.training.compute_dtype not in CHECKED:
        return found
    try:
        return replace(found, precision=verification.precision(model))
    except RanksFailedError as error:
        dtype = plan.training.compute_dtype
        return replace(found, failure=f"in {dtype}: {' '.join(str(error).split())}")


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
        self._given, self._loss, self._trace = plan, loss, trace
        traced = self._traced(self.model, "float64")
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
        self.wanted = self._reference(LEARNING_RATE)

    def _traced(self, model: nn.Module, dtype: str) -> TracedModel:
        """The trace of a copy of the model, whose parameters have the dtype."""
        if self._trace is not None:
            return self._trace(model)
        longest = self._given.buckets[-1].bucket.ranges[0].high
        return trace_language_model(model, compute_dtype=dtype, longest=longest)

    def _reference(self, learning_rate: float) -> list[StepResult]:
        """Every step in one process, on a copy of the model."""
        trains = {p.name: self.plan.training.trains(p.name) for p in self.traced.graph.parameters}
        model = copy.deepcopy(self.model)
        return self._steps(Reference(model, self.traced, self._loss, trains, learning_rate))

    def _steps(self, reference: Reference) -> list[StepResult]:
        clip = self.plan.training.clip_norm
        return [
            reference.step([document for slot in slots for document in slot.documents()], clip)
            for slots in self.slots
        ]

    def precision(self, model: nn.Module) -> Precision:
        """Replay in the plan's own dtypes, against the module's own errors in them.

        Raises RanksFailedError.
        """
        training = self._given.training
        masters = copy.deepcopy(model)
        cast_parameters(masters, getattr(torch, training.master_dtype))
        narrow = copy.deepcopy(masters)
        cast_parameters(narrow, getattr(torch, training.compute_dtype))
        traced = self._traced(narrow, training.compute_dtype)
        own = OwnReference(copy.deepcopy(masters), traced, self._loss, training, SMALL_RATE)
        return own_precision(
            project(self._given, traced, wide=False).plan,
            masters,
            traced,
            self.slots,
            wanted=self._reference(SMALL_RATE),
            own=self._steps(own),
        )

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
        largest_errors = tuple(worst(errors) for errors in zip(*ranks, strict=True))
        return VerifyReport(self._covered(), largest_errors)

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
            errors = dict(gradient_errors(whole_tensors(program, of_grad=True), wanted.gradients))
            if self.plan.training.clip_norm is not None:
                # compared on its own: Adam, and a clipped gradient, hide a wrong scale
                norm = program.clip_grad_norm_(self.plan.training.clip_norm)
                errors["the norm"] = abs(norm - wanted.norm) / wanted.norm
                clipped = gradient_errors(whole_tensors(program, of_grad=True), wanted.clipped)
                errors |= {f"{name}, clipped": error for name, error in clipped.items()}
            gradient, gradient_of = largest(errors)
            optimizer.step()
            program.refresh()
            optimizer.zero_grad()
            after = whole_tensors(program, of_grad=False)
            weight, weight_of = largest(weight_errors(after, wanted.weights))
            loss = abs(total / count - wanted.loss) / abs(wanted.loss)
            found.append(StepErrors(loss, gradient, gradient_of, weight, weight_of))
        return found

    def _batch(self, slot: Slot, rank: int) -> dict[str, torch.Tensor]:
        return slot.batch(self.plan.replica(slot.bucket, rank), self.traced.graph)

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
