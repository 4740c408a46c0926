"""BucketPlan: what is switched from one length bucket to the next, with its prices."""

import math
import re
from dataclasses import dataclass
from typing import Final

from shardwise.ir.bucket import Bucket
from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.prices import Prices
from shardwise.ir.scanner import check_kind, check_kinds, made, shown

MAX_PADDED: Final = 4
"""Most padded shapes of a bucket: each is compiled, checked for memory and priced."""

_ID: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_RUN: Final = re.compile(r"([a-z][a-z0-9_.-]{0,63})(?:\*([1-9][0-9]{0,8}))?")
_SIZE: Final = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=([1-9][0-9]{0,17})")
_GROUP: Final = re.compile(r"batch_degree=([1-9][0-9]{0,17}) seats=([1-9][0-9]{0,17})")
_FORM: Final = (
    "'S(0,512] | batch_degree=4 seats=2 | S=256, S=512 | embed, layer*4 | 0.1 1 ~ 0.0 | "
    "100.0 T ~ 0.0'"
)


@dataclass(frozen=True, slots=True)
class PaddedShape:
    """Sizes that the documents of a micro-batch are padded to. Text: `S_src=512,S_tgt=128`.

    One size from 1 to 10**18 - 1 per dim, each dim once. Raises InvalidValueError.
    """

    sizes: tuple[tuple[str, int], ...]
    """(dim, tokens of a padded document) in the order of the bucket's dims; global."""

    def __post_init__(self) -> None:
        legal = type(self.sizes) is tuple and all(
            type(pair) is tuple
            and len(pair) == 2
            and type(pair[0]) is str
            and type(pair[1]) is int
            and pair[1] < 10**18
            and _SIZE.fullmatch(f"{pair[0]}={pair[1]}")
            for pair in self.sizes
        )
        if not legal or not 0 < len(self.sizes) == len(set(self.dims)):
            raise InvalidValueError(
                f"padded shape {shown(self.sizes)}: give one size from 1 to 10**18 - 1 per dim"
            )

    def __str__(self) -> str:
        return ",".join(f"{dim}={size}" for dim, size in self.sizes)

    @classmethod
    def parse(cls, text: str) -> "PaddedShape":
        """The shape that prints as `text`; raises ParseError."""
        words = text.split(",") if type(text) is str else []
        matches = [found for word in words if (found := _SIZE.fullmatch(word))]
        if not words or len(matches) < len(words):
            raise ParseError(
                f"cannot parse {shown(text)} as a padded shape: expected a form like "
                "'S=512' or 'S_src=512,S_tgt=128'"
            )
        return made(text, cls, tuple((found[1], int(found[2])) for found in matches))

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dims, in order."""
        return tuple(dim for dim, _ in self.sizes)


@dataclass(frozen=True, slots=True)
class StrategyRun:
    """`count` consecutive units under one strategy. Text: `layer*4`, `embed` for one.

    Raises InvalidValueError for an id that is not [a-z][a-z0-9_.-]* of at most 64 letters.
    """

    strategy: str
    """Id of a strategy of the plan."""
    count: int = 1

    def __post_init__(self) -> None:
        check_strategy_id(self.strategy)
        if type(self.count) is not int or not 1 <= self.count < 10**9:
            raise InvalidValueError(
                f"run of {shown(self.count)} units under {self.strategy}: give an int >= 1"
            )

    def __str__(self) -> str:
        return f"{self.strategy}{f'*{self.count}' if self.count > 1 else ''}"

    @classmethod
    def parse(cls, text: str) -> "StrategyRun":
        """The run that prints as `text`; raises ParseError."""
        found = _RUN.fullmatch(text) if type(text) is str else None
        if found is None:
            raise ParseError(
                f"cannot parse {shown(text)} as a run: expected a form like 'layer*4' or 'embed'"
            )
        return cls(found[1], int(found[2] or 1))


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """One bucket: how many documents a slot takes, their padded shapes, and who computes how.

    Padded shapes are 1 to 4, distinct, ascending, over the bucket's dims in its order; one of
    them holds the bucket's longest document and each holds some document of it. Neighbouring
    runs differ. Both prices are finite and > 0 for a full slot at every padded shape. Text:
    the parts with ` | ` between them. Raises InvalidValueError whose message begins with the
    field.
    """

    bucket: Bucket
    batch_degree: int
    """Replicas that take different documents of a slot."""
    seats: int
    """Documents per replica and slot (of a padded micro-batch)."""
    padded: tuple[PaddedShape, ...]
    runs: tuple[StrategyRun, ...]
    """Strategies over the units of the model in order, run-length encoded."""
    time: Prices
    """Seconds of one slot on the slowest rank, of the documents of all replicas."""
    peak: Prices
    """Peak bytes per rank while the slot runs, of the documents of all replicas."""

    def __post_init__(self) -> None:
        check_kind(self.bucket, Bucket, "bucket: it")
        check_kinds(self.padded, PaddedShape, "padded: they")
        check_kinds(self.runs, StrategyRun, "runs: they")
        check_kind(self.time, Prices, "time_s: it")
        check_kind(self.peak, Prices, "peak_bytes_per_rank: it")
        for what in ("batch_degree", "seats"):
            number = getattr(self, what)
            if type(number) is not int or not 1 <= number < 10**18:
                raise InvalidValueError(f"{what}: {shown(number)} is given; give an int >= 1")
        self._check_padded()
        if not self.runs:
            raise InvalidValueError("runs: none is given; cover all units of the model")
        for place, (run, following) in enumerate(zip(self.runs, self.runs[1:], strict=False)):
            if run.strategy == following.strategy:
                raise InvalidValueError(
                    f"runs[{place + 1}]: it goes on with {run.strategy} of the run before; "
                    "merge the two"
                )
        for what, prices in (("time_s", self.time), ("peak_bytes_per_rank", self.peak)):
            for shape in self.padded:
                try:
                    price = self.price_of(prices, shape)
                except InvalidValueError as error:
                    raise InvalidValueError(f"{what}: {error}") from None
                if not 0 < price < math.inf:
                    raise InvalidValueError(
                        f"{what}: the price at {shape} with {self.documents_per_slot} "
                        f"documents is {shown(price)}; it must be finite and > 0, fit the "
                        "coefficients again"
                    )

    def _check_padded(self) -> None:
        dims = tuple(band.dim for band in self.bucket.ranges)
        if not 1 <= len(self.padded) <= MAX_PADDED:
            raise InvalidValueError(
                f"padded: {len(self.padded)} shapes are given; give 1 to {MAX_PADDED}"
            )
        for place, shape in enumerate(self.padded):
            if shape.dims != dims:
                raise InvalidValueError(
                    f"padded[{place}]: {shape} has not the dims {', '.join(dims)} of the "
                    "bucket; give a size for each, in this order"
                )
            sizes = dict(shape.sizes)
            small = [band for band in self.bucket.ranges if sizes[band.dim] <= band.low]
            if small:
                raise InvalidValueError(
                    f"padded[{place}]: {shape} holds no document of bucket {self.bucket}; give "
                    f"{small[0].dim} over {small[0].low}"
                )
            if place and self.padded[place - 1].sizes >= shape.sizes:
                raise InvalidValueError(
                    f"padded[{place}]: {shape} comes after {self.padded[place - 1]}; list the "
                    "shapes ascending and each once"
                )
        longest = self.bucket.largest()
        if not any(all(size >= longest[dim] for dim, size in s.sizes) for s in self.padded):
            raise InvalidValueError(
                f"padded: no shape holds the longest document of bucket {self.bucket}; add one "
                "that does"
            )

    def __str__(self) -> str:
        return " | ".join(
            (
                str(self.bucket),
                f"batch_degree={self.batch_degree} seats={self.seats}",
                ", ".join(map(str, self.padded)),
                ", ".join(map(str, self.runs)),
                str(self.time),
                str(self.peak),
            )
        )

    @classmethod
    def parse(cls, text: str) -> "BucketPlan":
        """The bucket plan that prints as `text`; raises ParseError."""
        parts = text.split(" | ") if type(text) is str else []
        group = _GROUP.fullmatch(parts[1]) if len(parts) == 6 else None
        if group is None:
            raise ParseError(f"cannot parse {shown(text)} as a bucket plan: expected {_FORM}")
        return made(
            text,
            cls,
            Bucket.parse(parts[0]),
            int(group[1]),
            int(group[2]),
            tuple(map(PaddedShape.parse, parts[2].split(", "))),
            tuple(map(StrategyRun.parse, parts[3].split(", "))),
            Prices.parse(parts[4]),
            Prices.parse(parts[5]),
        )

    @property
    def documents_per_slot(self) -> int:
        """Most documents of one slot, over all replicas: k_g of the design."""
        return self.batch_degree * self.seats

    @property
    def unit_count(self) -> int:
        """Units that the runs cover."""
        return sum(run.count for run in self.runs)

    def price_of(self, prices: Prices, shape: PaddedShape) -> float:
        """`prices` (time or peak) of a full slot of documents padded to `shape`."""
        return prices.padded(self.documents_per_slot, dict(shape.sizes))

    def largest_slot_time_s(self) -> float:
        """Seconds of a full slot, at the padded shape where that is largest."""
        return max(self.price_of(self.time, shape) for shape in self.padded)

    def largest_peak_bytes(self) -> float:
        """Peak bytes per rank of a full slot, at the padded shape where that is largest."""
        return max(self.price_of(self.peak, shape) for shape in self.padded)


def check_strategy_id(name: object) -> None:
    """Raise InvalidValueError unless `name` may be the id of a strategy."""
    if type(name) is not str or not _ID.fullmatch(name):
        raise InvalidValueError(
            f"strategy id {shown(name)}: an id begins with a-z and has a-z, 0-9, _, . and -, "
            "at most 64 of them; rename it"
        )
