"""The micro-batches of a uniform plan through its pipeline: when they end, what they keep.

The order of actions is the schedule's (ir/schedule.py), the time of each that of its model part,
and the event simulator says the rest. Messages between pipeline devices travel beside computing, in
every stack.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from shardwise.ir.decoder import DecoderShape
from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.schedule import ScheduleKind, actions
from shardwise.ir.schedule_action import ActionKind
from shardwise.ir.schedule_orders import Orders
from shardwise.ir.schedule_times import Duration
from shardwise.ir.schedule_zero_bubble import Costs
from shardwise.planner.stage_layers import StageLayers
from shardwise.planner.time_model import Pricer
from shardwise.planner.uniform_plan import UniformPlan
from shardwise.planner.uniform_units import PartCosts
from shardwise.solvers.event_simulator import simulate
from shardwise.solvers.timeline import Timeline, memory

_STEADY = 4
"""Micro-batches for each device after which a pipeline of equal ones is in its steady state: the
busiest device then never waits, and each more costs its time. Compared with all of them simulated
in tests/planner/test_uniform_pipeline.py."""
MOST_ACTIONS = 2_000_000
"""That a price simulates: some ten seconds."""
WEIGHT_KEPT = 0.5
"""Share of the kept activations that the backward of weights reads, the inputs of the products:
assumption. In GPT with unfused attention it is 32 of 34 + 5 a s / h bytes (Qi et al. 2024, table
1), 0.37 to 0.43 for the models there."""


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """All micro-batches of a step."""

    time_s: float
    last_backward_s: float
    """Of the last micro-batch in the slowest model part: what can hide the gradients'
    reduction."""
    activation_bytes: tuple[float, ...]
    """Most that each device holds beyond what rests."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One model part, for one micro-batch."""

    forward_s: float
    backward_s: float
    weight_s: float
    kept_bytes: float
    opened_bytes: float


@dataclass(frozen=True)
class Pipeline:
    """The micro-batches of a step on their devices."""

    plan: UniformPlan
    parts: tuple[_Part, ...]
    hop_s: float
    """Of a message between neighbouring devices."""

    @classmethod
    def of(
        cls,
        plan: UniformPlan,
        pricer: Pricer,
        shape: DecoderShape,
        layers: Sequence[StageLayers],
        costs: PartCosts,
        extras: Sequence[tuple[float, float]],
    ) -> "Pipeline":
        """`extras` are the (forward, backward) seconds that the weights of each model part add to
        a micro-batch."""
        splits = plan.schedule.splits_backward
        parts = tuple(
            _part(part, costs, extra, splits=splits)
            for part, extra in zip(layers, extras, strict=True)
        )
        return cls(plan, parts, _hop_s(plan, pricer, shape))

    def run(self) -> PipelineRun:
        """Run every micro-batch; of many that are equal, a part is simulated.

        Raises InvalidValueError where that part is over MOST_ACTIONS actions.
        """
        plan, parts = self.plan, self.parts
        if plan.pipeline == 1:  # one micro-batch after the other, whatever the schedule and parts
            last = sum(part.backward_s + part.weight_s for part in parts)
            total = plan.micro_batches * (last + sum(part.forward_s for part in parts))
            held = sum(part.kept_bytes for part in parts) + max(part.opened_bytes for part in parts)
            return PipelineRun(total, last, (held,))
        count = min(
            plan.micro_batches, _STEADY * plan.pipeline + plan.micro_batches % plan.pipeline
        )
        if plan.schedule is ScheduleKind.GPIPE:  # it keeps every micro-batch
            count = plan.micro_batches
        count_of_actions = 2 * count * plan.pipeline * plan.chunks
        if count_of_actions > MOST_ACTIONS:
            raise InvalidValueError(
                f"plan '{plan}' is {count_of_actions:,} actions on its pipeline, and at most "
                f"{MOST_ACTIONS:,} are simulated; state fewer model parts or micro-batches"
            )
        ran = replace(self, plan=replace(plan, micro_batches=count)).timeline()
        peaks = memory(
            ran,
            lambda chunk, _: parts[chunk].kept_bytes,
            lambda chunk, _: WEIGHT_KEPT * parts[chunk].kept_bytes,
            lambda kind, chunk, _: 0.0 if kind is ActionKind.F else parts[chunk].opened_bytes,
        )
        busiest = max(map(ran.busy_s, range(ran.devices))) / count
        whole = ran.period_s if plan.schedule.splits_backward else ran.makespan_s
        time_s = whole + (plan.micro_batches - count) * busiest
        last = max(part.backward_s + part.weight_s for part in parts)
        return PipelineRun(time_s, last, tuple(peak.bytes for peak in peaks))

    def timeline(self) -> Timeline:
        """Every micro-batch on its device, none left out."""
        orders = _orders(self.plan, self.parts, self.hop_s)
        return simulate(orders, _duration(self.parts), lambda *_: self.hop_s)


def _part(
    part: StageLayers, costs: PartCosts, extra: tuple[float, float], *, splits: bool
) -> _Part:
    forward_s, backward_s = (
        costs.layer.forward_s * part.layers,
        costs.layer.backward_s * part.layers,
    )
    weight_s = costs.layer.weight_share * backward_s
    kept, opened = costs.layer.kept_bytes * part.layers, costs.layer.opened_bytes
    for there, one in ((part.first, costs.embed), (part.last, costs.head)):
        if there:
            forward_s, backward_s = forward_s + one.forward_s, backward_s + one.backward_s
            weight_s += one.weight_share * one.backward_s
            kept += one.kept_bytes
            opened = max(opened, one.opened_bytes)
    whole = backward_s + extra[1]
    weight_s = weight_s if splits else 0.0
    return _Part(forward_s + extra[0], whole - weight_s, weight_s, kept, opened)


def _duration(parts: Sequence[_Part]) -> Duration:
    """Seconds of an action, which depend on its kind and model part alone."""
    seconds = {
        ActionKind.F: [part.forward_s for part in parts],
        ActionKind.B: [part.backward_s for part in parts],
        ActionKind.W: [part.weight_s for part in parts],
    }
    return lambda kind, chunk, _: seconds[kind][chunk]


@lru_cache(maxsize=256)
def _orders(plan: UniformPlan, parts: tuple[_Part, ...], hop_s: float) -> Orders:
    if plan.schedule.splits_backward:
        return actions(
            plan.schedule,
            devices=plan.pipeline,
            micro_batches=plan.micro_batches,
            chunks_per_device=plan.chunks,
            costs=Costs(_duration(parts), lambda *_: hop_s, WEIGHT_KEPT),
        )
    return _fixed(plan.schedule, plan.pipeline, plan.micro_batches, plan.chunks)


@lru_cache(maxsize=256)
def _fixed(kind: ScheduleKind, devices: int, micro_batches: int, chunks: int) -> Orders:
    return actions(kind, devices=devices, micro_batches=micro_batches, chunks_per_device=chunks)


def _hop_s(plan: UniformPlan, pricer: Pricer, shape: DecoderShape) -> float:
    """Seconds of one message between neighbouring pipeline devices."""
    if plan.pipeline == 1:
        return 0.0
    size = DTYPE_BYTES[pricer.training.compute_dtype]
    rows = plan.micro_batch * plan.sequence_length // plan.context
    message = rows * shape.hidden * size
    if plan.sequence_parallel:
        message //= plan.tensor
    span = pricer.cluster.span(plan.tensor * plan.replicas, plan.pipeline)
    return pricer.hardware.collective_s("send_recv", span, message)
