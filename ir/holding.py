"""What a chain of cuts leaves of one dim: the arithmetic below Layout, cached."""

import itertools
from functools import lru_cache
from typing import TypeAlias

from shardwise.ir.index_set import IndexSet
from shardwise.ir.placement import Cut, Select, kept_count, positions

Link: TypeAlias = tuple[Cut, int, int]
"""A cut, the number of ranks on its axis, and the coordinate on it."""

Chain: TypeAlias = tuple[Link, ...]
"""The cuts of one dim as one rank sees them, outermost first."""


@lru_cache(maxsize=1 << 16)
def held(chain: Chain, size: int) -> IndexSet:
    """Indices of a dim of global `size` that are left after the cuts; InvalidValueError."""
    if not chain:
        return IndexSet.span(0, size)
    outer = held(chain[:-1], size)
    cut, ranks, coordinate = chain[-1]
    return outer.take(positions(cut, outer.count(), coordinate, ranks))


@lru_cache(maxsize=1 << 16)
def local_size(chain: Chain, size: int) -> int:
    """`held(chain, size).count()`, without the intervals of the result."""
    for cut, ranks, coordinate in chain:
        size = kept_count(cut, size, coordinate, ranks)
    return size


@lru_cache(maxsize=1 << 14)
def largest_local_size(cuts: tuple[tuple[Cut, int], ...], size: int) -> int:
    """The largest `local_size` over all coordinates; `cuts` are (cut, ranks).

    Coordinate 0 has the longest chunk of every section, so only a Select needs all of its own.
    """
    choices = (range(ranks) if isinstance(cut, Select) else (0,) for cut, ranks in cuts)
    return max(
        local_size(tuple((*cut, at) for cut, at in zip(cuts, coordinates, strict=True)), size)
        for coordinates in itertools.product(*choices)
    )
