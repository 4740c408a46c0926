"""Counted collectives of the accumulator experiment, and the steps of `lower` on real tensors.

Every collective is recorded as (phase, purpose, kind, message bytes per rank). Message bytes:
the larger (gathered) tensor of an all_gather or reduce_scatter, padding included; the local
tensor of an all_reduce; the local tensor before an all_to_all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from benchmarks.risks.accumulator_layout import Layout, Mesh, Step, shard_interval, shard_width

FAULTS = ("drop_reduction", "double_count", "average", "group_order", "stale_copy")
"""Seeded faults: each has to show up as a wrong gradient or weight."""


@dataclass(frozen=True, slots=True)
class Record:
    """One collective on this rank."""

    phase: str
    purpose: str
    kind: str
    message_bytes: int


@dataclass(slots=True)
class Communicator:
    """The collectives of one rank; `new_group` is called in the same order by all ranks."""

    mesh: Mesh
    rank: int
    phase: str = ""
    fault: str = ""
    records: list[Record] = field(default_factory=list)
    groups: dict[tuple[int, ...], dist.ProcessGroup] = field(default_factory=dict)

    def group(self, axes: tuple[str, ...]) -> dist.ProcessGroup:
        """Process group over `axes`; members ascend by rank, whatever the order of `axes`."""
        return self.groups[self.mesh.members(self.rank, axes)]

    def record(self, purpose: str, kind: str, tensor: torch.Tensor) -> None:
        """Count one collective by the convention of this module."""
        message_bytes = tensor.numel() * tensor.element_size()
        self.records.append(Record(self.phase, purpose, kind, message_bytes))

    def all_gather(self, x: torch.Tensor, axes: tuple[str, ...], purpose: str) -> torch.Tensor:
        """Shape [members, *x.shape]."""
        out = x.new_empty(self.mesh.size(axes), *x.shape)
        dist.all_gather_single(out.view(-1), x.contiguous().view(-1), group=self.group(axes))
        self.record(purpose, "all_gather", out)
        return out

    def reduce_scatter(self, x: torch.Tensor, axes: tuple[str, ...], purpose: str) -> torch.Tensor:
        """`x` is [members, ...]; the sum of this rank's row over the group."""
        out = x.new_empty(x.shape[1:])
        dist.reduce_scatter_single(out.view(-1), x.contiguous().view(-1), group=self.group(axes))
        self.record(purpose, "reduce_scatter", x)
        return out

    def all_reduce(self, x: torch.Tensor, axes: tuple[str, ...], purpose: str) -> torch.Tensor:
        """Sum over the group, as a new tensor."""
        out = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(out, group=self.group(axes))
        self.record(purpose, "all_reduce", out)
        return out

    def all_to_all(self, x: torch.Tensor, axes: tuple[str, ...], purpose: str) -> torch.Tensor:
        """`x` is [members, ...]; row j of the result comes from member j."""
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(out.view(-1), x.contiguous().view(-1), group=self.group(axes))
        self.record(purpose, "all_to_all", x)
        return out


def make_groups(mesh: Mesh, rank: int) -> dict[tuple[int, ...], dist.ProcessGroup]:
    """One group per set of ranks that some subset of the axes spans; those of this rank."""
    names = mesh.names
    subsets = [
        tuple(name for bit, name in enumerate(names) if mask >> bit & 1)
        for mask in range(1, 2 ** len(names))
    ]
    sets = {mesh.members(other, axes) for axes in subsets for other in range(mesh.world_size)}
    groups = {}
    for members in sorted(sets):
        group = dist.new_group(list(members))
        if rank in members:
            groups[members] = group
    return groups


@dataclass(frozen=True, slots=True)
class Cut:
    """The dim of a tensor that its layouts cut."""

    dim: int
    size: int


def apply_steps(
    communicator: Communicator,
    steps: tuple[Step, ...],
    tensor: torch.Tensor,
    cut: Cut,
    purpose: str,
) -> torch.Tensor:
    """Run the steps of `lower` on this rank's tensor."""
    rows = tensor.movedim(cut.dim, 0)
    for step in steps:
        rows = _apply(communicator, step, rows, cut.size, purpose)
    return rows.movedim(0, cut.dim)


def _apply(
    communicator: Communicator, step: Step, rows: torch.Tensor, size: int, purpose: str
) -> torch.Tensor:
    mesh, rank = communicator.mesh, communicator.rank
    fault = communicator.fault if purpose != "loss" else ""
    before = shard_interval(mesh, step.source.shards, size, rank)
    after = shard_interval(mesh, step.target.shards, size, rank)
    members = mesh.members(rank, step.axes)
    if fault == "group_order":  # the position in the group taken for the position in the cut
        members = tuple(
            sorted(members, key=lambda m: [mesh.coordinates(m)[axis] for axis in step.axes])
        )
    if step.kind == "all_gather":
        width = shard_width(mesh, step.source.shards, size)
        gathered = communicator.all_gather(_lengthen(rows, width), step.axes, purpose)
        out = rows.new_zeros(after[1] - after[0], *rows.shape[1:])
        for part, member in zip(gathered, members, strict=True):
            start, stop = shard_interval(mesh, step.source.shards, size, member)
            out[start - after[0] : stop - after[0]] = part[: stop - start]
        return out
    if step.kind == "reduce_scatter" and fault != "drop_reduction":
        width = shard_width(mesh, step.target.shards, size)
        parts = rows.new_zeros(len(members), width, *rows.shape[1:])
        for part, member in zip(parts, members, strict=True):
            start, stop = shard_interval(mesh, step.target.shards, size, member)
            part[: stop - start] = rows[start - before[0] : stop - before[0]]
        total = communicator.reduce_scatter(parts, step.axes, purpose)[: after[1] - after[0]]
        return total / len(members) if fault == "average" else total
    if step.kind == "all_reduce":
        if fault == "drop_reduction":
            return rows
        total = communicator.all_reduce(rows, step.axes, purpose)
        return total / len(members) if fault == "average" else total
    if step.kind == "pad":
        out = rows.new_zeros(after[1] - after[0], *rows.shape[1:])
        out[before[0] - after[0] : before[1] - after[0]] = rows
        return out
    if step.kind == "mask":
        coordinates = mesh.coordinates(rank)
        keeps = all(coordinates[axis] == 0 for axis in step.axes) or fault == "double_count"
        return rows if keeps else torch.zeros_like(rows)
    return rows[after[0] - before[0] : after[1] - before[0]]


def _lengthen(rows: torch.Tensor, width: int) -> torch.Tensor:
    """`rows` with zero rows up to `width`: flat collectives want equal parts."""
    if len(rows) == width:
        return rows
    return torch.cat([rows, rows.new_zeros(width - len(rows), *rows.shape[1:])])


def slice_to(full: torch.Tensor, mesh: Mesh, layout: Layout, cut: Cut, rank: int) -> torch.Tensor:
    """The part of a whole tensor that `rank` holds in `layout`."""
    start, stop = shard_interval(mesh, layout.shards, cut.size, rank)
    return full.narrow(cut.dim, start, stop - start)
