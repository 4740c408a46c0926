"""What a switch of strategy moves: bytes counted in a run, against the same slots unswitched."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from shardwise.runtime.collective_call import CollectiveRecord
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.program import Program
from shardwise.solvers.batcher import BucketShape, Slot


class RunSlot(Protocol):
    """Runs one slot of masked dummies; what it returns is not read."""

    def __call__(self, bucket: int, length: int) -> object:
        """Forward and backward at a padded length of a bucket."""


@dataclass(frozen=True)
class Reference:
    """Bytes of collectives per rank of each kind of slot that follows a slot of its own kind."""

    slots: dict[tuple[int, int], int]
    """By (bucket, padded length)."""
    fixed: int
    """Of a step outside its slots: copies and reductions that wait for its end."""

    def step_bytes(self, slots: Sequence[Slot]) -> int:
        """Of these slots if nothing were switched between them, and the step around them."""
        return self.fixed + sum(self.slots[slot.bucket, slot.length] for slot in slots)


def rehearse(
    program: Program,
    communicator: Communicator,
    shapes: Sequence[BucketShape],
    run_slot: RunSlot,
) -> Reference:
    """Run every kind of slot twice on masked dummies and count what the second one moves.

    It also warms up. Gradients, all zero, are dropped; masters stay as they are. A collective of
    all ranks.
    """
    counted: dict[tuple[int, int], int] = {}
    program.refresh()
    with communicator.recording() as log:
        program.prepare()
        fixed = total_bytes(log)
        for bucket, shape in enumerate(shapes):
            for length in shape.padded:
                for _ in range(2):
                    start = len(log)
                    run_slot(bucket, length)
                    counted[bucket, length] = total_bytes(log[start:])
        start = len(log)
        program.store.gradients(1.0)
        fixed += total_bytes(log[start:])
    program.discard_gradients()
    program.refresh()
    return Reference(counted, fixed)


def total_bytes(records: Iterable[CollectiveRecord]) -> int:
    """Message bytes of this rank."""
    return sum(record.message_bytes for record in records)
