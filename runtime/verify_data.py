"""Documents and slots that a verification runs: short, seeded, and awkward on purpose.

Lengths are odd where they can be, replicas have unequal numbers of documents, some have none, and
targets are masked here and there. Consecutive slots are of different buckets, so that a step
switches between all strategies of a plan into one accumulator.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from shardwise.ir.argument import Ref
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.graph import OperatorGraph, Parameter
from shardwise.ir.localise import batch_degree
from shardwise.ir.padding import ATTENTION_MASK
from shardwise.ir.plan import Plan
from shardwise.ir.strategy import Role
from shardwise.runtime.data import IGNORED

Document = Mapping[str, torch.Tensor]
"""The inputs of one document, by name, without the batch dim."""
Sample = Callable[[torch.Generator, Mapping[str, int]], Document]
"""Makes a document of the given lengths: (seeded generator, {"S": 7}) -> inputs by name."""

_TOKENS, _LABELS = "input_ids", "labels"
_MASKED_SHARE = 0.2
SEATS = 2
"""Most documents of a replica in a slot."""


@dataclass(frozen=True)
class Slot:
    """One micro-batch of a bucket."""

    bucket: int
    sizes: Mapping[str, int]
    """Padded lengths."""
    rows: tuple[tuple[Document, ...], ...]
    """Documents of every replica."""
    seats: int

    def documents(self) -> tuple[Document, ...]:
        """All documents, replica by replica."""
        return tuple(document for row in self.rows for document in row)

    def batch(self, replica: int, graph: OperatorGraph) -> dict[str, torch.Tensor]:
        """The inputs of one replica, padded to [seats, ...]: labels with ignored targets, the rest
        with zeros. The attention mask of an empty seat is 1: attention over nothing is nan."""
        found = {}
        for item in graph.inputs:
            shape = [
                self.seats if place == 0 else n if isinstance(n, int) else self.sizes[n.name]
                for place, n in enumerate(item.spec.shape)
            ]
            fill = IGNORED if item.name == _LABELS else 0
            dtype = getattr(torch, item.spec.dtype)
            found[item.name] = torch.full(shape, fill, dtype=dtype)
            if item.name == ATTENTION_MASK:
                found[item.name][len(self.rows[replica]) :] = 1
            for seat, document in enumerate(self.rows[replica]):
                part, place = document[item.name], found[item.name][seat]
                for dim, length in enumerate(part.shape):
                    place = place.narrow(dim, 0, length)
                place.copy_(part)
        return found


def step_slots(plan: Plan, step: int, sample: Sample, dims: Sequence[str], seed: int) -> list[Slot]:
    """The slots of one step: every bucket twice, full, ragged and nearly empty ones in turn."""
    generator = torch.Generator().manual_seed(seed * 7919 + step)
    multiple = 1
    for axis in plan.mesh.axes:  # what the strategy of any bucket may split a length by
        if any(s.role(axis.name) is not Role.BATCH for _, s in plan.strategies):
            multiple *= axis.size
    count = len(plan.buckets)
    slots = []
    for place, bucket in enumerate((*range(count), *range(count))):
        strategies = plan.unit_strategies(plan.buckets[bucket])
        degree = batch_degree(plan.strategy(strategies[0]), plan.mesh)
        seats = min(SEATS, plan.buckets[bucket].seats)
        full = [seats] * degree
        ragged, empty = [max(1, seats - 1), *full[1:]], [1, *[0] * (degree - 1)]
        rows = (ragged, empty, full)[(place + step) % 3]
        blocks = int(torch.randint(2, 5, (), generator=generator))
        sizes = {dim: blocks * max(multiple, 2) for dim in dims}
        documents = tuple(
            tuple(sample(generator, _shorter(sizes, generator)) for _ in range(rows[replica]))
            for replica in range(degree)
        )
        slots.append(Slot(bucket, sizes, documents, seats))
    return slots


def _shorter(sizes: Mapping[str, int], generator: torch.Generator) -> dict[str, int]:
    """Lengths up to the padded ones, odd where possible, at least 2."""
    return {
        dim: max(
            2, size - 1 - 2 * int(torch.randint(0, max(1, size // 3), (), generator=generator))
        )
        for dim, size in sizes.items()
    }


def token_documents(graph: OperatorGraph) -> Sample:
    """Random documents of a language model: input_ids, labels, and attention_mask if it reads that.

    Raises InvalidValueError for a model that reads other inputs.
    """
    known = {_TOKENS, _LABELS, ATTENTION_MASK}
    unknown = [item.name for item in graph.inputs if item.name not in known]
    if unknown or _TOKENS not in {item.name for item in graph.inputs}:
        raise InvalidValueError(
            f"the model reads {', '.join(item.name for item in graph.inputs)}, which are no inputs "
            "of a language model: give sample=, a function that makes a document of given lengths"
        )
    vocabulary = _vocabulary(graph)

    def sample(generator: torch.Generator, sizes: Mapping[str, int]) -> Document:
        length = next(iter(sizes.values()))
        tokens, labels = torch.randint(0, vocabulary, (2, length), generator=generator)
        masked = torch.rand(length, generator=generator) < _MASKED_SHARE
        masked[-1] = False  # a target at least, also where labels are shifted
        made = {
            _TOKENS: tokens,
            _LABELS: torch.where(masked, IGNORED, labels),
            ATTENTION_MASK: torch.ones_like(tokens),
        }
        return {item.name: made[item.name] for item in graph.inputs}

    return sample


def _vocabulary(graph: OperatorGraph) -> int:
    """Rows of the smallest table that looks the tokens up."""
    rows = [
        int(table.spec.shape[0])
        for operator in graph.users(_TOKENS)
        if operator.kind == "aten.embedding.default"
        for ref in operator.refs()[:1]
        for table in [graph.producer(Ref(ref.name))]
        if isinstance(table, Parameter)
    ]
    if not rows:
        raise InvalidValueError(
            f"no embedding looks {_TOKENS} up, so its range is unknown: give sample=, a function "
            "that makes a document of given lengths"
        )
    return min(rows)
