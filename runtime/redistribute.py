"""Run a redistribution on this rank: the steps that `ir.lowering.lower` gives, one by one.

The planner prices the same steps, so the messages counted here equal those that a plan states.
Pieces that differ in size (uneven chunks) are padded to the largest before they are sent.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import nn

from shardwise.ir.layout import Layout, Replicate, Select
from shardwise.ir.lowering import lower
from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Move
from shardwise.ir.redistribution import CollectiveStep, StepKind, step_bytes
from shardwise.ir.tensor import TensorSpec
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.pieces import (
    Cut,
    Shape,
    cut_of,
    join,
    pack,
    piece_shapes,
    place_into,
    split,
    take,
    unpack,
)


class Router:
    """Redistributes tensors of this rank over a mesh."""

    def __init__(self, mesh: Mesh, communicator: Communicator, device: torch.device) -> None:
        self.mesh, self.communicator, self.device = mesh, communicator, device
        self.rank = communicator.rank
        self._places = mesh.coordinates(self.rank)

    def place(self, axis: str) -> int:
        """This rank's coordinate on an axis."""
        return self._places[axis]

    def group(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """The ranks that differ from this one on these axes only, first axis slowest."""
        return self.mesh.group(axes, self.rank)

    def _members(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        """A declared group of these ranks in whatever order: a sum knows none."""
        wanted = self.group(axes)
        members = set(wanted)
        return next((g for g in self.communicator.groups if set(g) == members), wanted)

    def run(self, x: torch.Tensor, source: Layout, target: Layout, shape: Shape) -> torch.Tensor:
        """The local part under `target` of a global tensor of `shape` that lies in `source`.

        Returns `x` itself where nothing is to be done; may return a view of it for slices. Not
        differentiable (see `Redistribution`).
        """
        for step in lower(source, target, self.mesh):
            x = _STEPS[step.kind](self, x, step, shape)
        return x

    def sum_over_world(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks."""
        return self.communicator.all_reduce(x, tuple(range(self.mesh.world_size)))

    # --- one step each ------------------------------------------------------------------------

    def _slice(self, x: torch.Tensor, step: CollectiveStep, shape: Shape) -> torch.Tensor:
        for axis in step.target.axes:
            if axis in step.axes:
                cut = cut_of(step.target, axis)
                x = take(x, cut, self.mesh.axis(axis).size, self._places[axis])
        return x

    def _mask(self, x: torch.Tensor, step: CollectiveStep, shape: Shape) -> torch.Tensor:
        """Values become addends: R -> P keeps the value at the first place, S -> P puts the part
        among zeros, a Select keeps an index where the first of its holders has it. Of a maximum or
        minimum every copy is an addend as it is."""
        if step.target.op != "sum":
            return x
        layout = step.source
        for axis in reversed(step.axes):
            before, after = layout.placement(axis), step.target.placement(axis)
            if isinstance(before, Replicate):
                x = x if self._places[axis] == 0 else torch.zeros_like(x)
                continue
            if isinstance(before, Select) and not before.partial:
                x = self._first_holders(x, before, axis)
            if not isinstance(after, Select):
                layout = layout.without((axis,))
                whole = x.new_zeros(layout.local_shape(shape, self.mesh, self.rank))
                place_into(
                    whole, x, cut_of(step.source, axis), self.mesh.axis(axis).size, self.place(axis)
                )
                x = whole
        return x

    def _first_holders(self, x: torch.Tensor, cut: Select, axis: str) -> torch.Tensor:
        """Zero where a place before this one selects the same index."""
        place = self._places[axis]
        start, stop = cut.intervals[place]
        x = x.clone()
        for first, last in cut.intervals[:place]:
            low, high = max(first, start), min(last, stop)
            if low < high:
                x.narrow(cut.dim, low - start, high - low).zero_()
        return x

    def _all_reduce(self, x: torch.Tensor, step: CollectiveStep, shape: Shape) -> torch.Tensor:
        return self.communicator.all_reduce(x.contiguous(), self._members(step.axes), op=step.op)

    def _all_gather(self, x: torch.Tensor, step: CollectiveStep, shape: Shape) -> torch.Tensor:
        cuts = self._cuts(step.source, step.axes)
        full = step.target.local_shape(shape, self.mesh, self.rank)
        shapes = piece_shapes(full, cuts)
        packed = pack([x], max(prod(s) for s in shapes))[0]
        gathered = self.communicator.all_gather(packed, self.group(step.axes))
        pieces = [unpack(row, s) for row, s in zip(gathered, shapes, strict=True)]
        return join(pieces, full, cuts)

    def _reduce_scatter(self, x: torch.Tensor, step: CollectiveStep, shape: Shape) -> torch.Tensor:
        cuts = self._cuts(step.target, step.axes)
        pieces = split(x, cuts)
        packed = pack(pieces, max(piece.numel() for piece in pieces))
        mine = self.communicator.reduce_scatter(packed, self.group(step.axes), op=step.op)
        return unpack(mine, step.target.local_shape(shape, self.mesh, self.rank))

    def _all_to_all(self, x: torch.Tensor, step: CollectiveStep, shape: Shape) -> torch.Tensor:
        leaving = self._cuts(step.source, step.axes)
        entering = self._cuts(step.target, step.axes)
        group = self.group(step.axes)
        mine = group.index(self.rank)
        full = step.source.without(step.axes).local_shape(shape, self.mesh, self.rank)
        sources = piece_shapes(full, leaving)
        received = [piece_shapes(source, entering)[mine] for source in sources]
        block = step_bytes(step, shape, 1, self.mesh) // len(group)
        packed = self.communicator.all_to_all(pack(split(x, entering), block), group)
        pieces = [unpack(row, s) for row, s in zip(packed, received, strict=True)]
        return join(pieces, step.target.local_shape(shape, self.mesh, self.rank), leaving)

    def _cuts(self, layout: Layout, axes: tuple[str, ...]) -> list[tuple[Cut, int]]:
        return [(cut_of(layout, axis), self.mesh.axis(axis).size) for axis in axes]


_STEPS: Mapping[StepKind, Callable[[Router, torch.Tensor, CollectiveStep, Shape], torch.Tensor]] = {
    StepKind.SLICE: Router._slice,
    StepKind.MASK: Router._mask,
    StepKind.ALL_REDUCE: Router._all_reduce,
    StepKind.ALL_GATHER: Router._all_gather,
    StepKind.REDUCE_SCATTER: Router._reduce_scatter,
    StepKind.ALL_TO_ALL: Router._all_to_all,
}


class Redistribution(nn.Module):
    """A move as a module: x local, then the global sizes -> the value in the target's layout.

    Backward takes the gradient from the target's gradient layout to the source's.
    """

    def __init__(self, move: Move, router: Router, sizes: tuple[str, ...]) -> None:
        super().__init__()
        self.move, self.router, self.sizes = move, router, sizes

    def forward(self, x: torch.Tensor, *sizes: int) -> torch.Tensor:
        """Runs the move at these sizes."""
        known = dict(zip(self.sizes, sizes, strict=True))
        if not self.move.needs_gradient:
            with torch.no_grad():
                source, target = self.move.source.forward, self.move.target.forward
                shape = _shape(self.move.spec, known)
                return self.router.run(x, source.at(known), target.at(known), shape)
        result: torch.Tensor = _Moved.apply(x, self.move, self.router, known)  # type: ignore[no-untyped-call]
        return result

    def extra_repr(self) -> str:
        """Layouts before and after."""
        return f"{self.move.source} -> {self.move.target}"


def _shape(spec: TensorSpec, sizes: Mapping[str, int]) -> Shape:
    return tuple(int(length) for length in spec.at(sizes).shape)


class _Moved(torch.autograd.Function):
    """The forward layout changes forward, the gradient layout backward."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, move: Move, router: Router, sizes: Mapping[str, int]
    ) -> torch.Tensor:
        shape = _shape(move.spec, sizes)
        ctx.source, ctx.target = move.source.gradient.at(sizes), move.target.gradient.at(sizes)
        ctx.router, ctx.shape = router, shape
        result = router.run(x, move.source.forward.at(sizes), move.target.forward.at(sizes), shape)
        return result.view_as(result) if result is x else result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradient = ctx.router.run(gradients[0], ctx.target, ctx.source, ctx.shape)
        return gradient, None, None, None
