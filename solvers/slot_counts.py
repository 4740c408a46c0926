"""E[ceil(N_b / k)]: how many slots of a bucket a step has, on average.

A global batch is documents drawn until their tokens first reach `tokens_per_step`, so the
number N_b of its documents in a band of lengths is random. The mean slot count is a constant of
each option (band, documents per slot), estimated once from sampled batches with a fixed seed;
the same samples serve all options, so differences between options are not noise of sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.global_batch import global_batches
from shardwise.ir.lengths import Lengths

BATCHES = 256
"""Sampled global batches."""
SEED = 20261129
"""Of the sample; part of what makes a plan reproducible."""


def sample_batches(
    lengths: Lengths, tokens_per_step: int, *, count: int = BATCHES, seed: int = SEED
) -> tuple[npt.NDArray[np.int64], ...]:
    """Document lengths (tokens, all dims together) of sampled global batches."""
    batches = global_batches(lengths, tokens_per_step, count=count, seed=seed)
    return tuple(batch.sum(axis=1) for batch in batches)


@dataclass(frozen=True)
class SlotCounts:
    """Mean slot counts over candidate edges: band (edges[i], edges[j]] for any i < j."""

    edges: tuple[int, ...]
    """Ascending, the first 0, the last at least the longest document."""
    below: npt.NDArray[np.int64]
    """[batches, edges]: documents of each batch that are at most as long as each edge."""
    _means: dict[tuple[int, int, int], float] = field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def of(cls, batches: Sequence[npt.NDArray[np.int64]], edges: Sequence[int]) -> "SlotCounts":
        """Count sampled batches at the edges; InvalidValueError where a document is longer."""
        if list(edges) != sorted(set(edges)) or edges[0] != 0:
            raise InvalidValueError(f"edges {list(edges)}: give ascending lengths from 0")
        longest = max(int(batch.max()) for batch in batches)
        if longest > edges[-1]:
            raise InvalidValueError(
                f"a document has {longest} tokens and the last edge is {edges[-1]}; raise it"
            )
        below = np.stack(
            [np.searchsorted(np.sort(batch), edges, side="right") for batch in batches]
        )
        return cls(tuple(edges), below.astype(np.int64))

    def mean_slots(self, low: int, high: int, documents_per_slot: int) -> float:
        """E[ceil(N / k)] for the documents in (edges[low], edges[high]]."""
        key = (low, high, documents_per_slot)
        if key not in self._means:
            documents = self.below[:, high] - self.below[:, low]
            self._means[key] = float((-(-documents // documents_per_slot)).mean())
        return self._means[key]

    def mean_documents(self, low: int, high: int) -> float:
        """E[N] for the documents in (edges[low], edges[high]]."""
        return float((self.below[:, high] - self.below[:, low]).mean())


def filled_slots(
    documents: npt.NDArray[np.int64], documents_per_slot: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Slots of each bucket as the batcher makes them with filling, from documents per bucket.

    `documents` is [batches, buckets], buckets ascending. Equal to counting the slots of
    `batcher.batch_slots`, without dealing out documents.
    """
    left = documents.copy()
    slots = np.zeros_like(left)
    for bucket in reversed(range(left.shape[1])):
        k = documents_per_slot[bucket]
        some = left[:, bucket] > 0
        for shorter in reversed(range(bucket)):
            empty = -left[:, bucket] % k
            overflow = left[:, shorter] % documents_per_slot[shorter]
            moved = np.where(some & (overflow > 0) & (overflow <= empty), overflow, 0)
            left[:, bucket] += moved
            left[:, shorter] -= moved
        slots[:, bucket] = -(-left[:, bucket] // k)
    return slots
