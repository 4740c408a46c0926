"""From a corpus to the micro-batches of a step: a pure function of (seed, step, lengths, plan).

Documents are dealt in a seeded order, a new permutation each epoch. A global batch is the documents
from where the last step stopped until their tokens first reach `tokens_per_step`; the batcher then
makes its slots. Every rank computes the same slots and builds only its own rows.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shardwise.ir.certificate import LongDocuments
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.plan import Plan
from shardwise.runtime.corpus import Corpus
from shardwise.solvers.batcher import BucketShape, Slot, batch_slots

IGNORED = -100
"""Target that counts neither in the loss nor in its weight (torch's cross_entropy default)."""
PAD = 0
"""Token id of padding: it is masked by position (causal) and by its targets."""


def bucket_shapes(plan: Plan) -> tuple[BucketShape, ...]:
    """What the batcher needs of a plan's buckets (one length dim)."""
    shapes = []
    for bucket in plan.buckets:
        if len(bucket.bucket.ranges) != 1:
            raise InvalidValueError(
                f"bucket {bucket.bucket} has several length dims; this version trains on one"
            )
        (band,) = bucket.bucket.ranges
        padded = tuple(dict(shape.sizes)[band.dim] for shape in bucket.padded)
        shapes.append(BucketShape(band.low, band.high, bucket.batch_degree, bucket.seats, padded))
    return tuple(shapes)


@dataclass
class Sampler:
    """The documents of each step, in a seeded order without end.

    Step k of a seed is the same whatever ran before: `seek` starts anywhere.
    """

    lengths: npt.NDArray[np.int64]
    tokens_per_step: int
    seed: int
    epoch: int = 0
    position: int = 0

    def next_batch(self) -> npt.NDArray[np.int64]:
        """Indices of the documents of the next global batch."""
        chosen: list[int] = []
        tokens = 0
        while tokens < self.tokens_per_step:
            order = self._order(self.epoch)
            index = int(order[self.position])
            chosen.append(index)
            tokens += int(self.lengths[index])
            self.position += 1
            if self.position == len(self.lengths):
                self.epoch, self.position = self.epoch + 1, 0
        return np.array(chosen, dtype=np.int64)

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        if getattr(self, "_cached", (None,))[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self._cached = (epoch, rng.permutation(len(self.lengths)))
        return self._cached[1]


@dataclass(frozen=True)
class StepData:
    """The slots of one step and the documents that they name."""

    documents: npt.NDArray[np.int64]
    """Indices into the corpus; slots name positions in this array."""
    slots: tuple[Slot, ...]
    dropped: int
    """Documents left out by the plan's policy for long ones."""

    def digest(self) -> int:
        """63 bits over slots and documents: equal on all ranks, or something is wrong."""
        text = "\n".join(map(str, self.slots)) + " ".join(map(str, self.documents.tolist()))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def step_data(corpus: Corpus, plan: Plan, documents: npt.NDArray[np.int64]) -> StepData:
    """Slots of one global batch under a plan.

    Raises InvalidValueError for a document over the last bucket unless the plan drops those (a
    corpus is split at the job's max_length before).
    """
    shapes = bucket_shapes(plan)
    lengths = [len(corpus.documents[i]) for i in documents]
    dropped = 0
    if plan.long_documents is LongDocuments.DROP:
        kept = [i for i, n in enumerate(lengths) if n <= shapes[-1].high]
        dropped = len(lengths) - len(kept)
        documents, lengths = documents[kept], [lengths[i] for i in kept]
    return StepData(documents, batch_slots(lengths, shapes), dropped)


def micro_batch(
    corpus: Corpus,
    data: StepData,
    slot: Slot,
    seats: int,
    replica: int,
    *,
    names: Sequence[str] = ("input_ids", "labels"),
    device: torch.device,
) -> Mapping[str, torch.Tensor]:
    """This replica's rows of a slot: int64 [seats, slot.length] ids and labels.

    Rows of empty seats and positions past a document hold PAD with IGNORED targets: they add
    neither loss nor weight.
    """
    ids = np.full((seats, slot.length), PAD, dtype=np.int64)
    labels = np.full((seats, slot.length), IGNORED, dtype=np.int64)
    for row, place in enumerate(slot.documents[replica]):
        tokens = corpus.documents[int(data.documents[place])]
        ids[row, : len(tokens)] = tokens
        labels[row, : len(tokens)] = tokens
    found = {"input_ids": ids, "labels": labels}
    unknown = [name for name in names if name not in found]
    if unknown:
        raise InvalidValueError(
            f"the model reads {', '.join(unknown)}, and this version feeds input_ids and labels; "
            "write the loop by hand (examples/) to feed others"
        )
    return {name: torch.from_numpy(found[name]).to(device) for name in names}
