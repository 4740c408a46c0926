"""Cluster: how many devices there are, and the link class of each level between them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from shardwise.ir.curve import parse_checked
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.scanner import Scanner, check_kinds, shown
from shardwise.ir.span import LINK_NAME, Span, check_count, check_link_name

PROFILE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_FORM: Final = (
    "'h100-8x8 h100-sxm node:8@nvlink cluster:8@ib', then ' shared=2' for ranks that share a "
    "device and ' limit=8000000000' for a memory limit"
)


MAX_RANKS: Final = 131_072
"""Most ranks of a cluster: more than any training run has had, and spans stay quick to find."""


def check_profile_name(name: object, what: str) -> None:
    """Raise InvalidValueError unless `name` can name a cluster, hardware or software file."""
    if not isinstance(name, str) or not PROFILE_NAME.fullmatch(name):
        raise InvalidValueError(
            f"{what} is named {shown(name)}; use lower-case letters, digits, '-', '_' and '.'"
        )


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a cluster: `size` units of the level below, joined by links of one class.

    Text `node:8@nvlink`. Raises InvalidValueError for a size below 1 or a bad name or link.
    """

    name: str
    """Of the unit that the level makes: node, cluster, ..."""
    size: int
    link: str

    def __post_init__(self) -> None:
        check_link_name(self.link)
        if not isinstance(self.name, str) or not LINK_NAME.fullmatch(self.name):
            raise InvalidValueError(
                f"level {shown(self.name)}: a level is named like node or cluster; rename it"
            )
        check_count(self.size, f"size of level {self.name}")

    def __str__(self) -> str:
        return f"{self.name}:{self.size}@{self.link}"

    @classmethod
    def parse(cls, text: str) -> "Level":
        """The inverse of `str`; raises ParseError."""
        return parse_checked(text, "'node:8@nvlink'", cls.scan)

    @classmethod
    def scan(cls, scanner: Scanner) -> "Level":
        """Read one at the scanner's position; raises ParseError or InvalidValueError."""
        name = scanner.need(LINK_NAME, "a level")
        scanner.expect(":")
        size = scanner.integer()
        scanner.expect("@")
        return cls(name, size, scanner.need(LINK_NAME, "a link class"))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices of one hardware profile in nested levels, innermost first.

    Ranks fill units in order: rank r is in unit r // (product of the sizes up to a level) of
    that level, so neighbours in rank number are neighbours in the node. Levels may have size
    1. Text: `h100-8x8 h100-sxm node:8@nvlink cluster:8@ib` (+ ` shared=2`, + `
    limit=80000000000`). Raises InvalidValueError for no levels, equal level names, bad names
    or counts below 1.
    """

    name: str
    hardware: str
    """Name of the hardware profile (`configs/hardware/<name>.toml`)."""
    levels: tuple[Level, ...]
    memory_limit_bytes: int | None = None
    """Bytes that one rank may use; None: all that the device has for it."""
    ranks_per_device: int = 1
    """Ranks on one device (CPU ranks on a core): each computes that much slower."""

    def __post_init__(self) -> None:
        check_profile_name(self.name, "a cluster")
        check_profile_name(self.hardware, f"the hardware of cluster {self.name}")
        if type(self.levels) is not tuple or not self.levels:
            raise InvalidValueError(
                f"cluster {self.name} has levels {shown(self.levels)}; give a tuple of some"
            )
        check_kinds(self.levels, Level, f"levels of cluster {self.name}")
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise InvalidValueError(
                f"cluster {self.name} has levels {', '.join(names)}; give each its own name"
            )
        check_count(self.ranks_per_device, f"ranks_per_device of cluster {self.name}")
        if self.memory_limit_bytes is not None:
            check_count(self.memory_limit_bytes, f"memory_limit_bytes of cluster {self.name}")
        if self.world_size > MAX_RANKS:
            raise InvalidValueError(
                f"cluster {self.name} has {shown(self.world_size)} ranks; at most {MAX_RANKS} "
                "can be planned, lower a size"
            )
        if self.world_size % self.ranks_per_device:
            raise InvalidValueError(
                f"{self.name}: {self.world_size} ranks, {shown(self.ranks_per_device)} on each, "
                "leave a device half used; change ranks_per_device or a size"
            )

    @property
    def world_size(self) -> int:
        """Ranks: the product of the level sizes."""
        count = 1
        for level in self.levels:
            count *= level.size
        return count

    def limited(self, memory_limit_bytes: int | None) -> "Cluster":
        """The same cluster with another memory limit per rank, as a job may ask for."""
        return replace(self, memory_limit_bytes=memory_limit_bytes)

    def span_of(self, ranks: Sequence[int]) -> Span:
        """What lies between the ranks of one group; raises InvalidValueError for bad ranks."""
        members = tuple(ranks)
        if len(set(members)) != len(members) or not members:
            raise InvalidValueError(
                f"group {shown(members)} is empty or repeats a rank; list each once"
            )
        for rank in members:
            if type(rank) is not int or not 0 <= rank < self.world_size:
                raise InvalidValueError(
                    f"rank {shown(rank)} is not in cluster {self.name}; ranks go from 0 to "
                    f"{self.world_size - 1}"
                )
        return self._span(members)

    def _span(self, members: tuple[int, ...]) -> Span:
        if len(members) == 1:
            return Span("", 1, None, self.ranks_per_device)
        capacity = 1
        for level in self.levels:
            below = capacity
            capacity *= level.size
            units: dict[int, list[int]] = {}
            for rank in members:
                units.setdefault(rank // below, []).append(rank)
            if len({rank // capacity for rank in members}) == 1:
                fullest = max(units.values(), key=lambda unit: (len(unit), -unit[0]))
                inner = self._span(tuple(fullest)) if len(fullest) > 1 else None
                return Span(level.link, len(members), inner, self.ranks_per_device)
        raise AssertionError("the outermost level holds every rank")

    def span(self, stride: int, size: int) -> Span:
        """The worst span of the groups of `size` ranks, `stride` apart, that tile the world.

        Worst: over the outermost level, then with the fewest members in one unit of the level
        below. Raises InvalidValueError unless stride * size divides the world size.
        """
        check_count(stride, "stride")
        check_count(size, "size of a group")
        if self.world_size % (stride * size):
            raise InvalidValueError(
                f"groups of {size} ranks, {stride} apart, do not tile {self.world_size} ranks "
                f"of cluster {self.name}; stride * size has to divide them"
            )
        return _worst_span(self, stride, size)

    def link_of(self, stride: int, size: int) -> str:
        """The slowest link class between `size` (at least 2) ranks that are `stride` apart."""
        span = self.span(stride, size)
        if span.size == 1:
            raise InvalidValueError("a group of one rank has no link; ask for 2 ranks or more")
        return span.link

    def __str__(self) -> str:
        parts = [self.name, self.hardware, *(str(level) for level in self.levels)]
        if self.ranks_per_device > 1:
            parts.append(f"shared={self.ranks_per_device}")
        if self.memory_limit_bytes is not None:
            parts.append(f"limit={self.memory_limit_bytes}")
        return " ".join(parts)

    @classmethod
    def parse(cls, text: str) -> "Cluster":
        """The inverse of `str`; raises ParseError."""
        return parse_checked(text, _FORM, cls._scan)

    @classmethod
    def _scan(cls, scanner: Scanner) -> "Cluster":
        name = scanner.need(PROFILE_NAME, "the name of a cluster")
        scanner.expect(" ")
        hardware = scanner.need(PROFILE_NAME, "the name of a hardware profile")
        levels = []
        shared, limit = 1, None
        while scanner.take(" "):
            if scanner.take("shared="):
                shared = scanner.integer()
                limit = scanner.integer() if scanner.take(" limit=") else None
                break
            if scanner.take("limit="):
                limit = scanner.integer()
                break
            levels.append(Level.scan(scanner))
        return cls(name, hardware, tuple(levels), limit, shared)


@lru_cache(maxsize=4096)
def _worst_span(cluster: Cluster, stride: int, size: int) -> Span:
    depth = {level.link: index for index, level in enumerate(cluster.levels)}
    spans = {
        cluster._span(tuple(range(first, first + stride * size, stride)))
        for block in range(0, cluster.world_size, stride * size)
        for first in range(block, block + stride)
    }
    return max(spans, key=lambda item: (depth.get(item.link, -1), -item.members_inside, str(item)))
