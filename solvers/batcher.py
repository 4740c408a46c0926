"""The batcher: documents of one global batch into slots. A pure function, no state, no clock.

A slot is one micro-batch per data-parallel replica, and every rank runs the same bucket's
program in it. Documents are taken bucket by bucket, longest first, `batch_degree * seats` to a
slot; within a bucket they are sorted by length, so that documents of like length are padded to
one shape. When the last slot of a bucket has empty seats and the documents that would overflow
into an extra slot of a shorter bucket fit into them, they take those seats: that saves a slot
and costs nothing. The expected slot count E[ceil(N_b / k)] of the objective is of the batcher
without that filling (`fill=False`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardwise.ir.errors import InvalidValueError, UnsupportedError
from shardwise.ir.plan import Plan


@dataclass(frozen=True, slots=True)
class BucketShape:
    """What the batcher needs to know of a bucket: lengths in (low, high], and its micro-batch."""

    low: int
    high: int
    batch_degree: int
    """Data-parallel replicas of the bucket's strategy."""
    seats: int
    """Documents per replica in one micro-batch."""
    padded: tuple[int, ...]
    """Lengths to which a micro-batch may be padded, ascending; the last one is >= high."""

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high or self.batch_degree < 1 or self.seats < 1:
            raise InvalidValueError(
                f"bucket ({self.low}, {self.high}] with batch degree {self.batch_degree} and "
                f"{self.seats} seats: need 0 <= low < high, both counts >= 1; correct the plan"
            )
        if not self.padded or list(self.padded) != sorted(set(self.padded)):
            raise InvalidValueError(
                f"bucket ({self.low}, {self.high}] pads to {self.padded}: give ascending lengths"
            )
        if self.padded[-1] < self.high:
            raise InvalidValueError(
                f"bucket ({self.low}, {self.high}] pads to at most {self.padded[-1]}: the last "
                "padded length must hold the longest document; raise it"
            )

    @property
    def documents_per_slot(self) -> int:
        """Seats over all replicas: k = batch_degree * seats."""
        return self.batch_degree * self.seats


def bucket_shapes(plan: Plan) -> tuple[BucketShape, ...]:
    """What the batcher needs of a plan's buckets (one length dim)."""
    shapes = []
    for bucket in plan.buckets:
        if len(bucket.bucket.ranges) != 1:
            raise UnsupportedError(
                f"bucket {bucket.bucket} has several length dims; this version batches one"
            )
        (band,) = bucket.bucket.ranges
        padded = tuple(dict(shape.sizes)[band.dim] for shape in bucket.padded)
        shapes.append(BucketShape(band.low, band.high, bucket.batch_degree, bucket.seats, padded))
    return tuple(shapes)


@dataclass(frozen=True, slots=True)
class Slot:
    """One micro-batch on every replica. Text: `b1 S1024 0,5|3,-|...` (documents per replica)."""

    bucket: int
    length: int
    """Padded length of every document in the slot."""
    documents: tuple[tuple[int, ...], ...]
    """Per replica, the indices of its documents in the global batch; seats beyond are empty."""

    def __str__(self) -> str:
        rows = "|".join(",".join(map(str, row)) or "-" for row in self.documents)
        return f"b{self.bucket} S{self.length} {rows}"


def bucket_of(length: int, buckets: Sequence[BucketShape]) -> int | None:
    """Index of the bucket of a document; None if it is empty or longer than the last bucket."""
    for index, bucket in enumerate(buckets):
        if bucket.low < length <= bucket.high:
            return index
    return None


def batch_slots(
    lengths: Sequence[int], buckets: Sequence[BucketShape], *, fill: bool = True
) -> tuple[Slot, ...]:
    """The slots of one global batch, in order of execution: buckets ascending.

    `lengths[i]` is the length in tokens of document i; empty documents (0) are left out. Ties are
    broken by index, so the result depends on nothing but the arguments. Raises
    InvalidValueError for a document that no bucket holds: the caller applies the plan's policy
    for long documents first.
    """
    by_bucket: list[list[int]] = [[] for _ in buckets]
    for index, length in enumerate(lengths):
        if length == 0:
            continue
        bucket = bucket_of(length, buckets)
        if bucket is None:
            held = ", ".join(f"({b.low}, {b.high}]" for b in buckets)
            raise InvalidValueError(
                f"document {index} has {length} tokens and the plan's buckets are {held}; plan for "
                "longer documents, or set long_documents to split or drop"
            )
        by_bucket[bucket].append(index)
    for indices in by_bucket:
        indices.sort(key=lambda i: (lengths[i], i))
    slots: list[Slot] = []
    for bucket in reversed(range(len(buckets))):
        indices, shape = by_bucket[bucket], buckets[bucket]
        if fill and indices:
            indices = _filled(indices, bucket, by_bucket, buckets)
        k = shape.documents_per_slot
        # The incomplete group, if any, is the one of the shortest documents.
        starts = [0, *range(len(indices) % k or k, len(indices), k), len(indices)]
        groups = [indices[a:b] for a, b in pairwise(starts) if a < b]
        slots += [_slot(bucket, group, shape, lengths) for group in reversed(groups)]
    return tuple(reversed(slots))


def _filled(
    indices: list[int],
    bucket: int,
    by_bucket: list[list[int]],
    buckets: Sequence[BucketShape],
) -> list[int]:
    """Give empty seats of this bucket to the overflow of shorter ones, where that saves a slot."""
    k = buckets[bucket].documents_per_slot
    for shorter in reversed(range(bucket)):
        empty = -len(indices) % k
        overflow = len(by_bucket[shorter]) % buckets[shorter].documents_per_slot
        if 0 < overflow <= empty:
            indices = by_bucket[shorter][-overflow:] + indices
            del by_bucket[shorter][-overflow:]
    return indices


def _slot(bucket: int, group: Sequence[int], shape: BucketShape, lengths: Sequence[int]) -> Slot:
    """Deal a group to the replicas, as evenly as its number allows."""
    longest = max(lengths[i] for i in group)
    padded = next(length for length in shape.padded if length >= longest)
    rows = tuple(tuple(group[r :: shape.batch_degree]) for r in range(shape.batch_degree))
    return Slot(bucket, padded, rows)
