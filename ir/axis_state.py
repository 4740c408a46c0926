"""The state of a value on ONE mesh axis, forward and gradient together.

Four states suffice for one axis, and forward and gradient layout go together; this is what makes
the backward right (docs/design/emission.md):

    state     forward               gradient
    Sharded   shard                 the same shard
    WHOLE     replicated            replicated
    READ      replicated, read by   Partial
              work that is sharded
    ADDEND    Partial               replicated

`READ` is written R' in the design, `ADDEND` is P. A value that needs no gradient has no READ: it
is WHOLE instead. Several axes make a `ValueLayout` (`value_layout`), entries in mesh order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import sympy

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.expression import Size as Size
from shardwise.ir.layout import Layout, Partial, Placement, Shard
from shardwise.ir.mesh import Mesh
from shardwise.ir.value_layout import ValueLayout


@dataclass(frozen=True, slots=True)
class Sharded:
    """Dim `dim`, viewed as (outer, mid), is cut in the middle; `outer` counts global blocks."""

    dim: int
    outer: Size = 1

    def __post_init__(self) -> None:
        if self.dim < 0:
            raise InvalidValueError(
                f"Sharded(dim={self.dim}): dims count from 0; use the dim's index from the left"
            )


class Unsharded(Enum):
    """The three states in which every rank of the axis holds the whole shape."""

    WHOLE = "whole"
    READ = "read"
    ADDEND = "addend"


WHOLE, READ, ADDEND = Unsharded.WHOLE, Unsharded.READ, Unsharded.ADDEND
AxisState = Sharded | Unsharded


def value_layout(states: Mapping[str, AxisState], mesh: Mesh) -> ValueLayout:
    """Join the states per axis into one pair of layouts, entries in mesh order."""
    forward: list[tuple[str, Placement]] = []
    gradient: list[tuple[str, Placement]] = []
    earlier: list[tuple[Sharded, int]] = []
    for axis in mesh.axes:
        state = states.get(axis.name, WHOLE)
        if isinstance(state, Sharded):
            placement = Shard(state.dim, outer=_local_outer(state, earlier))
            earlier.append((state, axis.size))
            forward.append((axis.name, placement))
            gradient.append((axis.name, placement))
        elif state is READ:
            gradient.append((axis.name, Partial()))
        elif state is ADDEND:
            forward.append((axis.name, Partial()))
    return ValueLayout(Layout(tuple(forward)), Layout(tuple(gradient)))


def _local_outer(state: Sharded, earlier: list[tuple[Sharded, int]]) -> Size:
    """`state.outer` counted after the axes applied before it have cut the same dim.

    An axis that cut inside the outer part (its own outer divides `state.outer`) leaves fewer
    outer blocks to this one.
    """
    outer = state.outer
    for other, size in earlier:
        if other.dim != state.dim or other.outer == state.outer:
            continue
        blocks = sympy.cancel(sympy.sympify(state.outer) / sympy.sympify(other.outer))
        if sympy.denom(blocks) == 1:
            outer = outer // size if isinstance(outer, int) else sympy.floor(outer / size)
    return outer
