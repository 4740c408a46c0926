"""`shardwise simulate`: one step of a plan, slot by slot, at the plan's own prices.

A global batch is drawn from the length distribution that the plan was made for, the real batcher
makes its slots, and each slot takes what the plan's compiled prices say of its padded shape. Slots
run one after the other on all ranks, and the step ends with what is outside its slots: copies,
reductions that waited, the optimizer. Compiled prices are of whole slots, so a slot is one span,
its forward and backward together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardwise.ir.bucket_plan import PaddedShape
from shardwise.ir.errors import InvalidValueError, MismatchError, UnsupportedError
from shardwise.ir.global_batch import global_batches
from shardwise.ir.lengths import Lengths
from shardwise.ir.plan import Plan
from shardwise.planner.chrome_trace import COMPUTE, Count, Span, save_trace
from shardwise.planner.score import fixed_s
from shardwise.solvers.batcher import batch_slots, bucket_shapes

MOST_STEPS: Final = 10_000


@dataclass(frozen=True, slots=True)
class SlotRun:
    """One slot of a simulated step."""

    bucket: str
    """`S(512,1024]`."""
    strategies: str
    """Of the units in order, run-length encoded: `embed.dp, layer.dp*4, head.dp`."""
    length: int
    """Tokens that each document is padded to."""
    documents: int
    """Documents over all replicas."""
    seats: int
    """Seats over all replicas."""
    tokens: int
    """Of the documents, without padding."""
    start_s: float
    time_s: float
    peak_bytes_per_rank: float


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """A step of a plan under its own prices. Its text is what the command prints."""

    ranks: str
    """The class of ranks that all do this: `ranks 0-7`."""
    slots: tuple[SlotRun, ...]
    end_s: float
    """Copies, reductions that waited and the optimizer, after the last slot."""
    expected_s: float
    """The plan's expected step."""

    @property
    def slots_s(self) -> float:
        """Seconds of all slots."""
        return self.slots[-1].start_s + self.slots[-1].time_s if self.slots else 0.0

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return self.slots_s + self.end_s

    @property
    def peak_bytes_per_rank(self) -> float:
        """The largest peak of a slot."""
        return max((slot.peak_bytes_per_rank for slot in self.slots), default=0.0)

    @property
    def idle_seats(self) -> float:
        """Share of the seats, weighed by the time of their slots, that no document takes."""
        empty = sum(slot.time_s * (1 - slot.documents / slot.seats) for slot in self.slots)
        return empty / self.slots_s if self.slots_s else 0.0

    @property
    def idle_tokens(self) -> float:
        """Share of the padded tokens of all seats that are of no document."""
        padded = sum(slot.length * slot.seats for slot in self.slots)
        return 1 - sum(slot.tokens for slot in self.slots) / padded if padded else 0.0

    def __str__(self) -> str:
        lines = (
            f"{self.ranks}: step {self.step_s:.4g} s = {len(self.slots)} slots in "
            f"{self.slots_s:.4g} s + step end {self.end_s:.4g} s; the plan expects "
            f"{self.expected_s:.4g} s",
            f"idle: {self.idle_seats:.0%} of seats (by time), {self.idle_tokens:.0%} of padded "
            "tokens",
            f"peak: {self.peak_bytes_per_rank / 1e9:.3f} GB per rank",
        )
        return "\n".join(lines)

    def spans(self) -> Iterator[Span]:
        """Slots, and the end of the step."""
        for number, slot in enumerate(self.slots):
            arguments = (
                ("slot", number),
                ("strategies", slot.strategies),
                ("documents", f"{slot.documents} of {slot.seats} seats"),
                ("tokens", f"{slot.tokens} of {slot.length * slot.seats} padded"),
                ("peak bytes per rank", round(slot.peak_bytes_per_rank)),
            )
            name = f"{slot.bucket} at {slot.length}"
            yield Span(self.ranks, COMPUTE, name, slot.start_s, slot.time_s, arguments)
        yield Span(
            self.ranks, COMPUTE, "step end: copies, reductions, optimizer", self.slots_s, self.end_s
        )

    def counts(self) -> Iterator[Count]:
        """Peak bytes of each slot, as a curve."""
        for slot in self.slots:
            name = "peak bytes per rank"
            yield Count(self.ranks, name, slot.start_s, round(slot.peak_bytes_per_rank))

    def save_trace(self, path: Path) -> None:
        """Write the Chrome trace of the step."""
        save_trace(path, self.spans(), self.counts())


def simulate_step(plan: Plan, lengths: Lengths, *, seed: int = 0, step: int = 0) -> SimulatedStep:
    """Step `step` of the global batches of `seed`, drawn from `lengths`.

    Raises MismatchError for lengths that the plan was not made for (its step's end is what its
    expected step has beside its slots, and both are over those), UnsupportedError for a plan of
    several stages or length dims, and InvalidValueError for a negative seed or a step that is not
    from 0 to 9999.
    """
    _check(plan, lengths)
    if type(step) is not int or not 0 <= step < MOST_STEPS:
        raise InvalidValueError(
            f"step is {step!r}; give 0 to {MOST_STEPS - 1} (those before it are drawn too), and "
            "another seed for other steps"
        )
    tokens_per_step = plan.priced_for.tokens_per_step
    batch = global_batches(lengths, tokens_per_step, count=step + 1, seed=seed)[step]
    documents = [int(tokens) for tokens in batch[:, 0]]
    slots, start_s = [], 0.0
    for slot in batch_slots(documents, bucket_shapes(plan)):
        bucket = plan.buckets[slot.bucket]
        shape = PaddedShape(((bucket.bucket.dims[0], slot.length),))
        taken = [documents[i] for row in slot.documents for i in row]
        time_s = bucket.price_of(bucket.time, shape)
        slots.append(
            SlotRun(
                str(bucket.bucket),
                ", ".join(map(str, bucket.runs)),
                slot.length,
                len(taken),
                bucket.documents_per_slot,
                sum(taken),
                start_s,
                time_s,
                bucket.price_of(bucket.peak, shape),
            )
        )
        start_s += time_s
    ranks = plan.mesh.world_size
    name = "rank 0" if ranks == 1 else f"ranks 0-{ranks - 1}"
    return SimulatedStep(name, tuple(slots), fixed_s(plan, lengths), plan.step_s)


def _check(plan: Plan, lengths: Lengths) -> None:
    if len(plan.stages) > 1 or len(lengths.dims) != 1:
        raise UnsupportedError(
            f"the plan has {len(plan.stages)} stages and the lengths the dims "
            f"{', '.join(lengths.dims)}: this version simulates plans of one stage and one dim"
        )
    if lengths.digest() != plan.priced_for.lengths_digest:
        raise MismatchError(
            f"the plan was made for lengths of digest {plan.priced_for.lengths_digest[:12]} and "
            f"these have {lengths.digest()[:12]}; give the length file of `shardwise plan`, or "
            "plan for these"
        )
