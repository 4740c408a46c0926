"""What a plan claims of itself: its status, the baselines beside it, what it was priced for."""

import math
import re
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from shardwise.ir.cluster import Cluster
from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.prices import parse_number
from shardwise.ir.scanner import Scanner, made, quote_string, shown

GAP_TOLERANCE: Final = 1e-9
"""Relative slack between the gap of a plan and its step over its bound: rounding only."""

Word = TypeVar("Word", bound=StrEnum)

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NUMBER: Final = re.compile(r"[0-9][0-9.e+-]*|none", re.ASCII)
_BASELINE_FORM: Final = '\'"DDP" step_s=1.5 peak_bytes=none "does not fit"\''
_PRICED_FORM: Final = (
    '\'"<cluster>" hardware=<64 hex> software=<64 hex> lengths=<64 hex> tokens_per_step=65536 '
    "memory_limit_bytes_per_rank=80000000000'"
)


class Status(StrEnum):
    """How the search for a plan ended."""

    OPTIMAL_WITHIN_GAP = "optimal_within_gap"
    """The gap that was asked for is reached; the same input gives the same plan."""
    FEASIBLE = "feasible"
    """The search is complete, and its gap is what it is."""
    TIME_LIMIT = "time_limit"
    """The time ran out; this is the best plan so far."""


class Menu(StrEnum):
    """Which strategies, lifetimes and schedules were searched."""

    EXECUTABLE = "executable"
    """Those that this version's runtime can run."""
    ALL = "all"
    """Also those that are priced only."""


class LongDocuments(StrEnum):
    """What the data loader does with a document that is longer than the last bucket."""

    ERROR = "error"
    SPLIT = "split"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A plan that people would write by hand, priced by the same model.

    Text: `"DDP" step_s=1.5 peak_bytes=8000000000.0 "note"`, `none` for a number that there is
    not. Both numbers are finite and > 0; without a step there is a note. Raises
    InvalidValueError.
    """

    name: str
    step_s: float | None
    """Expected seconds of a step; None where it cannot run (the note says why)."""
    peak_bytes: float | None
    """Largest peak bytes per rank over the buckets; None where it has no legal form."""
    note: str = ""

    def __post_init__(self) -> None:
        check_line(self.name, "name", least=1)
        check_line(self.note, "note", least=0)
        for what, key in (("step_s", "step_s"), ("peak_bytes", "peak_bytes_per_rank")):
            value = getattr(self, what)
            if value is not None:
                object.__setattr__(self, what, positive(value, key))
        if self.step_s is None and not self.note:
            raise InvalidValueError("note: empty, and no step_s is given; say why it cannot run")

    def __str__(self) -> str:
        step_s = "none" if self.step_s is None else repr(self.step_s)
        peak_bytes = "none" if self.peak_bytes is None else repr(self.peak_bytes)
        return (
            f"{quote_string(self.name)} step_s={step_s} peak_bytes={peak_bytes} "
            f"{quote_string(self.note)}"
        )

    @classmethod
    def parse(cls, text: str) -> "Baseline":
        """The baseline that prints as `text`; raises ParseError."""
        scanner = Scanner(text, _BASELINE_FORM)
        name = scanner.string()
        numbers: list[float | None] = []
        for what in (" step_s=", " peak_bytes="):
            scanner.expect(what)
            number = scanner.need(_NUMBER, "a number or none")
            numbers.append(None if number == "none" else parse_number(number))
        scanner.expect(" ")
        note = scanner.string()
        scanner.end()
        return made(text, cls, name, *numbers, note=note)


@dataclass(frozen=True, slots=True)
class PricedFor:
    """The conditions under which the prices of a plan hold.

    Text: `"<cluster>" hardware=<hex> software=<hex> lengths=<hex> tokens_per_step=65536
    memory_limit_bytes_per_rank=80000000000`. Raises InvalidValueError.
    """

    cluster: Cluster
    hardware_digest: str
    """`HardwareProfile.digest()`: 64 hex digits."""
    software_digest: str
    """`SoftwareProfile.digest()`: 64 hex digits."""
    lengths_digest: str
    """`Lengths.digest()`: 64 hex digits."""
    tokens_per_step: int
    """Tokens (global) that a global batch first reaches."""
    memory_limit_bytes_per_rank: int
    """Bytes that the peak of every rank stays under."""

    def __post_init__(self) -> None:
        if not isinstance(self.cluster, Cluster):
            raise InvalidValueError(f"cluster: {shown(self.cluster)} is no Cluster; give one")
        for what in ("hardware_digest", "software_digest", "lengths_digest"):
            digest = getattr(self, what)
            if type(digest) is not str or not _DIGEST.fullmatch(digest):
                raise InvalidValueError(
                    f"{what}: {shown(digest)} is given; give 64 digits of lower-case hex"
                )
        for what in ("tokens_per_step", "memory_limit_bytes_per_rank"):
            number = getattr(self, what)
            if type(number) is not int or not 1 <= number < 2**63:
                raise InvalidValueError(f"{what}: {shown(number)} is given; give an int >= 1")

    def __str__(self) -> str:
        return (
            f"{quote_string(str(self.cluster))} hardware={self.hardware_digest} "
            f"software={self.software_digest} lengths={self.lengths_digest} "
            f"tokens_per_step={self.tokens_per_step} "
            f"memory_limit_bytes_per_rank={self.memory_limit_bytes_per_rank}"
        )

    @classmethod
    def parse(cls, text: str) -> "PricedFor":
        """The conditions that print as `text`; raises ParseError."""
        scanner = Scanner(text, _PRICED_FORM)
        cluster = Cluster.parse(scanner.string())
        digests: list[str] = []
        for what in ("hardware", "software", "lengths"):
            scanner.expect(f" {what}=")
            digests.append(scanner.need(_DIGEST, "64 digits of lower-case hex"))
        scanner.expect(" tokens_per_step=")
        tokens_per_step = scanner.integer()
        scanner.expect(" memory_limit_bytes_per_rank=")
        memory_limit = scanner.integer()
        scanner.end()
        return made(
            text,
            cls,
            cluster,
            digests[0],
            digests[1],
            digests[2],
            tokens_per_step=tokens_per_step,
            memory_limit_bytes_per_rank=memory_limit,
        )


def positive(value: object, what: str) -> float:
    """`value` as a float; raises InvalidValueError unless it is a finite number > 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:  # type: ignore[operator]
        raise InvalidValueError(f"{what}: {shown(value)} is given; give a finite number > 0")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise InvalidValueError(f"{what}: {shown(value)} is too large; correct it") from None


def check_line(text: object, what: str, *, least: int) -> None:
    """Raise InvalidValueError unless `text` is printable, on one line, of `least` letters."""
    if type(text) is not str or not text.isprintable() or not least <= len(text) <= 4096:
        raise InvalidValueError(
            f"{what}: {shown(text)} is given; give one printable line of {least} to 4096 letters"
        )


def checked_gap(gap: object, *, step_s: float, bound_s: float) -> float:
    """`gap` as a float; raises InvalidValueError unless it is step_s / bound_s - 1.

    A step below its bound is an error too: one of the two is wrong.
    """
    number = isinstance(gap, int | float) and not isinstance(gap, bool)
    if not number or not 0 <= gap <= sys.float_info.max:  # type: ignore[operator]
        raise InvalidValueError(f"gap: {shown(gap)} is given; give a finite number >= 0")
    if step_s < bound_s * (1 - GAP_TOLERANCE):
        raise InvalidValueError(
            f"bound_s: {shown(bound_s)} is over step_s {shown(step_s)}; no plan is faster than "
            "its bound"
        )
    true_gap = max(0.0, step_s / bound_s - 1)
    if not abs(gap - true_gap) <= GAP_TOLERANCE * (1 + true_gap) < math.inf:  # type: ignore[operator]
        raise InvalidValueError(
            f"gap: {shown(gap)} is given, but step_s / bound_s - 1 is {true_gap!r}; give that"
        )
    return float(gap)  # type: ignore[arg-type]


def parse_word(kind: type[Word], text: str, what: str) -> Word:
    """The member of `kind` that is written `text`; raises ParseError that lists all of them."""
    try:
        return kind(text)
    except ValueError:
        raise ParseError(
            f"{what}: {shown(text)} is given; expected one of {', '.join(kind)}"
        ) from None
