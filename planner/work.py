"""FLOPs of one rank in a micro-batch: forward, what recomputation repeats, backward.

The runtime calls the same operators on the same local shapes, so these are EQUAL to those counted
on the executed program (tests/planner/test_stated_work.py). What counts as a FLOP is said in
ir/flops.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.ir.flops import backward_flops
from shardwise.ir.program import Call, UnitProgram
from shardwise.planner.sizes import number
from shardwise.planner.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Work:
    """FLOPs per rank."""

    forward: float = 0.0
    again: float = 0.0
    """Of the forward that recomputation repeats."""
    backward: float = 0.0
    """Of products alone."""

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.forward + other.forward, self.again + other.again, self.backward + other.backward
        )


def slot_work(traffic: Traffic, sizes: Mapping[str, int], recompute: Sequence[bool]) -> Work:
    """Work of one micro-batch; `recompute[i]` says whether unit i is recomputed."""
    total = Work()
    for unit, again in zip(traffic.program.units, recompute, strict=True):
        total += unit_work(traffic, unit, sizes, recompute=again)
    return total


def unit_work(
    traffic: Traffic, unit: UnitProgram, sizes: Mapping[str, int], *, recompute: bool
) -> Work:
    """Work of one unit in a micro-batch."""
    total = Work()
    repeated = {id(step) for step in traffic.recomputed(unit)} if recompute else set()
    for step in unit.steps:
        if isinstance(step, Call):
            forward, backward = call_flops(step, traffic.needs(step), sizes)
            total += Work(forward, forward if id(step) in repeated else 0.0, backward)
    return total


def call_flops(call: Call, needs: Sequence[bool], sizes: Mapping[str, int]) -> tuple[float, float]:
    """FLOPs per rank of a call, forward, and of the products of its backward; `needs` says which
    operands need a gradient."""
    forward = number(call.operator.flops, sizes) / call.parts
    if not call.needs_gradient:
        return forward, 0.0
    backward = backward_flops(call.operator, call.operand_specs, needs)
    return forward, number(backward, sizes) / call.parts
