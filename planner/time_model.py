"""Seconds of a program on a cluster: rooflines of its calls, curves of its messages.

    call           = forward and backward of one operator (planner/operator_time.py)
    message        = the hardware profile's measured curve of its kind, link class and group size
    unit           = sum; recomputation repeats the forward up to its last saved tensor
    slot           = sum of units (the runtime overlaps nothing yet, so nothing is priced as hidden)
    step           = sum of slots + copies and reductions of the step + optimizer

Sizes are global; prices are of the slowest rank, which is any: all ranks do the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from shardwise.ir.cluster import Cluster
from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.flops import is_product
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Call, UnitProgram, Use
from shardwise.ir.software import SoftwareProfile
from shardwise.ir.span import Span
from shardwise.ir.training import TrainingSpec
from shardwise.planner.operator_time import OperatorTime
from shardwise.planner.traffic import Messages, Traffic

OPTIMIZER_PASSES: Final = 4
"""Bytes moved by an elementwise step per byte of weight and of each state: each is read and
written once, and gradient and temporaries add as much again (assumption)."""


Grouped = tuple[tuple[Call, tuple[bool, ...], int, int], ...]


def _price_key(call: Call, needs: tuple[bool, ...]) -> tuple[object, ...]:
    """All that the price of a call reads, but the sizes."""
    operator = call.operator
    return (
        operator.kind, operator.kwargs, operator.flops, operator.moved_bytes, operator.outputs,
        call.operand_specs, call.reads, call.writes, call.parts, needs, call.needs_gradient,
        bool(operator.module_path),
    )  # fmt: skip


@dataclass
class Pricer:
    """Prices calls and messages of programs on one mesh."""

    cluster: Cluster
    hardware: HardwareProfile
    software: SoftwareProfile
    training: TrainingSpec
    linear_dtype: str | None = None
    """Of products with weights inside layers, where it is not the compute dtype (float8)."""
    blocking: bool = False
    """The host waits for every kernel."""
    _operators: OperatorTime = field(init=False)
    _calls: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)
    _units: dict[int, tuple[UnitProgram, "Grouped"]] = field(default_factory=dict)
    """By identity; the unit is kept, so that its identity stays its own."""
    _spans: dict[tuple[Mesh, tuple[str, ...]], Span] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._operators = OperatorTime(
            self.hardware,
            self.software,
            self.cluster.ranks_per_device,
            self.linear_dtype,
            self.blocking,
        )

    def messages_s(self, messages: Messages, traffic: Traffic) -> float:
        """Seconds of messages, one after the other."""
        return sum(
            count * self._message_s(kind.kind, kind.axes, kind.message_bytes_per_rank, traffic)
            for kind, count in messages.items()
        )

    def _message_s(self, kind: str, axes: tuple[str, ...], size: int, traffic: Traffic) -> float:
        key = (traffic.mesh, axes)
        if key not in self._spans:
            self._spans[key] = self.cluster.span_of(traffic.mesh.groups(axes)[0])
        return self.hardware.collective_s(kind, self._spans[key], size)

    def shown_s(self, communication_s: float, compute_s: float, span: Span) -> float:
        """Seconds that communication adds to compute beside which it runs: what the compute does
        not hide, and how it is slowed by what it hides."""
        link = self.hardware.link(span.link)
        hidden = min(communication_s * link.overlap.value, compute_s)
        return communication_s - hidden + (link.contention.value - 1) * hidden

    def calls_s(
        self,
        traffic: Traffic,
        unit: UnitProgram,
        sizes: Mapping[str, int],
        *,
        only: Callable[[str], bool] = lambda _: True,
    ) -> tuple[float, float, float]:
        """Seconds of a unit's calls of the kinds that `only` takes: forward, backward, and forward
        once more if recomputed."""
        forward = backward = again = 0.0
        for call, needs, count, count_again in self._grouped(traffic, unit):
            if only(call.operator.kind):
                one, back = self._call_s(call, needs, sizes, traffic.mesh)
                forward += count * one
                backward += count * back
                again += count_again * one
        return forward, backward, again

    def weight_gradients_s(
        self, traffic: Traffic, unit: UnitProgram, sizes: Mapping[str, int]
    ) -> float:
        """Seconds of a unit's backward that compute gradients of weights: the half of each product
        that reads a parameter and a value with a gradient."""
        weights = {step.name for step in unit.steps if isinstance(step, Use)}
        return sum(
            self._call_s(step, traffic.needs(step), sizes, traffic.mesh)[1] / 2
            for step in unit.steps
            if isinstance(step, Call)
            and is_product(step.operator.kind)
            and any(ref.name in weights for ref in step.operator.refs())
        )

    def _grouped(self, traffic: Traffic, unit: UnitProgram) -> "Grouped":
        """A unit's calls of equal price once: (call, which operands need a gradient, how many, how
        many recomputation repeats)."""
        known = self._units.get(id(unit))
        if known is None:
            groups: dict[tuple[object, ...], tuple[Call, tuple[bool, ...], int, int]] = {}
            again = {id(step) for step in traffic.recomputed(unit)}
            for step in unit.steps:
                if isinstance(step, Call):
                    needs = traffic.needs(step)
                    key = _price_key(step, needs)
                    _, _, count, repeated = groups.get(key, (step, needs, 0, 0))
                    groups[key] = (step, needs, count + 1, repeated + (id(step) in again))
            known = self._units[id(unit)] = (unit, tuple(groups.values()))
        return known[1]

    def _call_s(
        self, call: Call, needs: tuple[bool, ...], sizes: Mapping[str, int], mesh: Mesh
    ) -> tuple[float, float]:
        key = (_price_key(call, needs), tuple(sizes.items()), mesh)
        if key not in self._calls:
            self._calls[key] = self._operators.seconds(call, needs, sizes, mesh)
        return self._calls[key]

    def forward_s(self, traffic: Traffic, call: Call, sizes: Mapping[str, int]) -> float:
        """Seconds of one call's forward."""
        return self._call_s(call, traffic.needs(call), sizes, traffic.mesh)[0]

    def activations_s(
        self, traffic: Traffic, unit: UnitProgram, sizes: Mapping[str, int], *, recompute: bool
    ) -> float:
        """Seconds of a unit's calls and of the messages of its values, forward and backward."""
        forward, backward, again = self.calls_s(traffic, unit, sizes)
        total = forward + backward + (again if recompute else 0.0)
        messages = traffic.activations(unit, sizes, recompute=recompute)
        return total + self.messages_s(messages, traffic)

    def weights_s(self, traffic: Traffic, unit: UnitProgram, *, recompute: bool) -> float:
        """Seconds of a unit's parameters: gathers, reductions, adding to the accumulators."""
        total = self.messages_s(traffic.weights(unit, recompute=recompute), traffic)
        for step in unit.steps:
            if isinstance(step, Use) and self.training.trains(step.parameter):
                one = traffic.parameters[step.parameter]
                local = prod(one.stored.local_shape(one.rest.shape, traffic.mesh, 0))
                moved = 3 * local * DTYPE_BYTES[self.training.accumulate_dtype]
                total += self._operators.moves_s(moved)
        return total

    def optimizer_s(self, elements: float, tensors: int) -> float:
        """Seconds in which an elementwise optimizer steps `elements` weights in `tensors` equal
        tensors, one operator after the other."""
        states = 1 + self.training.optimizer_kind.state_tensors
        moved = OPTIMIZER_PASSES * DTYPE_BYTES[self.training.master_dtype] * elements * states
        return tensors * self._operators.moves_s(moved / tensors, OPTIMIZER_PASSES * states)

    def fused_optimizer_s(self, elements: float) -> float:
        """Seconds of one kernel that reads weights, states and gradients once and writes weights
        and states once."""
        states = 1 + self.training.optimizer_kind.state_tensors
        moved = DTYPE_BYTES[self.training.master_dtype] * elements * (2 * states + 1)
        return self.hardware.memory_s(moved)

    def step_fixed_s(self, traffics: Sequence[Traffic]) -> float:
        """Seconds of a step outside its slots: copies, reductions that wait, the optimizer."""
        copies: Messages = Messages()
        for traffic in traffics:
            copies |= traffic.step_copies()
        first = traffics[0]
        communication = self.messages_s(copies, first) + self.messages_s(first.step_end(), first)
        seconds = communication
        for one, count in first.entries():
            if self.training.trains(one.rest.name):
                elements = prod(one.rest.master.local_shape(one.rest.shape, first.mesh, 0))
                seconds += self.optimizer_s(count * elements, count)
        return seconds
