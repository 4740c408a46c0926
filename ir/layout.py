"""Layout: how a tensor lies on the mesh, as an ordered list of placements, one per axis."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from shardwise.ir.errors import InvalidValueError, ParseError, UnsupportedError
from shardwise.ir.holding import Chain, held, largest_local_size, local_size
from shardwise.ir.index_set import IndexSet
from shardwise.ir.mesh import Mesh
from shardwise.ir.placement import Cut as Cut
from shardwise.ir.placement import Partial as Partial
from shardwise.ir.placement import Placement as Placement
from shardwise.ir.placement import Replicate as Replicate
from shardwise.ir.placement import Select as Select
from shardwise.ir.placement import Shard as Shard
from shardwise.ir.placement import parse_placement, placement_at
from shardwise.ir.scanner import check_text, shown

Shape = tuple[int, ...]
Entry = tuple[str, Placement]

_AXIS = re.compile(r"[a-z][a-z0-9_]*")
_REPLICATED = "R"


@dataclass(frozen=True, slots=True)
class Layout:
    """Ordered (axis, placement) pairs; an axis that is not named is Replicate.

    Entries are applied first to last, each to the local dim that those before it left. So
    entries on one dim nest, the last being the innermost; the order between dims, and where a
    Partial stands, mean nothing (`normalised` removes that freedom). A rank's local tensor is
    the product of one index set per dim, elements in increasing global order.
    Text: `R`, or `x0:S(1) x1:S(0,outer=3) data:P`. Raises InvalidValueError for an axis named
    twice, a stored Replicate, two Selects of one dim and addends of different ops; parse raises
    ParseError.
    """

    entries: tuple[Entry, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.entries, tuple) or not all(
            isinstance(entry, tuple) and len(entry) == 2 for entry in self.entries
        ):
            raise InvalidValueError(
                f"layout entries {shown(self.entries)}: give a tuple of (axis, placement) pairs"
            )
        names = [name for name, _ in self.entries]
        for name, placement in self.entries:
            if not isinstance(name, str) or not _AXIS.fullmatch(name):
                raise InvalidValueError(
                    f"layout axis {shown(name)} is not [a-z][a-z0-9_]*; rename it"
                )
            if not isinstance(placement, Partial | Shard | Select):
                raise InvalidValueError(
                    f"layout entry {name}:{shown(str(placement))} is no Partial, Shard or Select; "
                    "leave replicated axes out"
                )
        if len(set(names)) != len(names):
            raise InvalidValueError(
                f"layout names an axis twice: {shown(names)}; give each axis one placement"
            )
        selected = [p.dim for _, p in self.entries if isinstance(p, Select)]
        if len(set(selected)) != len(selected):
            raise InvalidValueError(
                f"layout {shown(str(self))} selects twice from one dim, so that what copies "
                "share would "
                "depend on the rank; use one Select, or a Shard for the other axis"
            )
        if len({p.op if isinstance(p, Partial) else "sum" for _, p in self.addends}) > 1:
            raise InvalidValueError(
                f"layout {shown(str(self))} has addends of different ops, whose order would "
                "matter; "
                "combine those of one op first"
            )

    # --- parts ------------------------------------------------------------------------------

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes that are not replicated, in order."""
        return tuple(name for name, _ in self.entries)

    def placement(self, axis: str) -> Placement:
        """What `axis` does; Replicate for an axis that is not named."""
        return next((p for name, p in self.entries if name == axis), Replicate())

    def cuts(self, dim: int) -> tuple[tuple[str, Cut], ...]:
        """The entries that cut `dim`, outermost first."""
        return tuple(
            (name, p) for name, p in self.entries if isinstance(p, Shard | Select) and p.dim == dim
        )

    @property
    def cut_dims(self) -> tuple[int, ...]:
        """Dims that are cut, increasing."""
        return tuple(sorted({p.dim for _, p in self.entries if isinstance(p, Shard | Select)}))

    @property
    def addends(self) -> frozenset[tuple[str, Partial | Select]]:
        """Entries under which ranks hold addends instead of values: Partial, partial Select."""
        return frozenset(
            (name, p)
            for name, p in self.entries
            if isinstance(p, Partial) or (isinstance(p, Select) and p.partial)
        )

    @property
    def op(self) -> str | None:
        """What the addends are combined by; None where there are none."""
        return next((p.op if isinstance(p, Partial) else "sum" for _, p in self.addends), None)

    def without(self, axes: tuple[str, ...]) -> "Layout":
        """The layout with these axes replicated."""
        return Layout(tuple(entry for entry in self.entries if entry[0] not in axes))

    def at(self, sizes: Mapping[str, int]) -> "Layout":
        """The layout with `sizes` put into symbolic outers; raises InvalidValueError."""
        return Layout(tuple((name, placement_at(p, sizes)) for name, p in self.entries))

    def normalised(self, mesh: Mesh | None = None) -> "Layout":
        """An equal layout in the one order and spelling that equal layouts share.

        By dim, innermost last; then the Partials by axis name; equal sections become `outer`.
        With a mesh, axes of size 1 are left out. Different normal forms may still give equal
        index sets for some shapes: `equivalent` decides that.
        """
        kept = [
            (name, _spelled(p))
            for name, p in self.entries
            if mesh is None or mesh.axis(name).size > 1
        ]
        cuts = [entry for entry in kept if not isinstance(entry[1], Partial)]
        partials = [entry for entry in kept if isinstance(entry[1], Partial)]
        cuts.sort(key=lambda entry: _dim(entry[1]))
        return Layout((*cuts, *sorted(partials, key=lambda entry: entry[0])))

    # --- on a mesh --------------------------------------------------------------------------

    def check(self, shape: Shape, mesh: Mesh) -> None:
        """Raise InvalidValueError unless the layout fits the shape on every rank."""
        for _ in _each_rank(shape, mesh, self):
            pass

    def local_shape(self, shape: Shape, mesh: Mesh, rank: int) -> Shape:
        """Shape of the local tensor of `rank`; raises InvalidValueError for a misfit."""
        coordinates = mesh.coordinates(rank)
        _check_dims(self, shape)
        return tuple(
            local_size(_chain(self, dim, mesh, coordinates), size) for dim, size in enumerate(shape)
        )

    def largest_local_shape(self, shape: Shape, mesh: Mesh) -> Shape:
        """Per dim the largest local size of any rank; the block that equal messages need."""
        _check_dims(self, shape)
        return tuple(
            largest_local_size(
                tuple((cut, mesh.axis(name).size) for name, cut in self.cuts(dim)), size
            )
            for dim, size in enumerate(shape)
        )

    def index_sets(self, shape: Shape, mesh: Mesh, rank: int) -> tuple[IndexSet, ...]:
        """Global indices that `rank` holds, one set per dim; raises InvalidValueError."""
        return _index_sets(self, shape, mesh, mesh.coordinates(rank))

    # --- text -------------------------------------------------------------------------------

    def __str__(self) -> str:
        return " ".join(f"{name}:{p}" for name, p in self.entries) or _REPLICATED

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Inverse of `str`; raises ParseError."""
        words = check_text(text, "a layout", "R or 'x0:S(1) data:P'").split()
        if words == [_REPLICATED]:
            return cls(())
        entries: list[Entry] = []
        for word in words:
            name, colon, placement = word.partition(":")
            if not colon:
                raise ParseError(
                    f"layout {shown(text)}: {shown(word)} is no axis:placement; expected R, or "
                    "entries "
                    "like x0:S(1) data:P"
                )
            entries.append((name, parse_placement(placement)))
        if not entries:
            raise ParseError("layout '' is empty; expected R, or entries like x0:S(1) data:P")
        try:
            return cls(tuple(entries))
        except InvalidValueError as error:
            raise ParseError(f"layout {shown(text)}: {error}") from error


# --- relations --------------------------------------------------------------------------------


def missing_count(source: Layout, target: Layout, shape: Shape, mesh: Mesh, rank: int) -> int:
    """Elements that `rank` needs under `target` and does not hold under `source`.

    Times the item size, these are exactly the bytes that must reach the rank. Where `source`
    holds addends that `target` does not want, no value is held, so all is missing.
    """
    needed = target.index_sets(shape, mesh, rank)
    total = _volume(needed)
    if not _addends(source, mesh) <= _addends(target, mesh):
        return total
    held = source.index_sets(shape, mesh, rank)
    return total - _volume(tuple(n.intersection(h) for n, h in zip(needed, held, strict=True)))


def refines(a: Layout, b: Layout, shape: Shape, mesh: Mesh) -> bool:
    """Whether every rank holds under `b` all that it holds under `a`, addends alike.

    Then b -> a is a local slice. Layouts refine themselves.
    """
    return _addends(a, mesh) == _addends(b, mesh) and all(
        _volume(held_a) == 0 or all(x.issubset(y) for x, y in zip(held_a, held_b, strict=True))
        for held_a, held_b in _each_rank(shape, mesh, a, b)
    )


def equivalent(a: Layout, b: Layout, shape: Shape, mesh: Mesh) -> bool:
    """Whether every rank holds the same under both: equal index sets, equal addends."""
    return _addends(a, mesh) == _addends(b, mesh) and all(
        held_a == held_b or _volume(held_a) == _volume(held_b) == 0
        for held_a, held_b in _each_rank(shape, mesh, a, b)
    )


def to_dtensor_placements(layout: Layout, mesh: Mesh) -> tuple[tuple[str, int | str], ...]:
    """DTensor's placements, one per mesh axis in order, as data without torch.

    They are ("shard", dim), ("partial", op) and ("replicate", ""). DTensor applies axes in mesh
    order and has no public placement for outer, sections or Select; raises UnsupportedError for
    those and for entries on one dim in another order.
    """
    order = {name: at for at, name in enumerate(mesh.axis_names)}
    kept = layout.normalised(mesh)
    for dim in kept.cut_dims:
        names = [name for name, _ in kept.cuts(dim)]
        if names != sorted(names, key=order.__getitem__):
            raise UnsupportedError(
                f"layout {shown(str(layout))} cuts dim {dim} in the order {', '.join(names)}; "
                "DTensor "
                f"cuts in mesh order {', '.join(mesh.axis_names)}; reorder the mesh axes"
            )
    result: list[tuple[str, int | str]] = []
    for name in mesh.axis_names:
        placement = kept.placement(name)
        if isinstance(placement, Replicate):
            result.append(("replicate", ""))
        elif isinstance(placement, Partial):
            result.append(("partial", placement.op))
        elif placement == Shard(placement.dim):
            result.append(("shard", placement.dim))
        else:
            raise UnsupportedError(
                f"layout {shown(str(layout))} has {name}:{placement}, which no public DTensor "
                "placement "
                "expresses; store the sections as separate tensors with plain shards"
            )
    return tuple(result)


# --- internals --------------------------------------------------------------------------------


def _dim(placement: Placement) -> int:
    return placement.dim if isinstance(placement, Shard | Select) else -1


def _spelled(placement: Placement) -> Placement:
    if isinstance(placement, Shard) and len(set(placement.sections)) == 1:
        return replace(placement, outer=len(placement.sections), sections=())
    return placement


def _addends(layout: Layout, mesh: Mesh) -> frozenset[tuple[str, Partial | Select]]:
    return frozenset(entry for entry in layout.addends if mesh.axis(entry[0]).size > 1)


def _volume(sets: tuple[IndexSet, ...]) -> int:
    total = 1
    for one in sets:
        total *= one.count()
    return total


def _check_dims(layout: Layout, shape: Shape) -> None:
    if not all(type(size) is int and size >= 0 for size in shape):
        raise InvalidValueError(
            f"a tensor of shape {shown(shape)}: sizes are ints of at least 0; convert them"
        )
    for dim in layout.cut_dims:
        if dim >= len(shape):
            raise InvalidValueError(
                f"layout {shown(str(layout))} cuts dim {dim} of a tensor of shape {shape}, which "
                "has "
                f"{len(shape)} dims; use another layout"
            )


def _chain(layout: Layout, dim: int, mesh: Mesh, coordinates: Mapping[str, int]) -> Chain:
    return tuple((cut, mesh.axis(name).size, coordinates[name]) for name, cut in layout.cuts(dim))


def _index_sets(
    layout: Layout, shape: Shape, mesh: Mesh, coordinates: Mapping[str, int]
) -> tuple[IndexSet, ...]:
    _check_dims(layout, shape)
    return tuple(
        held(_chain(layout, dim, mesh, coordinates), size) for dim, size in enumerate(shape)
    )


def _each_rank(
    shape: Shape, mesh: Mesh, *layouts: Layout
) -> Iterator[tuple[tuple[IndexSet, ...], ...]]:
    """Index sets under each layout, once per combination of the coordinates that matter."""
    names = sorted({name for layout in layouts for name in layout.axes})
    for values in itertools.product(*(range(mesh.axis(name).size) for name in names)):
        coordinates = dict(zip(names, values, strict=True))
        yield tuple(_index_sets(layout, shape, mesh, coordinates) for layout in layouts)
