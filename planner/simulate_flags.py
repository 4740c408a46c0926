"""`shardwise simulate --flags`: a step of a user's own plan, action by action on its pipeline.

Every micro-batch of a step runs through the schedule (planner/uniform_pipeline.py); what the data
ranks reduce and gather after it, and the optimizer, follow the last action. A pipeline device is a
class of ranks: all that hold its layers do the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.plan_text import size
from shardwise.planner.chrome_trace import (
    COMMUNICATION,
    COMPUTE,
    Span,
    save_trace,
    timeline_spans,
)
from shardwise.planner.compare import OtherPlan
from shardwise.planner.uniform_plan import UniformPlan
from shardwise.planner.uniform_price import UniformPrice, uniform_timeline
from shardwise.solvers.timeline import Timeline

MOST_ACTIONS: Final = 200_000
"""Of a step that is drawn: a trace of about 60 MB, which Perfetto still opens."""


@dataclass(frozen=True)
class SimulatedFlags:
    """A step of their plan. Its text is what the command prints."""

    plan: UniformPlan
    price: UniformPrice
    timeline: Timeline

    def __str__(self) -> str:
        plan, price = self.plan, self.price
        return (
            f"{plan}: step {price.step_s:.4g} s = {plan.micro_batches} micro-batches of "
            f"{plan.micro_batch} x {plan.sequence_length} tokens a replica in "
            f"{price.pipeline_s:.4g} s + gradients {price.gradients_s:.4g} s + optimizer "
            f"{price.optimizer_s:.4g} s\n"
            f"idle: {self.timeline.idle_share:.1%} of the pipeline's time, of {plan.pipeline} "
            f"devices with {plan.tensor * plan.replicas} ranks each\n"
            f"peak: {size(price.peak_bytes)} per rank"
        )

    def spans(self) -> Iterator[Span]:
        """Actions and messages of every device, then the end of the step on each."""
        ranks = self.plan.tensor * self.plan.replicas
        names = [
            f"stage {device} (ranks {device * ranks}-{(device + 1) * ranks - 1})"
            for device in range(self.plan.pipeline)
        ]
        yield from timeline_spans(self.timeline, names)
        end_s = self.timeline.makespan_s
        for name in names:
            after_s = end_s + self.price.gradients_s
            title = "gradients and weights of the data ranks"
            yield Span(name, COMMUNICATION, title, end_s, self.price.gradients_s)
            yield Span(name, COMPUTE, "optimizer", after_s, self.price.optimizer_s)

    def save_trace(self, path: Path) -> None:
        """Write the Chrome trace of the step."""
        save_trace(path, self.spans())


def simulate_flags(other: OtherPlan, length: int | None) -> SimulatedFlags:
    """One step of their plan with documents of `length` tokens, by default as long as they state.

    Raises InvalidValueError where neither says a length, or for a step of over MOST_ACTIONS
    actions; ShardwiseError where the plan can't be priced.
    """
    stated = other.launcher.sequence_length
    if length is None and stated is None:
        raise InvalidValueError("the flags state no sequence length; give --length")
    if length is not None and length < 1:
        raise InvalidValueError(f"--length is {length}; give 1 or more tokens")
    made = other.at(length or stated or 1)
    kinds = 3 if made.schedule.splits_backward else 2
    actions = kinds * made.micro_batches * made.pipeline * made.chunks
    if actions > MOST_ACTIONS:
        raise InvalidValueError(
            f"a step of '{made}' is {actions:,} actions; a trace has at most {MOST_ACTIONS:,}: "
            "state fewer micro-batches"
        )
    price = other.price(made)
    return SimulatedFlags(made, price, uniform_timeline(other.shape, made, other.pricer))
