"""LinkClass: what a collective costs over one kind of link, as measured or published.

A curve is of one of two forms. *Timed*: seconds by message bytes, measured at one group size.
*Bus*: the bandwidth that nccl-tests calls busbw, by message bytes, latency taken out; it
serves every group size. Nothing is derived from another collective: reduce-scatter has its
own curve or no price.

Message bytes of a rank: all_gather and reduce_scatter the larger (gathered) tensor,
all_reduce the tensor, all_to_all the tensor before, send_recv, ring_exchange and broadcast
what is sent.
"""

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from shardwise.ir.curve import Constant, Curve, parse_checked
from shardwise.ir.errors import InvalidValueError, UnsupportedError
from shardwise.ir.latency_steps import latency_steps
from shardwise.ir.scanner import Scanner, check_kind, check_kinds, shown
from shardwise.ir.span import LINK_NAME, Span, check_count, check_link_name

COLLECTIVES: Final = (
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "send_recv",
    "ring_exchange",
)
"""Kinds that have prices. ring_exchange: every rank sends to the next and receives from the
last."""

_KIND: Final = re.compile(r"[a-z_]+")
_SHARED_RINGS: Final = ("all_gather", "all_reduce", "reduce_scatter", "broadcast")


@dataclass(frozen=True, slots=True)
class CollectiveCurve:
    """The price of one collective kind over a link class: timed (at a group size) or bus (at
    any).

    Text: `all_reduce group=2 shared=1 <curve>`, `all_reduce <curve>` for a bus curve.
    Raises InvalidValueError for an unknown kind, a timed curve that is not bytes -> s
    proportional, a bus curve that is not bytes -> bytes/s clamp, a group size below 2,
    ranks_per_device below 1.
    """

    kind: str
    curve: Curve
    group_size: int | None = None
    """Members at the measurement; None makes it a bus curve."""
    ranks_per_device: int = 1
    """Ranks that shared one device at the measurement (timed curves only)."""

    def __post_init__(self) -> None:
        if self.kind not in COLLECTIVES:
            raise InvalidValueError(
                f"collective {shown(self.kind)} is not known; use {', '.join(COLLECTIVES)}"
            )
        check_kind(self.curve, Curve, f"the curve of {self.kind}")
        check_count(self.ranks_per_device, f"ranks per device of {self.kind}")
        form = (self.curve.x_unit, self.curve.y_unit, self.curve.end)
        if self.group_size is None:
            if form != ("bytes", "bytes/s", "clamp") or self.ranks_per_device != 1:
                raise InvalidValueError(
                    f"{self.kind} without a group size has a curve {form[0]} -> {form[1]} "
                    f"{form[2]}; a bus curve is bytes -> bytes/s clamp, at one rank per device"
                )
            return
        check_count(self.group_size, f"group size of {self.kind}")
        if self.group_size < 2 or form != ("bytes", "s", "proportional"):
            raise InvalidValueError(
                f"{self.kind} of {self.group_size} ranks: the curve is {form[0]} -> {form[1]} "
                f"{form[2]}; a timed one is bytes -> s proportional, of a group of 2 or more"
            )

    def __str__(self) -> str:
        if self.group_size is None:
            return f"{self.kind} {self.curve}"
        return f"{self.kind} group={self.group_size} shared={self.ranks_per_device} {self.curve}"

    @classmethod
    def parse(cls, text: str) -> "CollectiveCurve":
        """The inverse of `str`; raises ParseError."""
        form = "'all_reduce group=2 shared=1 1024:0.1 bytes -> s proportional \"source\"'"
        return parse_checked(text, form, cls.scan)

    @classmethod
    def scan(cls, scanner: Scanner) -> "CollectiveCurve":
        """Read one at the scanner's position; raises ParseError or InvalidValueError."""
        kind = scanner.need(_KIND, "a collective")
        scanner.expect(" ")
        if not scanner.take("group="):
            return cls(kind, Curve.scan(scanner))
        group_size = scanner.integer()
        scanner.expect(" shared=")
        ranks_per_device = scanner.integer()
        scanner.expect(" ")
        return cls(kind, Curve.scan(scanner), group_size, ranks_per_device)


def bus_factor(kind: str, group_size: int, members_inside: int) -> float:
    """Bytes over the busiest link per message byte, as nccl-tests defines bus bandwidth.

    `members_inside` members reach each other without the link: an all_to_all sends them
    nothing over it, and a ring enters and leaves the unit once for each of their links.
    """
    others = (group_size - 1) / group_size
    if kind == "all_to_all":
        return (group_size - members_inside) / group_size
    factor = {"all_reduce": 2 * others, "all_gather": others, "reduce_scatter": others}
    return factor.get(kind, 1.0) / (members_inside if kind in _SHARED_RINGS else 1)


@dataclass(frozen=True, slots=True)
class LinkClass:
    """One class of links with the prices of its collectives.

    Text is one line. Raises InvalidValueError for a bad name, wrong units, an overlap over 1, a
    contention below 1, or two curves for the same (kind, group size, ranks per device).
    """

    name: str
    latency_s: Constant
    """Of one step of a tree over a bus curve (`latency_steps`); timed curves hold their own."""
    overlap: Constant
    """Share of the communication time that can hide behind compute, 0 to 1."""
    contention: Constant
    """Factor (>= 1) by which compute slows down while communication runs beside it."""
    collectives: tuple[CollectiveCurve, ...]

    def __post_init__(self) -> None:
        check_link_name(self.name)
        for name, unit in (("latency_s", "s"), ("overlap", "ratio"), ("contention", "ratio")):
            value: Constant = getattr(self, name)
            check_kind(value, Constant, f"{name} of link {self.name}")
            if value.unit != unit:
                raise InvalidValueError(
                    f"{name} of link {self.name} is in {value.unit}; give it in {unit}"
                )
        if self.overlap.value > 1 or self.contention.value < 1:
            raise InvalidValueError(
                f"link {self.name} has overlap {self.overlap.value} and contention "
                f"{self.contention.value}; overlap is at most 1, contention at least 1"
            )
        check_kinds(self.collectives, CollectiveCurve, f"collectives of link {self.name}")
        seen: set[tuple[str, int | None, int]] = set()
        for item in self.collectives:
            key = (item.kind, item.group_size, item.ranks_per_device)
            if key in seen:
                raise InvalidValueError(
                    f"link {self.name} has two curves for {item.kind} (group {key[1]}, "
                    f"{item.ranks_per_device} ranks per device); keep one"
                )
            seen.add(key)

    def seconds(self, kind: str, span: Span, message_bytes: float) -> float:
        """Seconds of one collective over this link among the members of `span`, inner links
        aside.

        Timed curves first, those of the span's ranks per device (else of the nearest number of
        them, in proportion). Group sizes between two measured ones interpolate in log-log;
        smaller ones cost as the smallest measured (an over-estimate); larger ones grow as
        size - 1, which is what the latency of a ring does (an over-estimate for large
        messages). Bus curves otherwise: latency times `latency_steps` (the depth of a tree, the
        hops of a ring), plus bus bytes / bus bandwidth. Raises UnsupportedError when the kind
        has no curve here; InvalidValueError for negative bytes.
        """
        if not message_bytes >= 0 or not math.isfinite(message_bytes):
            raise InvalidValueError(
                f"{kind} of {shown(message_bytes)} bytes; give a finite number of at least 0"
            )
        curves = [item for item in self.collectives if item.kind == kind]
        if not curves:
            known = ", ".join(sorted({item.kind for item in self.collectives})) or "none"
            raise UnsupportedError(
                f"link {self.name} has no curve for {shown(kind)} (known: {known}); "
                "measure it with `shardwise profile` or add it to the hardware file"
            )
        if span.size == 1 or message_bytes == 0:
            return 0.0
        timed = [item for item in curves if item.group_size is not None]
        if timed:
            shares = sorted({item.ranks_per_device for item in timed})
            share = min(shares, key=lambda item: (abs(item - span.ranks_per_device), item))
            points = sorted(
                (item.group_size or 0, item.curve.at(message_bytes))
                for item in timed
                if item.ranks_per_device == share
            )
            factor = max(1.0, span.ranks_per_device / share)
            return factor * _at_group_size(points, span.size)
        bandwidth = curves[0].curve.at(message_bytes)
        bus_bytes = message_bytes * bus_factor(kind, span.size, span.members_inside)
        steps = latency_steps(kind, span.size, span.members_inside)
        seconds = self.latency_s.value * steps + bus_bytes / bandwidth
        return seconds * span.ranks_per_device

    def __str__(self) -> str:
        head = (
            f"{self.name} latency {self.latency_s} overlap {self.overlap} "
            f"contention {self.contention}"
        )
        return "; ".join([head, *(str(item) for item in self.collectives)])

    @classmethod
    def parse(cls, text: str) -> "LinkClass":
        """The inverse of `str`; raises ParseError."""
        form = "'ib latency <c> overlap <c> contention <c>; all_reduce <curve>', c a constant"
        return parse_checked(text, form, cls.scan)

    @classmethod
    def scan(cls, scanner: Scanner) -> "LinkClass":
        """Read one at the scanner's position; raises ParseError or InvalidValueError."""
        name = scanner.need(LINK_NAME, "a link class")
        scanner.expect(" latency ")
        latency_s = Constant.scan(scanner)
        scanner.expect(" overlap ")
        overlap = Constant.scan(scanner)
        scanner.expect(" contention ")
        contention = Constant.scan(scanner)
        collectives = []
        while scanner.take("; "):
            collectives.append(CollectiveCurve.scan(scanner))
        return cls(name, latency_s, overlap, contention, tuple(collectives))


def _at_group_size(points: list[tuple[int, float]], size: int) -> float:
    """Seconds at a group size from sorted (group size, seconds); see `seconds`."""
    (first, first_s), (last, last_s) = points[0], points[-1]
    if size <= first:
        return first_s
    if size >= last:
        return last_s * (size - 1) / (last - 1)
    for (low, low_s), (high, high_s) in pairwise(points):
        if low <= size <= high:
            share = math.log(size / low) / math.log(high / low)
            return low_s * math.exp(share * math.log(high_s / low_s))
    raise AssertionError("points are sorted and enclose the size")
