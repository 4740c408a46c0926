"""Bucket: a box in the space of a model's length dims, a band (low, high] in each."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardwise.ir.curve import parse_checked
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.scanner import Scanner, check_kinds, shown

DIM_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
MAX_LENGTH: Final = 2**40
"""Longest length that a bound may have, in tokens."""

_BAND: Final = "'S(0,512]'"
_BUCKET: Final = "'S(0,512]' or 'S_src(0,512]*S_tgt(0,128]'"


def check_dims(dims: tuple[str, ...], what: str) -> None:
    """Raise InvalidValueError unless `dims` are one or more different names of length dims."""
    if type(dims) is not tuple or not dims:
        raise InvalidValueError(f"{what} has dims {shown(dims)}; give a tuple of one or more")
    for dim in dims:
        if not isinstance(dim, str) or not DIM_NAME.fullmatch(dim):
            raise InvalidValueError(
                f"length dim {shown(dim)} of {what} is not a name like S or S_src; rename it"
            )
    if len(set(dims)) != len(dims):
        raise InvalidValueError(f"{what} has dims {shown(dims)}; give each once")


def check_bounds(low: object, high: object, what: str) -> None:
    """Raise InvalidValueError unless low and high are ints with 0 <= low < high <=
    MAX_LENGTH."""
    for name, value in (("low", low), ("high", high)):
        if type(value) is not int or not 0 <= value <= MAX_LENGTH:
            raise InvalidValueError(
                f"{name} of {what} is {shown(value)}; give a whole number of tokens from 0 to "
                f"{MAX_LENGTH}"
            )
    if not low < high:  # type: ignore[operator]
        raise InvalidValueError(
            f"{what} goes from {low} to {high}; (low, high] needs low below high"
        )


@dataclass(frozen=True, slots=True)
class Band:
    """The lengths of one dim that are over `low` and at most `high`. Text `S(0,512]`.

    Raises InvalidValueError for a bad name, or unless 0 <= low < high.
    """

    dim: str
    low: int
    """Tokens; the band starts above it, so 0 leaves out empty documents only."""
    high: int
    """Tokens; the largest length inside."""

    def __post_init__(self) -> None:
        check_dims((self.dim,), "a band")
        check_bounds(self.low, self.high, f"band {self.dim}")

    def __str__(self) -> str:
        return f"{self.dim}({self.low},{self.high}]"

    @classmethod
    def parse(cls, text: str) -> "Band":
        """The inverse of `str`; raises ParseError."""
        return parse_checked(text, _BAND, cls.scan)

    @classmethod
    def scan(cls, scanner: Scanner) -> "Band":
        """Read one at the scanner's position; raises ParseError or InvalidValueError."""
        dim = scanner.need(DIM_NAME, "a length dim")
        scanner.expect("(")
        low = scanner.integer()
        scanner.expect(",")
        high = scanner.integer()
        scanner.expect("]")
        return cls(dim, low, high)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A box of lengths: one band for each length dim. Text `S_src(0,512]*S_tgt(0,128]`.

    Raises InvalidValueError for no bands or two of the same dim.
    """

    ranges: tuple[Band, ...]

    def __post_init__(self) -> None:
        check_kinds(self.ranges, Band, "ranges of a bucket")
        check_dims(self.dims, "a bucket")

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the length dims, in the order of the bands."""
        return tuple(band.dim for band in self.ranges)

    def band(self, dim: str) -> Band:
        """The band of a dim; raises InvalidValueError if the bucket has none."""
        for band in self.ranges:
            if band.dim == dim:
                return band
        raise InvalidValueError(
            f"bucket {self} has no dim {shown(dim)}; it has {', '.join(self.dims)}"
        )

    def contains(self, lengths: Mapping[str, int]) -> bool:
        """Whether a document of these lengths is inside; raises unless all dims are given."""
        missing = [dim for dim in self.dims if dim not in lengths]
        if missing:
            raise InvalidValueError(
                f"bucket {self} was asked for lengths without {', '.join(missing)}; give them"
            )
        return all(band.low < lengths[band.dim] <= band.high for band in self.ranges)

    def overlaps(self, other: "Bucket") -> bool:
        """Whether some document is inside both; raises InvalidValueError for other dims."""
        if set(self.dims) != set(other.dims):
            raise InvalidValueError(
                f"buckets {self} and {other} have different dims; compare buckets of one model"
            )
        pairs = ((band, other.band(band.dim)) for band in self.ranges)
        return all(a.low < b.high and b.low < a.high for a, b in pairs)

    def largest(self) -> dict[str, int]:
        """The largest lengths inside, by dim."""
        return {band.dim: band.high for band in self.ranges}

    def __str__(self) -> str:
        return "*".join(str(band) for band in self.ranges)

    @classmethod
    def parse(cls, text: str) -> "Bucket":
        """The inverse of `str`; raises ParseError."""
        return parse_checked(text, _BUCKET, cls._scan)

    @classmethod
    def _scan(cls, scanner: Scanner) -> "Bucket":
        bands = [Band.scan(scanner)]
        while scanner.take("*"):
            bands.append(Band.scan(scanner))
        return cls(tuple(bands))
