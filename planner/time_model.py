"""Seconds of a program on a cluster: rooflines of its calls, curves of its messages.

    call forward   = max(roofline / software efficiency, launch floor)
    call backward  = the same with the backward's work: a product has two (input and weight),
    attention
                     2.5 times its forward (Dao 2023, FlashAttention-2, section 3.1: five products
                     against two), anything else moves its bytes once more
    message        = the hardware profile's measured curve of its kind, link class and group size
    unit           = sum; recomputation repeats the forward up to its last saved tensor
    slot           = sum of units (the runtime overlaps nothing yet, so nothing is priced as hidden)
    step           = sum of slots + copies and reductions of the step + optimizer

Sizes are global; prices are of the slowest rank, which is any: all ranks do the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from shardwise.ir.cluster import Cluster
from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.hardware import HardwareProfile
from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Call, UnitProgram, Use
from shardwise.ir.software import SoftwareProfile
from shardwise.ir.span import Span
from shardwise.ir.training import TrainingSpec
from shardwise.planner.sizes import number
from shardwise.planner.traffic import Messages, Traffic

MATMULS: Final = frozenset(
    f"aten.{name}.default" for name in ("linear", "addmm", "matmul", "mm", "bmm", "convolution")
)
ATTENTION: Final = frozenset({"aten.scaled_dot_product_attention.default"})
ATTENTION_BACKWARD: Final = 2.5
"""Backward over forward FLOP of attention (five products against two)."""
OPTIMIZER_PASSES: Final = 4
"""Bytes moved by an elementwise step per byte of weight and of each state: each is read and
written once, and gradient and temporaries add as much again (assumption)."""


def _memory_key(call: Call) -> str:
    """The efficiency curve of an operator that memory bounds: `memory.silu`, else `memory`."""
    name = call.operator.kind.split(".")[1].strip("_")
    if name == "gelu" and dict(call.operator.kwargs).get("approximate") == "tanh":
        name = "gelu_tanh"
    return f"memory.{name}"


Grouped = tuple[tuple[Call, int, int], ...]


def _price_key(call: Call) -> tuple[object, ...]:
    """All that the price of a call reads, but the sizes."""
    operator = call.operator
    return (
        operator.kind, operator.flops, operator.moved_bytes, operator.outputs[0].dtype,
        call.parts, call.needs_gradient,
    )  # fmt: skip


@dataclass
class Pricer:
    """Prices calls and messages of programs on one mesh."""

    cluster: Cluster
    hardware: HardwareProfile
    software: SoftwareProfile
    training: TrainingSpec
    _calls: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)
    _units: dict[int, tuple[UnitProgram, "Grouped"]] = field(default_factory=dict)
    """By identity; the unit is kept, so that its identity stays its own."""
    _spans: dict[tuple[Mesh, tuple[str, ...]], Span] = field(default_factory=dict)

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

    def calls_s(
        self, traffic: Traffic, unit: UnitProgram, sizes: Mapping[str, int]
    ) -> tuple[float, float, float]:
        """Seconds of a unit's calls: forward, backward, and forward once more if recomputed."""
        forward = backward = again = 0.0
        for call, count, count_again in self._grouped(traffic, unit):
            one = self._call_s(call, sizes)
            forward += count * one[0]
            backward += count * one[1]
            again += count_again * one[0]
        return forward, backward, again

    def _grouped(self, traffic: Traffic, unit: UnitProgram) -> "Grouped":
        """A unit's calls of equal price once: (call, how many, how many recomputation repeats)."""
        known = self._units.get(id(unit))
        if known is None:
            groups: dict[tuple[object, ...], tuple[Call, int, int]] = {}
            again = {id(step) for step in traffic.recomputed(unit)}
            for step in unit.steps:
                if isinstance(step, Call):
                    key = _price_key(step)
                    _, count, repeated = groups.get(key, (step, 0, 0))
                    groups[key] = (step, count + 1, repeated + (id(step) in again))
            known = self._units[id(unit)] = (unit, tuple(groups.values()))
        return known[1]

    def _call_s(self, call: Call, sizes: Mapping[str, int]) -> tuple[float, float]:
        operator = call.operator
        key = (_price_key(call), tuple(sizes.items()))
        if key not in self._calls:
            flops = number(operator.flops, sizes) / call.parts
            moved = number(operator.moved_bytes, sizes) / call.parts
            self._calls[key] = self._roofline(call, flops, moved)
        return self._calls[key]

    def _roofline(self, call: Call, flops: float, moved: float) -> tuple[float, float]:
        kind, dtype = call.operator.kind, call.operator.outputs[0].dtype
        floor = self.software.launch_floor_s.value
        share = self.software.efficiency.value
        if kind in MATMULS and flops:
            one = max(self.hardware.roofline_s("matmul", dtype, flops, moved) / share, floor)
            forward, backward = one, 2 * one
        elif kind in ATTENTION and flops:
            forward = max(self.hardware.roofline_s("attention", dtype, flops, moved) / share, floor)
            work = ATTENTION_BACKWARD * flops
            backward = max(
                self.hardware.roofline_s("attention", dtype, work, 2 * moved) / share, floor
            )
        else:
            seconds = self.hardware.memory_s(moved, _memory_key(call))
            forward = max(seconds / share, floor)
            backward = forward
        return forward, backward if call.needs_gradient else 0.0

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
                total += max(self.hardware.memory_s(moved), self.software.launch_floor_s.value)
        return total

    def step_fixed_s(self, traffics: Sequence[Traffic]) -> float:
        """Seconds of a step outside its slots: copies, reductions that wait, the optimizer."""
        copies: Messages = Messages()
        for traffic in traffics:
            copies |= traffic.step_copies()
        first = traffics[0]
        communication = self.messages_s(copies, first) + self.messages_s(first.step_end(), first)
        states = self.training.optimizer_kind.state_tensors
        size = DTYPE_BYTES[self.training.master_dtype]
        seconds = communication
        for one, count in first.entries():
            if self.training.trains(one.rest.name):
                elements = prod(one.rest.master.local_shape(one.rest.shape, first.mesh, 0))
                moved = OPTIMIZER_PASSES * size * elements * (1 + states)
                floor = self.software.launch_floor_s.value * OPTIMIZER_PASSES * (1 + states)
                seconds += count * max(self.hardware.memory_s(moved), floor)
        return seconds
