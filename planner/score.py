"""What a plan costs under the real batcher, which fills empty seats: printed beside the bound.

The objective and the bound count E[ceil(N_b / k_b)] slots of each bucket. The batcher may give
empty seats of a long slot to shorter documents and then needs fewer, so its score is never compared
with the bound. Sampled batches are not those of the search: a plan is not judged by what it was
chosen on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.ir.global_batch import global_batches
from shardwise.ir.lengths import Lengths
from shardwise.ir.plan import Plan
from shardwise.planner.search import Found
from shardwise.solvers.slot_counts import SlotCounts, filled_slots, sample_batches

BATCHES = 64
"""Sampled global batches of a score."""
SEED = 20261130
"""Of the sample."""


@dataclass(frozen=True, slots=True)
class Score:
    """Seconds of a step under the real batcher, and how many seats stay empty.

    Text: `real batcher 5.23 s, p95 5.6 s, 12 % of seats idle`.
    """

    mean_s: float
    p95_s: float
    idle_share: float
    """Empty seats over all seats of the slots."""

    def __str__(self) -> str:
        return (
            f"real batcher {self.mean_s:.4g} s, p95 {self.p95_s:.4g} s, "
            f"{self.idle_share:.0%} of seats idle"
        )


def score(
    edges: Sequence[int],
    documents_per_slot: Sequence[int],
    slot_s: Sequence[float],
    fixed_s: float,
    lengths: Lengths,
    tokens_per_step: int,
) -> Score:
    """Score buckets (edges[b], edges[b + 1]] with their documents and seconds of a full slot."""
    batches = global_batches(lengths, tokens_per_step, count=BATCHES, seed=SEED)
    below = np.stack(
        [np.searchsorted(np.sort(batch.sum(axis=1)), edges, side="right") for batch in batches]
    )
    documents = np.diff(below, axis=1)
    slots = filled_slots(documents, documents_per_slot)
    steps = slots @ np.asarray(slot_s) + fixed_s
    seats = slots @ np.asarray(documents_per_slot)
    return Score(
        float(steps.mean()),
        float(np.percentile(steps, 95)),
        float(1 - documents.sum() / seats.sum()),
    )


def score_found(found: Found, edges: Sequence[int], lengths: Lengths, tokens: int) -> Score:
    """The score of an answer of the search, whose candidate edges are `edges`."""
    return score(
        [0, *(edges[band.high] for band in found.bands)],
        [band.option.documents_per_slot for band in found.bands],
        [band.price.time_s for band in found.bands],
        found.table.fixed_s,
        lengths,
        tokens,
    )


def score_plan(plan: Plan, lengths: Lengths) -> Score:
    """The score of a plan on the lengths that it was made for."""
    tokens = plan.priced_for.tokens_per_step
    return score(
        _edges(plan),
        [bucket.documents_per_slot for bucket in plan.buckets],
        [bucket.largest_slot_time_s() for bucket in plan.buckets],
        fixed_s(plan, lengths),
        lengths,
        tokens,
    )


def fixed_s(plan: Plan, lengths: Lengths) -> float:
    """Seconds of a step outside its slots: what the slots leave of the plan's expected step."""
    edges = _edges(plan)
    counts = SlotCounts.of(sample_batches(lengths, plan.priced_for.tokens_per_step), edges)
    in_slots = sum(
        counts.mean_slots(i, i + 1, bucket.documents_per_slot) * bucket.largest_slot_time_s()
        for i, bucket in enumerate(plan.buckets)
    )
    return max(0.0, plan.step_s - in_slots)


def _edges(plan: Plan) -> list[int]:
    return [0, *(bucket.bucket.largest()["S"] for bucket in plan.buckets)]
