"""Layouts of a parameter in the accumulator experiment, and the steps from one to another.

A parameter is cut along one dim only. Its layout names the axes that cut it, outermost first,
and the axes over which it is Partial (each rank holds an addend). Every other axis is
Replicate. A cut follows `torch.chunk` at each level, so a rank holds one interval of the dim:
`shard_interval`.

Two functions carry the finding:

- `lower` turns (source, target) into steps. `all_gather`, `reduce_scatter` and `all_reduce`
  move bytes; `slice` (R -> S), `pad` (S -> P) and `mask` (R -> P) are local and free.
- `working_layout` picks the layout in which a step accumulates, so that every deposit is free
  on the axes over which the accumulator is stored whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from math import prod

FREE_KINDS = ("slice", "pad", "mask")


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes in parameter order: model axes first, `data` last."""

    axes: tuple[tuple[str, int], ...]
    """(name, size). Model axes vary fastest in the rank number: not the order of the axes."""

    @property
    def names(self) -> tuple[str, ...]:
        """Axis names in parameter order."""
        return tuple(name for name, _ in self.axes)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return prod(size for _, size in self.axes)

    def size(self, axes: tuple[str, ...]) -> int:
        """Number of ranks in a group over `axes`."""
        return prod(size for name, size in self.axes if name in axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Coordinate of `rank` per axis; `data` is slowest, the last model axis fastest."""
        slowest_first = sorted(self.axes, key=lambda axis: axis[0] != "data")
        result = {}
        for name, size in reversed(slowest_first):
            rank, result[name] = divmod(rank, size)
        return result

    def members(self, rank: int, axes: tuple[str, ...]) -> tuple[int, ...]:
        """Ranks that differ from `rank` on `axes` only, ascending as in a process group."""
        mine = self.coordinates(rank)
        others = [name for name in self.names if name not in axes]
        return tuple(
            other
            for other in range(self.world_size)
            if all(self.coordinates(other)[name] == mine[name] for name in others)
        )

    def __str__(self) -> str:
        return " ".join(f"{name}={size}" for name, size in self.axes)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a parameter, or its gradient, lives."""

    shards: tuple[str, ...] = ()
    """Axes that cut the parameter's dim, outermost first."""
    partial: tuple[str, ...] = ()
    """Axes over which each rank holds an addend of the same extent."""

    def state(self, axis: str) -> str:
        """S, P or R on one axis."""
        return "S" if axis in self.shards else "P" if axis in self.partial else "R"

    def __str__(self) -> str:
        entries = [f"{axis}:S" for axis in self.shards] + [f"{axis}:P" for axis in self.partial]
        return " ".join(entries) or "R"


@dataclass(frozen=True, slots=True)
class Step:
    """One local operation or one flat collective over `axes` between two layouts."""

    kind: str
    axes: tuple[str, ...]
    source: Layout
    target: Layout


def shard_interval(mesh: Mesh, shards: tuple[str, ...], size: int, rank: int) -> tuple[int, int]:
    """Half-open interval of a dim of `size` that `rank` holds: nested ceil chunks."""
    coordinates = mesh.coordinates(rank)
    start, stop = 0, size
    for axis in shards:
        chunk = -(-(stop - start) // mesh.size((axis,)))
        low = min(start + coordinates[axis] * chunk, stop)
        start, stop = low, min(low + chunk, stop)
    return start, stop


def shard_width(mesh: Mesh, shards: tuple[str, ...], size: int) -> int:
    """Longest interval: what each rank contributes to a flat collective, padded."""
    for axis in shards:
        size = -(-size // mesh.size((axis,)))
    return size


def lower(source: Layout, target: Layout) -> tuple[Step, ...]:
    """The steps from `source` to `target`, never failing.

    The common prefix of the cuts is kept. A cut that has to go becomes an addend (`pad`) where
    the target is Partial on that axis or the cut is about to be reduce-scattered again;
    otherwise it is gathered. New cuts come from a reduction where the axis is Partial, from a
    slice where it is Replicate. Runs of one kind on neighbouring axes are one flat collective.
    What stays to be reduced to Replicate is reduced when the tensor is smallest: after the new
    cuts, before the gathers.
    """
    steps: list[Step] = []
    shards, partial = list(source.shards), list(source.partial)

    def go(kind: str, axes: tuple[str, ...]) -> None:
        before = steps[-1].target if steps else source
        steps.append(Step(kind, axes, before, Layout(tuple(shards), tuple(sorted(partial)))))

    def reduce_to_replicate() -> None:
        axes = tuple(a for a in partial if a not in target.partial and a not in target.shards)
        if axes:
            partial[:] = [a for a in partial if a not in axes]
            go("all_reduce", axes)

    kept = 0
    while kept < min(len(shards), len(target.shards)) and shards[kept] == target.shards[kept]:
        kept += 1
    added = target.shards[kept:]
    if not added:
        reduce_to_replicate()
    scatters = any(axis in partial for axis in added)

    def leaves_as(axis: str) -> str:
        return "pad" if axis in target.partial or (axis in added and scatters) else "all_gather"

    leaving = tuple(reversed(shards[kept:]))
    for kind, run in groupby(leaving, key=leaves_as):
        axes = tuple(run)[::-1]
        del shards[len(shards) - len(axes) :]
        if kind == "pad":
            partial += axes
        go(kind, axes)
    for is_partial, run in groupby(added, key=lambda axis: axis in partial):
        axes = tuple(run)
        shards += axes
        partial[:] = [a for a in partial if a not in axes]
        go("reduce_scatter" if is_partial else "slice", axes)
    reduce_to_replicate()
    masked = tuple(a for a in target.partial if a not in partial)
    if masked:
        partial += masked
        go("mask", masked)
    return tuple(steps)


def working_layout(mesh: Mesh, stored: tuple[str, ...], deposits: tuple[Layout, ...]) -> Layout:
    """Layout in which one step sums the given gradient layouts; the rule `join` of the finding.

    `stored` are the axes that cut the accumulator of the plan. On every other axis the state
    is the least upper bound of the deposits in R < S < P: going up is free (slice, pad, mask).
    When an order of cuts makes some deposit not free, every S outside `stored` is raised to P,
    which always is.
    """
    free_axes = [name for name in mesh.names if name not in stored]
    states = {
        axis: max((d.state(axis) for d in deposits), key="RSP".index, default="R")
        for axis in free_axes
    }
    cuts = tuple(axis for axis in free_axes if states[axis] == "S")
    pending = tuple(sorted(axis for axis in free_axes if states[axis] == "P"))
    joined = Layout((*stored, *cuts), pending)
    if all(is_free_outside(stored, deposit, joined) for deposit in deposits):
        return joined
    return Layout(stored, tuple(sorted((*pending, *cuts))))


def is_free_outside(stored: tuple[str, ...], source: Layout, target: Layout) -> bool:
    """Whether going from `source` to `target` communicates over axes of `stored` at most."""
    return all(
        step.kind in FREE_KINDS or set(step.axes) <= set(stored) for step in lower(source, target)
    )


def copy_layout(uses: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """Cut of a copy from which every use is a local slice: the common prefix of the uses."""
    result: list[str] = []
    for level in zip(*uses, strict=False):
        if len(set(level)) > 1:
            break
        result.append(level[0])
    return tuple(result)
