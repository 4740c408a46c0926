"""One parameter under one plan choice: master shard, compute copy, accumulator.

The three per-parameter decisions of a plan are a `Choice`: the cut of the master, the cut of
the accumulator, the lifetime of the compute copy. `ParameterState` executes a choice for any
bucket: the bucket only says which cut its operators read and which layout their gradient has.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.risks.accumulator_collectives import Communicator, Cut, apply_steps, slice_to
from benchmarks.risks.accumulator_layout import (
    FREE_KINDS,
    Layout,
    Mesh,
    Step,
    copy_layout,
    lower,
    working_layout,
)

RULES = ("every_bucket", "join_plan", "join_step")
"""`every_bucket`: a reduction waits for the end of the step only over axes on which every
bucket leaves the gradient Partial (the design as it stood). `join_plan`, `join_step`: the rule
of the finding, over the buckets of the plan or of the step."""

STATES = {
    "column": {
        "batch": "P",
        "sequence": "P",
        "tensor_sequence": "S",
        "tensor": "S",
        "replicate": "R",
    },
    "row": {
        "batch": "P",
        "sequence": "P",
        "tensor_sequence": "S",
        "tensor": "S",
        "replicate": "R",
    },
    "token": {
        "batch": "P",
        "sequence": "P",
        "tensor_sequence": "P",
        "tensor": "R",
        "replicate": "R",
    },
}
"""State of a gradient on an axis: kind of parameter -> role of the axis -> S, P or R."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A program: what each axis does in it."""

    name: str
    roles: tuple[tuple[str, str], ...]
    """(axis, role) in mesh order."""

    def axes(self, *roles: str) -> tuple[str, ...]:
        """Axes that have one of the roles, in mesh order."""
        return tuple(axis for axis, role in self.roles if role in roles)

    def gradient(self, kind: str) -> Layout:
        """Layout in which the backward of this bucket leaves the gradient of a parameter."""
        states = {axis: STATES[kind][role] for axis, role in self.roles}
        return Layout(
            tuple(axis for axis in states if states[axis] == "S"),
            tuple(sorted(axis for axis in states if states[axis] == "P")),
        )

    def use(self, kind: str) -> tuple[str, ...]:
        """Cut that the operators of this bucket read."""
        return self.gradient(kind).shards


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """A parameter of the model: name, kind (column, row or token), shape and cut dim."""

    name: str
    kind: str
    shape: tuple[int, ...]
    cut: Cut
    backward_reads: bool
    """Whether the backward needs the value again (weights and norm scale do, biases do not)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The per-parameter part of a plan; shared by all buckets."""

    name: str
    master: tuple[str, ...]
    stored: tuple[str, ...]
    """Axes that cut the accumulator."""
    lifetime: str
    """use, micro_batch or step."""
    copy: str = "plan"
    """Of a copy that lives for the step: the cut that all buckets of the `plan`, or of the
    `step`, can slice; or `first_use` (rejected by the finding): one copy per cut, gathered
    when first read."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Number formats of copies, reductions and accumulators; masters are float64."""

    compute: torch.dtype = torch.float64
    reduce: torch.dtype = torch.float64
    accumulate: torch.dtype = torch.float64


class ParameterState:
    """A parameter on one rank.

    Order of calls in a step: `begin_step`, per slot `begin_slot` with `read` and `deposit` in
    its forward and backward, then `finish`, which leaves the gradient in `master.grad`.
    """

    def __init__(
        self,
        spec: ParameterSpec,
        choice: Choice,
        communicator: Communicator,
        value: torch.Tensor,
        precision: Precision,
    ) -> None:
        self.spec, self.choice, self.communicator = spec, choice, communicator
        self.precision = precision
        self.mesh: Mesh = communicator.mesh
        held = slice_to(value, self.mesh, Layout(choice.master), spec.cut, communicator.rank)
        self.master = torch.nn.Parameter(held.clone())
        self.copies: dict[tuple[str, ...], torch.Tensor] = {}
        self.bucket = Bucket("", ())
        self.working = Layout()
        self.total: torch.Tensor | None = None
        self.accumulator_bytes = 0

    def begin_step(self, slots: tuple[Bucket, ...], plan: tuple[Bucket, ...], rule: str) -> None:
        """Fix the working layout; refresh the compute copy when it lives for the step."""
        kind, stored = self.spec.kind, self.choice.stored
        if rule != "every_bucket":
            buckets = plan if rule == "join_plan" else slots
            deposits = tuple(bucket.gradient(kind) for bucket in buckets)
            self.working = working_layout(self.mesh, stored, deposits)
        else:
            everywhere = [
                axis
                for axis in self.mesh.names
                if axis not in stored
                and all(bucket.gradient(kind).state(axis) == "P" for bucket in plan)
            ]
            self.working = Layout(stored, tuple(sorted(everywhere)))
        self.total = None
        if self.communicator.fault == "stale_copy" and self.copies:
            return
        self.copies = {}
        if self.choice.lifetime == "step" and self.choice.copy != "first_use":
            buckets = plan if self.choice.copy == "plan" else slots
            cut = copy_layout(tuple(bucket.use(kind) for bucket in buckets))
            self.copies[cut] = self._gather(cut)

    def begin_slot(self, bucket: Bucket) -> None:
        """Switch to a bucket. No bytes move, but for a copy that lives one micro-batch."""
        self.bucket = bucket
        use = bucket.use(self.spec.kind)
        if self.choice.lifetime == "micro_batch":
            self.copies = {use: self._gather(use)}

    def read(self) -> torch.Tensor:
        """The value in the cut of the bucket; gathered at each call when it lives one use."""
        use = self.bucket.use(self.spec.kind)
        if self.choice.lifetime == "use":
            return self._gather(use)
        for cut, copy in self.copies.items():
            if use[: len(cut)] == cut:
                return self._run(lower(Layout(cut), Layout(use)), copy, "weight")
        if self.choice.copy != "first_use":
            raise RuntimeError(f"{self.spec.name} has no copy from which {use} is a slice")
        self.copies[use] = self._gather(use)
        return self.copies[use]

    def deposit(self, gradient: torch.Tensor) -> None:
        """Add the gradient of one use to the accumulator."""
        steps = lower(self.bucket.gradient(self.spec.kind), self.working)
        if not all(step.kind in FREE_KINDS for step in steps):
            gradient = gradient.to(self.precision.reduce)
        moved = self._run(steps, gradient, "gradient").to(self.precision.accumulate)
        self.total = moved.clone() if self.total is None else self.total.add_(moved)
        held_bytes = self.total.numel() * self.total.element_size()
        self.accumulator_bytes = max(self.accumulator_bytes, held_bytes)

    def finish(self, weight: float) -> None:
        """Bring the accumulator to the layout of the master, divide by the global weight."""
        if self.total is None:
            raise RuntimeError(f"{self.spec.name} received no gradient in this step")
        steps = lower(self.working, Layout(self.choice.master))
        total = self.total
        if not all(step.kind in FREE_KINDS for step in steps):
            total = total.to(self.precision.reduce)
        gradient = self._run(steps, total, "gradient")
        self.master.grad = gradient.to(self.master.dtype) / weight

    def _gather(self, cut: tuple[str, ...]) -> torch.Tensor:
        held = self.master.detach().to(self.precision.compute)
        return self._run(lower(Layout(self.choice.master), Layout(cut)), held, "weight")

    def _run(self, steps: tuple[Step, ...], tensor: torch.Tensor, purpose: str) -> torch.Tensor:
        return apply_steps(self.communicator, steps, tensor, self.spec.cut, purpose)
