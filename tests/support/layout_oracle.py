"""Layouts in plain numpy: what each rank holds, by cutting arrays of indices step by step.

Shares no code with the arithmetic that it checks: only the values (Layout, Mesh) are read.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardwise.ir.layout import Layout, Partial, Placement, Select, Shard
from shardwise.ir.mesh import Mesh, MeshAxis

Array = npt.NDArray[np.float64]
Indices = tuple[npt.NDArray[np.int64], ...]
Shape = tuple[int, ...]


def chunk(array: npt.NDArray[np.int64], ranks: int, coordinate: int) -> npt.NDArray[np.int64]:
    """torch.chunk of a list, missing chunks empty."""
    step = (len(array) + ranks - 1) // ranks
    return array[coordinate * step : (coordinate + 1) * step]


def cut(
    array: npt.NDArray[np.int64], placement: Placement, ranks: int, coordinate: int
) -> npt.NDArray[np.int64]:
    """What one placement leaves of a list of indices."""
    if isinstance(placement, Select):
        start, stop = placement.intervals[coordinate]
        return array[start:stop]
    assert isinstance(placement, Shard)
    if placement.sections:
        assert sum(placement.sections) == len(array)
        pieces = np.split(array, np.cumsum(placement.sections)[:-1])
    else:
        assert isinstance(placement.outer, int)
        pieces = np.split(array, placement.outer)
    return np.concatenate([chunk(piece, ranks, coordinate) for piece in pieces])


def indices(layout: Layout, shape: Shape, mesh: Mesh, coordinates: dict[str, int]) -> Indices:
    """Per dim the global indices that the rank at `coordinates` holds, in local order."""
    held = [np.arange(size) for size in shape]
    sizes = {axis.name: axis.size for axis in mesh.axes}
    for name, placement in layout.entries:
        if not isinstance(placement, Partial):
            assert isinstance(placement, Shard | Select)
            dim = placement.dim
            held[dim] = cut(held[dim], placement, sizes[name], coordinates[name])
    return tuple(held)


def all_indices(layout: Layout, shape: Shape, mesh: Mesh) -> list[Indices]:
    """`indices` of every rank, by rank number."""
    return [indices(layout, shape, mesh, mesh.coordinates(rank)) for rank in range(mesh.world_size)]


def elements(held: Indices, shape: Shape) -> set[int]:
    """Flat numbers of the elements in a product of indices."""
    return set(np.arange(np.prod(shape, dtype=int)).reshape(shape)[np.ix_(*held)].ravel())


def combinations(mesh: Mesh, axes: tuple[str, ...]) -> Iterator[dict[str, int]]:
    """All coordinates on some axes."""
    for values in itertools.product(*(range(mesh.axis(name).size) for name in axes)):
        yield dict(zip(axes, values, strict=True))


# --- drawing meshes and layouts ---------------------------------------------------------------


@st.composite
def meshes(draw: st.DrawFn, max_axes: int = 4, max_ranks: int = 24) -> Mesh:
    """1 to `max_axes` axes of 1 to 4 ranks, in any rank order."""
    count = draw(st.integers(1, max_axes))
    names = [f"x{i}" for i in range(count)]
    if count > 1 and draw(st.booleans()):
        names[-1] = "data"
    axes: list[MeshAxis] = []
    room = max_ranks
    for name in names:
        size = draw(st.integers(1, max(1, min(4, room))))
        room //= size
        axes.append(MeshAxis(name, size, draw(st.sampled_from(["nvlink", "ib"]))))
    return Mesh(tuple(axes), tuple(draw(st.permutations(names))))


shapes = st.lists(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 12, 0]), min_size=1, max_size=3).map(
    tuple
)


@st.composite
def layouts(
    draw: st.DrawFn, mesh: Mesh, shape: Shape, *, addends: bool = True, op: str | None = None
) -> Layout:
    """Any layout that fits the shape: axis orders, outer, sections, Select, Partial."""
    op = op or draw(st.sampled_from(["sum", "sum", "sum", "max", "min"]))
    lists = [[np.arange(size)] for size in shape]
    entries: list[tuple[str, Placement]] = []
    selected: set[int] = set()
    for name in draw(st.permutations(mesh.axis_names)):
        ranks = mesh.axis(name).size
        dim = draw(st.integers(0, len(shape) - 1))
        sizes = {len(array) for array in lists[dim]}
        kinds = ["replicate", "shard", "shard", "shard", "outer", "sections", "select"]
        kind = draw(st.sampled_from([*kinds, "partial", "partial"] if addends else kinds))
        placement: Placement | None = None
        if kind == "partial":
            entries.append((name, Partial(op)))
            continue
        if kind == "outer":
            fits = [k for k in range(2, 7) if all(size % k == 0 for size in sizes)]
            placement = Shard(dim, outer=draw(st.sampled_from(fits))) if fits else None
        elif kind == "sections" and len(sizes) == 1 and max(sizes) > 1:
            placement = Shard(dim, sections=draw(_sections(max(sizes))))
        elif kind == "select" and len(sizes) == 1 and max(sizes) > 0 and dim not in selected:
            selected.add(dim)
            partial = addends and op == "sum" and draw(st.booleans())
            placement = Select(dim, draw(_intervals(max(sizes), ranks)), partial=partial)
        elif kind == "shard":
            placement = Shard(dim)
        if placement is not None:
            lists[dim] = [
                cut(array, placement, ranks, at) for array in lists[dim] for at in range(ranks)
            ]
            entries.append((name, placement))
    return Layout(tuple(entries))


@st.composite
def _sections(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    cuts = draw(st.sets(st.integers(1, size - 1), min_size=1, max_size=min(3, size - 1)))
    edges = [0, *sorted(cuts), size]
    return tuple(b - a for a, b in itertools.pairwise(edges))


@st.composite
def _intervals(draw: st.DrawFn, size: int, ranks: int) -> tuple[tuple[int, int], ...]:
    """Intervals that cover range(size), grown at random so that they overlap."""
    count = min(size, ranks)
    cuts = draw(st.sets(st.integers(1, max(1, size - 1)), min_size=count - 1, max_size=count - 1))
    pairs = list(itertools.pairwise([0, *sorted(cuts), size]))
    pairs += [draw(st.sampled_from(pairs)) for _ in range(ranks - count)]
    grown = [(draw(st.integers(0, a)), draw(st.integers(b, size))) for a, b in pairs]
    keep = draw(st.booleans())
    return tuple(draw(st.permutations(pairs if keep else grown)))
