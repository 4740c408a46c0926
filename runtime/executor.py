"""Executor: runs the emitted units of a bucket on one micro-batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import lcm

import torch
from torch.utils.checkpoint import checkpoint

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.expression import Size
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.layout import Layout
from shardwise.ir.program import Call, LocalProgram, Move
from shardwise.ir.strategy import Recompute
from shardwise.runtime.emit import EmittedUnit
from shardwise.runtime.parameters import ParameterStore
from shardwise.runtime.regather import Regather


@dataclass(frozen=True)
class BucketProgram:
    """One bucket's program on this rank: emitted units and whether each is recomputed."""

    local: LocalProgram
    units: tuple[EmittedUnit, ...]
    recompute: tuple[Recompute, ...]
    batch_degree: int


class Executor:
    """Runs micro-batches of any bucket; gradients land in the store's accumulators."""

    def __init__(
        self,
        graph: OperatorGraph,
        buckets: Sequence[BucketProgram],
        store: ParameterStore,
        constants: Mapping[str, torch.Tensor],
    ) -> None:
        self.graph, self.buckets, self.store = graph, tuple(buckets), store
        self.constants = dict(constants)
        self._last = [_last_reads(bucket.local) for bucket in self.buckets]
        self._multiples = [length_multiples(bucket.local) for bucket in self.buckets]

    def run(
        self, bucket: int, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Forward of one micro-batch: (loss_sum, weight), global, the same on every rank.

        `batch` holds this rank's part of every graph input: [documents per replica, length].
        """
        program = self.buckets[bucket]
        sizes = self._sizes(program, batch)
        for name, multiple in self._multiples[bucket].items():
            if sizes[name] % multiple:
                raise InvalidValueError(
                    f"a micro-batch of bucket {bucket} has {name} = {sizes[name]}, which its "
                    f"strategy cuts in {multiple} parts; pad it to a multiple of {multiple}"
                )
        values: dict[str, torch.Tensor] = {**self.constants, **batch}
        for index, (unit, recompute) in enumerate(
            zip(program.units, program.recompute, strict=True)
        ):
            results = self._unit(unit, recompute, [values[name] for name in unit.reads], sizes)
            values.update(zip(unit.writes, results, strict=True))
            for name in self._last[bucket][index]:
                values.pop(name, None)
        loss, weight = (values[name] for name in program.local.outputs)
        return loss, weight

    def _unit(
        self,
        unit: EmittedUnit,
        recompute: Recompute,
        reads: list[torch.Tensor],
        sizes: Mapping[str, int],
    ) -> Sequence[torch.Tensor]:
        ints = [sizes[name] for name in unit.sizes]

        def forward(
            *tensors: torch.Tensor, regather: Regather | None = None
        ) -> Sequence[torch.Tensor]:
            copies = [partial(self.store.use, use, regather) for use in unit.uses]
            results: Sequence[torch.Tensor] = unit.module(*ints, *tensors, *copies)
            return results

        if recompute is Recompute.LAYER and torch.is_grad_enabled():
            results: Sequence[torch.Tensor] = checkpoint(
                forward, *reads, use_reentrant=False, preserve_rng_state=False
            )
            return results
        if not torch.is_grad_enabled():
            return forward(*reads)
        regather = Regather(self.store.compute_copy)
        with regather.saving():
            return forward(*reads, regather=regather)

    def _sizes(self, program: BucketProgram, batch: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """Global sizes: the batch symbol counts the documents of all replicas."""
        sizes: dict[str, int] = {}
        for item in self.graph.inputs:
            if item.name not in batch:
                raise InvalidValueError(
                    f"the batch has {sorted(batch)} but the model reads {item.name}; add it"
                )
            for length, symbol in zip(batch[item.name].shape, item.spec.shape, strict=True):
                if isinstance(symbol, int) or not symbol.is_Symbol:
                    continue
                value = length * program.batch_degree if symbol.name == "B" else length
                if sizes.setdefault(symbol.name, value) != value:
                    raise InvalidValueError(
                        f"input {item.name} has {symbol.name} = {value} but another input has "
                        f"{sizes[symbol.name]}; pad all inputs of a micro-batch alike"
                    )
        return sizes


def length_multiples(program: LocalProgram) -> dict[str, int]:
    """What each length must be a multiple of: the ranks that cut a dim of that length together."""
    cut: set[tuple[tuple[Size, ...], Layout]] = set()
    for step in program.steps():
        if isinstance(step, Move):
            cut |= {(step.spec.shape, step.source.forward), (step.spec.shape, step.target.forward)}
        elif isinstance(step, Call):
            values = zip(step.operand_specs, step.reads, strict=True)
            results = zip(step.operator.outputs, step.writes, strict=True)
            cut |= {(spec.shape, layout.forward) for spec, layout in (*values, *results)}
    found: dict[str, int] = {}
    for shape, layout in cut:
        for dim in layout.cut_dims:
            length = shape[dim]
            if isinstance(length, int) or not length.is_Symbol or length.name == "B":
                continue
            ranks = program.mesh.group_size(tuple(axis for axis, _ in layout.cuts(dim)))
            found[length.name] = lcm(found.get(length.name, 1), ranks)
    return found


def _last_reads(program: LocalProgram) -> list[tuple[str, ...]]:
    """Per unit, the values that no later unit reads: they are dropped after it."""
    last: dict[str, int] = {}
    for index, unit in enumerate(program.units):
        for name in (*unit.reads, *unit.writes):
            last[name] = index
    kept = set(program.outputs)
    drops: list[list[str]] = [[] for _ in program.units]
    for name, index in last.items():
        if name not in kept:
            drops[index].append(name)
    return [tuple(names) for names in drops]
