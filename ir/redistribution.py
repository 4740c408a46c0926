"""Redistributions of a value and the collective steps that they are lowered to."""

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.layout import (
    Entry,
    Layout,
    Partial,
    Placement,
    Replicate,
    Select,
    Shape,
    Shard,
)
from shardwise.ir.mesh import Mesh
from shardwise.ir.scanner import check_text, shown
from shardwise.ir.value_layout import ValueLayout

_STEP = re.compile(r"([a-z_]+)\(([a-z0-9_]+(?:,[a-z0-9_]+)*)\): (.+) -> (.+)")
_ARROW = "->"


class StepKind(StrEnum):
    """What a step does; `slice` and `mask` are local."""

    ALL_GATHER = "all_gather"
    """cut -> replicated: every rank of a group gets the union of what its members hold."""

    ALL_REDUCE = "all_reduce"
    """Partial -> replicated."""

    REDUCE_SCATTER = "reduce_scatter"
    """Partial -> cut."""

    ALL_TO_ALL = "all_to_all"
    """cut of one dim -> cut of another: each rank sends to each what it holds of its target."""

    SLICE = "slice"
    """replicated -> cut: each rank keeps its part."""

    MASK = "mask"
    """values -> addends to sum: R -> P, I -> I partial, S -> P, I partial -> P.

    An element that several ranks of the group hold as a value is kept by the first of them and
    zero on the others; where the target is larger it is filled up with zeros.
    R -> P(max) and R -> P(min) keep everything.
    """


@dataclass(frozen=True, slots=True)
class CollectiveStep:
    """One collective (or local) step over the groups of some axes.

    `axes` give the flat order of the group, the first slowest (`mesh.groups(axes)`): that of
    the cuts of the one dim that is gathered or scattered, or left by an all_to_all. `source`
    and `target` are the layouts before and after; they differ on `axes` only, as the kind says,
    and cuts are added and removed innermost. Text: `all_gather(x0,x1): x0:S(0) x1:S(0) -> R`.
    Raises InvalidValueError, parse ParseError.
    """

    kind: StepKind
    axes: tuple[str, ...]
    source: Layout
    target: Layout

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", _kind(self.kind))
        if not self.axes or len(set(self.axes)) != len(self.axes):
            raise InvalidValueError(f"step axes {shown(self.axes)}: name one or more, each once")
        for axis in dict.fromkeys((*self.axes, *self.source.axes, *self.target.axes)):
            before, after = self.source.placement(axis), self.target.placement(axis)
            fits = _changes(self.kind, before, after) if axis in self.axes else before == after
            if not fits:
                raise InvalidValueError(
                    f"step {shown(str(self))} turns {axis} from {before} to {after}, which "
                    f"{self.kind} "
                    f"over {','.join(self.axes)} does not do; change the kind or the layouts"
                )
        if self.kind in _REDUCTIONS and len({self.source.placement(a) for a in self.axes}) > 1:
            raise InvalidValueError(
                f"step {shown(str(self))} reduces by several ops; use a step for each"
            )
        for dim in {*self.source.cut_dims, *self.target.cut_dims}:
            sides = self._kept(self.source, dim), self._kept(self.target, dim)
            if sides[0] != sides[1] or None in sides:
                raise InvalidValueError(
                    f"step {shown(str(self))} changes a cut of dim {dim} that is not innermost; "
                    "gather the inner ones first"
                )
        if not self.is_local and self.kind is not StepKind.ALL_REDUCE:
            side = self.target if self.kind is StepKind.REDUCE_SCATTER else self.source
            dims = {_dim(side.placement(axis)) for axis in self.axes}
            order = tuple(axis for axis in side.axes if axis in self.axes)
            if len(dims) > 1 or order != self.axes:
                raise InvalidValueError(
                    f"step {shown(str(self))} names axes that are no run of cuts of one dim, in "
                    "order; "
                    "use a step for each dim"
                )

    def _kept(self, layout: Layout, dim: int) -> tuple[Entry, ...] | None:
        """Cuts of `dim` outside `axes`; None when one stands inside a cut that changes."""
        cuts = layout.cuts(dim)
        kept = tuple(entry for entry in cuts if entry[0] not in self.axes)
        return kept if cuts[: len(kept)] == kept else None

    @property
    def op(self) -> str:
        """What a reduction combines by; raises InvalidValueError for other kinds."""
        placement = self.source.placement(self.axes[0])
        if self.kind not in _REDUCTIONS or not isinstance(placement, Partial):
            raise InvalidValueError(f"step {shown(str(self))} reduces nothing, so it has no op")
        return placement.op

    @property
    def is_local(self) -> bool:
        """Whether nothing is sent."""
        return self.kind in (StepKind.SLICE, StepKind.MASK)

    def __str__(self) -> str:
        return f"{self.kind}({','.join(self.axes)}): {self.source} {_ARROW} {self.target}"

    @classmethod
    def parse(cls, text: str) -> "CollectiveStep":
        """Inverse of `str`; raises ParseError."""
        match = _STEP.fullmatch(check_text(text, "a step", "all_gather(x0): x0:S(0) -> R"))
        if match is None:
            raise ParseError(
                f"step {shown(text)} does not parse; expected like all_gather(x0): x0:S(0) -> R"
            )
        axes = tuple(match[2].split(","))
        try:
            layouts = Layout.parse(match[3]), Layout.parse(match[4])
            return cls(_kind(match[1]), axes, *layouts)
        except (InvalidValueError, ParseError) as error:
            raise ParseError(f"step {shown(text)}: {error}") from error


@dataclass(frozen=True, slots=True)
class Redistribution:
    """A value goes from one layout to another, and its gradient the opposite way.

    Lower `*forward` and `*backward` with `shardwise.ir.lowering.lower`.
    Text: `x0:S(1) -> R | x0:P`. Parse raises ParseError.
    """

    source: ValueLayout
    target: ValueLayout

    @property
    def forward(self) -> tuple[Layout, Layout]:
        """From, to, of the value."""
        return self.source.forward, self.target.forward

    @property
    def backward(self) -> tuple[Layout, Layout]:
        """From, to, of the gradient."""
        return self.target.gradient, self.source.gradient

    def __str__(self) -> str:
        return f"{self.source} {_ARROW} {self.target}"

    @classmethod
    def parse(cls, text: str) -> "Redistribution":
        """Inverse of `str`; raises ParseError."""
        parts = check_text(text, "a redistribution", "x0:S(1) -> R | x0:P").split(_ARROW)
        if len(parts) != 2:
            raise ParseError(f"redistribution {shown(text)}: expected like x0:S(1) -> R | x0:P")
        return cls(ValueLayout.parse(parts[0]), ValueLayout.parse(parts[1]))


def step_bytes(step: CollectiveStep, shape: Shape, itemsize: int, mesh: Mesh) -> int:
    """Message bytes per rank of a step on a tensor of global `shape`.

    all_gather and reduce_scatter: the gathered tensor; all_reduce: the local tensor;
    all_to_all: the local tensor before; slice, mask: 0. Where ranks hold unequal parts, all
    send blocks of the size of the largest (collectives need equal ones); that is counted.
    """
    if step.is_local:
        return 0
    source = step.source.largest_local_shape(shape, mesh)
    target = step.target.largest_local_shape(shape, mesh)
    if step.kind is StepKind.ALL_REDUCE:
        return math.prod(source) * itemsize
    # The cut side is the smaller one in each dim: a gathered dim in the source, a scattered one
    # in the target; an all-to-all block is cut by its sender in one, its receiver in another.
    block = math.prod(min(pair) for pair in zip(source, target, strict=True))
    return mesh.group_size(step.axes) * block * itemsize


_REDUCTIONS = (StepKind.ALL_REDUCE, StepKind.REDUCE_SCATTER)


def _kind(name: str) -> StepKind:
    try:
        return StepKind(name)
    except ValueError as error:
        known = ", ".join(StepKind)
        raise InvalidValueError(
            f"step kind {shown(name)} is not known; use one of {known}"
        ) from error


def _changes(kind: StepKind, before: Placement, after: Placement) -> bool:
    """Whether a step of this kind turns `before` into `after` on its axes."""
    cut_before, cut_after = _is_value_cut(before), _is_value_cut(after)
    match kind:
        case StepKind.ALL_GATHER:
            return cut_before and isinstance(after, Replicate)
        case StepKind.ALL_REDUCE:
            return isinstance(before, Partial) and isinstance(after, Replicate)
        case StepKind.REDUCE_SCATTER:
            return isinstance(before, Partial) and cut_after
        case StepKind.ALL_TO_ALL:
            return cut_before and cut_after and _dim(before) != _dim(after)
        case StepKind.SLICE:
            return isinstance(before, Replicate) and cut_after
        case StepKind.MASK:
            if isinstance(after, Select) and isinstance(before, Select):
                return after.partial and before == Select(after.dim, after.intervals)
            if isinstance(before, Replicate):
                return isinstance(after, Partial)
            return isinstance(before, Shard | Select) and after == Partial("sum")


def _is_value_cut(placement: Placement) -> bool:
    return isinstance(placement, Shard) or (isinstance(placement, Select) and not placement.partial)


def _dim(placement: Placement) -> int:
    return placement.dim if isinstance(placement, Shard | Select) else -1
