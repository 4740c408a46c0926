"""The device mesh: named axes, the link class of each, and the order of the ranks over them."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.scanner import check_text, shown

STAGE = "stage"
"""Name of the pipeline axis; the first axis where there is one."""

DATA = "data"
"""Name of the data axis; the last axis where there is one."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LINK = re.compile(r"[a-z][a-z0-9_-]*")
_AXIS = re.compile(r"([a-z][a-z0-9_]*)=([1-9][0-9]{0,8})@([a-z][a-z0-9_-]*)")
_RANKS = "ranks"
_FORM = "expected like 'x0=4@nvlink data=2@ib', then 'ranks=data,x0' if unusual, or '1'"


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One axis of the mesh. Text: `x0=4@nvlink`. Raises InvalidValueError, parse ParseError."""

    name: str
    """[a-z][a-z0-9_]*, not `ranks` (a keyword of the text form)."""

    size: int
    """Ranks along the axis, at least 1."""

    link: str
    """Link class that a collective over the axis uses, as in the hardware profile: `nvlink`."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InvalidValueError(
                f"mesh axis name {shown(self.name)} is not [a-z][a-z0-9_]*; use a name like x0"
            )
        if self.name == _RANKS:
            raise InvalidValueError("mesh axis name 'ranks' is reserved; use a name like x0")
        if type(self.size) is not int or not 1 <= self.size < 10**9:
            raise InvalidValueError(
                f"mesh axis {self.name} has size {shown(self.size)}; use an int of at least 1"
            )
        if not isinstance(self.link, str) or not _LINK.fullmatch(self.link):
            raise InvalidValueError(
                f"mesh axis {self.name} has link {shown(self.link)}, not [a-z][a-z0-9_-]*; "
                "use a link class like nvlink"
            )

    def __str__(self) -> str:
        return f"{self.name}={self.size}@{self.link}"

    @classmethod
    def parse(cls, text: str) -> "MeshAxis":
        """Inverse of `str`; raises ParseError."""
        match = _AXIS.fullmatch(check_text(text, "a mesh axis", "x0=4@nvlink"))
        if match is None:
            raise ParseError(f"mesh axis {shown(text)} does not parse; expected like x0=4@nvlink")
        try:
            return cls(match[1], int(match[2]), match[3])
        except InvalidValueError as error:
            raise ParseError(f"mesh axis {shown(text)}: {error}") from error


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks arranged over named axes.

    `axes` are in parameter order: the order in which layouts shard a parameter, `stage` first,
    then model axes, `data` last. `rank_order` names the same axes from the slowest to the
    fastest varying in the global rank number; `()` means the default: stage, data, then the
    model axes, so that model axes lie inside a node. Text: `x0=4@nvlink data=2@ib`, followed by
    ` ranks=data,x0` only when it differs from the default; `1` for one rank without axes.
    Raises InvalidValueError for duplicate or misplaced names.
    """

    axes: tuple[MeshAxis, ...]
    rank_order: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.axes, tuple) or not all(isinstance(a, MeshAxis) for a in self.axes):
            raise InvalidValueError(f"mesh axes {shown(self.axes)} are not a tuple of MeshAxis")
        names = self.axis_names
        if len(set(names)) != len(names):
            raise InvalidValueError(f"mesh axes {shown(names)} repeat a name; rename one")
        if STAGE in names[1:]:
            raise InvalidValueError(f"mesh axes {shown(names)}: put stage first")
        if DATA in names[:-1]:
            raise InvalidValueError(f"mesh axes {shown(names)}: put data last")
        if not self.rank_order:
            object.__setattr__(self, "rank_order", _default_order(names))
        if not isinstance(self.rank_order, tuple) or sorted(self.rank_order) != sorted(names):
            raise InvalidValueError(
                f"rank order {shown(self.rank_order)} does not name each axis of the mesh once; "
                f"use an order of {shown(names)}"
            )

    # --- shape ------------------------------------------------------------------------------

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names in parameter order."""
        return tuple(axis.name for axis in self.axes)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return math.prod(axis.size for axis in self.axes)

    def axis(self, name: str) -> MeshAxis:
        """The axis called `name`; raises InvalidValueError if the mesh has none."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise InvalidValueError(
            f"mesh {shown(str(self))} has no axis {shown(name)}; it has "
            f"{shown(', '.join(self.axis_names)) if self.axes else 'none'}"
        )

    def group_size(self, axis_names: tuple[str, ...]) -> int:
        """Ranks in one group over these axes."""
        return math.prod(self.axis(name).size for name in axis_names)

    def without_stage(self) -> "Mesh":
        """The mesh of one pipeline stage: the same axes and order without `stage`."""
        return Mesh(
            tuple(axis for axis in self.axes if axis.name != STAGE),
            tuple(name for name in self.rank_order if name != STAGE),
        )

    # --- ranks ------------------------------------------------------------------------------

    def coordinates(self, rank: int) -> dict[str, int]:
        """Coordinate of a global rank on each axis, in parameter order of the axes."""
        return dict(zip(self.axis_names, self.coordinate_tuple(rank), strict=True))

    def coordinate_tuple(self, rank: int) -> tuple[int, ...]:
        """`coordinates` without the names: one int per axis, in parameter order."""
        if type(rank) is not int or not 0 <= rank < self.world_size:
            raise InvalidValueError(
                f"rank {shown(rank)} is not in mesh {shown(str(self))}; use 0 to "
                f"{self.world_size - 1}"
            )
        return tuple(
            rank // stride % axis.size
            for axis, stride in zip(self.axes, _strides(self), strict=True)
        )

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """Global rank at the coordinates; inverse of `coordinates`."""
        if not isinstance(coordinates, Mapping) or set(coordinates) != set(self.axis_names):
            raise InvalidValueError(
                f"coordinates {shown(coordinates)} do not name the axes of mesh "
                f"{shown(str(self))}; use a mapping with {shown(self.axis_names)}"
            )
        total = 0
        for axis, stride in zip(self.axes, _strides(self), strict=True):
            at = coordinates[axis.name]
            if type(at) is not int or not 0 <= at < axis.size:
                raise InvalidValueError(
                    f"coordinate {axis.name}={shown(at)} is not in mesh {shown(str(self))}; "
                    f"use an int from 0 to {axis.size - 1}"
                )
            total += at * stride
        return total

    def rank_grid(self) -> npt.NDArray[np.int64]:
        """Global ranks, one array dim per axis in parameter order (for a DeviceMesh)."""
        names = self.axis_names
        sizes = [self.axis(name).size for name in self.rank_order]
        grid = np.arange(self.world_size, dtype=np.int64).reshape(sizes)
        return grid.transpose([self.rank_order.index(name) for name in names])

    def groups(self, axis_names: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """All groups of ranks that differ on these axes only; each rank is in one group.

        Members are ordered by the given names, the first one slowest: the flat order in which a
        gather over these axes concatenates. Groups are ordered by their smallest rank.
        """
        return _groups(self, axis_names)

    def group(self, axis_names: tuple[str, ...], rank: int) -> tuple[int, ...]:
        """The one of `groups(axis_names)` that `rank` is in."""
        self.coordinate_tuple(rank)
        return _group_of(self, axis_names)[rank]

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        """Global ranks of a pipeline stage; entry r is rank r of `without_stage()`."""
        if STAGE not in self.axis_names:
            if type(stage) is int and stage == 0:
                return tuple(range(self.world_size))
            raise InvalidValueError(f"mesh {shown(str(self))} has no stage axis; use stage 0")
        inner = self.without_stage()
        return tuple(
            self.rank({STAGE: stage, **inner.coordinates(rank)}) for rank in range(inner.world_size)
        )

    # --- text -------------------------------------------------------------------------------

    def __str__(self) -> str:
        words = [str(axis) for axis in self.axes] or ["1"]
        if self.rank_order != _default_order(self.axis_names):
            words.append(f"{_RANKS}={','.join(self.rank_order)}")
        return " ".join(words)

    @classmethod
    def parse(cls, text: str) -> "Mesh":
        """Inverse of `str`; raises ParseError."""
        words = check_text(text, "a mesh", "'x0=4@nvlink data=2@ib'").split()
        if words == ["1"]:
            return cls(())
        order: tuple[str, ...] = ()
        if words and words[-1].startswith(f"{_RANKS}="):
            order = tuple(words.pop().removeprefix(f"{_RANKS}=").split(","))
        if not words:
            raise ParseError(f"mesh {shown(text)} has no axis; {_FORM}")
        try:
            return cls(tuple(MeshAxis.parse(word) for word in words), order)
        except (InvalidValueError, ParseError) as error:
            raise ParseError(f"mesh {shown(text)} does not parse: {error}; {_FORM}") from error


def _default_order(names: tuple[str, ...]) -> tuple[str, ...]:
    outer = tuple(name for name in (STAGE, DATA) if name in names)
    return outer + tuple(name for name in names if name not in outer)


@lru_cache(maxsize=1024)
def _strides(mesh: Mesh) -> tuple[int, ...]:
    """By how much the rank grows per coordinate, for each axis in parameter order."""
    strides: dict[str, int] = {}
    stride = 1
    for name in reversed(mesh.rank_order):
        strides[name] = stride
        stride *= mesh.axis(name).size
    return tuple(strides[name] for name in mesh.axis_names)


@lru_cache(maxsize=4096)
def _groups(mesh: Mesh, axis_names: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    if len(set(axis_names)) != len(axis_names):
        raise InvalidValueError(f"group axes {', '.join(axis_names)} repeat a name; name each once")
    size = mesh.group_size(axis_names)
    others = [name for name in mesh.axis_names if name not in axis_names]
    order = [mesh.axis_names.index(name) for name in (*others, *axis_names)]
    rows = mesh.rank_grid().transpose(order).reshape(-1, size).tolist()
    return tuple(sorted((tuple(row) for row in rows), key=min))


@lru_cache(maxsize=4096)
def _group_of(mesh: Mesh, axis_names: tuple[str, ...]) -> Mapping[int, tuple[int, ...]]:
    return {rank: group for group in _groups(mesh, axis_names) for rank in group}
