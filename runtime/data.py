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
from shardwise.ir.errors import InvalidValueError, MismatchError, UnsupportedError
from shardwise.ir.padding import ATTENTION_MASK, attends_to_padding
from shardwise.ir.plan import Plan
from shardwise.ir.traced_model import TracedModel
from shardwise.runtime.corpus import Corpus
from shardwise.solvers.batcher import Slot, batch_slots, bucket_shapes

Indices = npt.NDArray[np.int64]

IGNORED = -100
"""Target that counts neither in the loss nor in its weight (torch's cross_entropy default)."""
PAD = 0
"""Token id of padding: masked by its targets, and by position (causal) or `attention_mask`."""


def check_corpus(corpus: Corpus, plan: Plan) -> None:
    """Raise MismatchError for a document that no bucket of the plan holds."""
    shapes = bucket_shapes(plan)
    lengths = corpus.lengths()
    held = np.zeros(len(lengths), dtype=bool)
    for shape in shapes:
        held |= (lengths > shape.low) & (lengths <= shape.high)
    if plan.long_documents is LongDocuments.DROP:
        held |= lengths > shapes[-1].high
    if not held.all():
        index = int(np.flatnonzero(~held)[0])
        raise MismatchError(
            f"document {index} has {lengths[index]} tokens and no bucket of the plan holds it "
            f"(the last is {plan.buckets[-1].bucket}; {int((~held).sum())} documents in all); set "
            f"data.max_length to {shapes[-1].high}, or make a plan for these lengths"
        )


def check_padding(corpus: Corpus, plan: Plan, traced: TracedModel) -> None:
    """Raise UnsupportedError where documents would be padded and the model attends to padding."""
    seen = attends_to_padding(traced)
    lengths = corpus.lengths()
    padded = {length for shape in bucket_shapes(plan) for length in shape.padded}
    if not seen or (len(set(lengths.tolist())) == 1 and int(lengths[0]) in padded):
        return
    raise UnsupportedError(
        f"attention of {seen[0]} sees later positions, and so the padding of a micro-batch "
        f"(lengths are {int(lengths.min())} to {int(lengths.max())}, padded to {min(padded)} to "
        f"{max(padded)}): its loss would depend on the batch; give forward an argument "
        f"{ATTENTION_MASK} that masks it, or documents of one length that the plan holds unpadded"
    )


class Sampler:
    """The documents of each step, in a seeded order without end.

    `batch(step)` depends on nothing but the arguments: any step may be asked for at any time.
    A step starts where the one before it stopped, so finding one walks over those before it, once.
    """

    def __init__(self, lengths: Indices, *, tokens_per_step: int, seed: int) -> None:
        if len(lengths) == 0 or int(lengths.min()) < 1:
            raise InvalidValueError("a sampler needs documents, each of 1 token or more")
        self.lengths, self.tokens_per_step, self.seed = lengths, tokens_per_step, seed
        self._starts = [(0, 0)]
        self._epoch = -1
        self._order: Indices = lengths
        self._ends: Indices = lengths

    def batch(self, step: int) -> Indices:
        """Indices of the documents of the global batch of a step (from 0), int64."""
        while len(self._starts) <= step:
            self._starts.append(self._take(self._starts[-1], None))
        documents: list[Indices] = []
        after = self._take(self._starts[step], documents)
        if len(self._starts) == step + 1:
            self._starts.append(after)
        return np.concatenate(documents)

    def start(self, step: int) -> tuple[int, int]:
        """(epoch, documents of it that went before) at which a step starts."""
        self.batch(step)
        return self._starts[step]

    def _take(self, start: tuple[int, int], into: list[Indices] | None) -> tuple[int, int]:
        """Where the batch that begins at `start` ends; its documents are appended to `into`."""
        (epoch, position), missing = start, self.tokens_per_step
        while True:
            self._open(epoch)
            before = int(self._ends[position - 1]) if position else 0
            stop = int(np.searchsorted(self._ends, before + missing)) + 1
            stop = min(stop, len(self.lengths))
            if into is not None:
                into.append(self._order[position:stop])
            missing -= int(self._ends[stop - 1]) - before
            epoch, position = (epoch + 1, 0) if stop == len(self.lengths) else (epoch, stop)
            if missing <= 0:
                return epoch, position

    def _open(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.seed, epoch]).permutation(len(self.lengths))
            self._ends = np.cumsum(self.lengths[self._order])


def held_out(corpus: Corpus, count: int) -> Indices:
    """The documents of evaluations, which are never trained on: the last `count` of the corpus.

    In the order of the corpus, so at most one document that was split lies on both sides. Raises
    InvalidValueError where nothing would be left to train on.
    """
    total = len(corpus.documents)
    if not 0 <= count < total:
        raise InvalidValueError(
            f"{count} documents held out of {total} leave none to train on; set run.eval_documents "
            f"under {total}"
        )
    return np.arange(total - count, total, dtype=np.int64)


@dataclass(frozen=True)
class StepData:
    """The slots of one step and the documents that they name."""

    documents: Indices
    """Indices into the corpus; slots name positions in this array."""
    slots: tuple[Slot, ...]
    dropped: int
    """Documents left out by the plan's policy for long ones."""

    def digest(self) -> int:
        """63 bits over slots and documents: equal on all ranks, or something is wrong."""
        text = "\n".join(map(str, self.slots)) + " ".join(map(str, self.documents.tolist()))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def step_data(corpus: Corpus, plan: Plan, documents: Indices) -> StepData:
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
    *,
    seats: int,
    replica: int,
    names: Sequence[str] = ("input_ids", "labels"),
    device: torch.device,
) -> Mapping[str, torch.Tensor]:
    """This replica's rows of a slot: int64 [seats, slot.length] ids, labels, attention mask.

    Rows of empty seats and positions past a document hold PAD with IGNORED targets: they add
    neither loss nor weight. The mask is 1 for tokens, and in rows of empty seats: attention over
    nothing is no number.
    """
    ids = np.full((seats, slot.length), PAD, dtype=np.int64)
    labels = np.full((seats, slot.length), IGNORED, dtype=np.int64)
    mask = np.ones((seats, slot.length), dtype=np.int64)
    for row, place in enumerate(slot.documents[replica]):
        tokens = corpus.documents[int(data.documents[place])]
        ids[row, : len(tokens)] = tokens
        labels[row, : len(tokens)] = tokens
        mask[row, len(tokens) :] = 0
    found = {"input_ids": ids, ATTENTION_MASK: mask, "labels": labels}
    unknown = [name for name in names if name not in found]
    if unknown:
        raise UnsupportedError(
            f"the model reads {', '.join(unknown)}, and this version feeds {', '.join(found)}; "
            "write the loop by hand (examples/train_by_hand.py) to feed others"
        )
    return {name: torch.from_numpy(found[name]).to(device) for name in names}
