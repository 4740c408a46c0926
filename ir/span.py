"""Span: what the members of a group have between them, from the slowest link class inwards."""

import re
from dataclasses import dataclass
from typing import Final

from shardwise.ir.curve import parse_checked
from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.scanner import Scanner, shown

LINK_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*")
_FORM: Final = "'64@ib/8@nvlink', '4@loopback shared=2'"


def check_link_name(name: object) -> None:
    """Raise InvalidValueError unless `name` can name a link class."""
    if not isinstance(name, str) or not LINK_NAME.fullmatch(name):
        raise InvalidValueError(
            f"link {shown(name)}: a link class is named like nvlink, ib or loopback; rename it"
        )


def check_count(value: object, what: str) -> None:
    """Raise InvalidValueError unless `value` is an int of at least 1."""
    if type(value) is not int or value < 1:
        raise InvalidValueError(f"{what} is {shown(value)}; give a whole number of at least 1")


@dataclass(frozen=True, slots=True)
class Span:
    """The slowest link class between the members of a group, and how many share a unit.

    `64@ib/8@nvlink`: 64 ranks over ib, 8 of them in each unit of the level below, joined by
    nvlink. A suffix ` shared=2` says that two ranks share one device. One rank: size 1, no
    link, text `1`. Raises InvalidValueError for a size below 1, a bad link name, or an inner
    part as large as the whole.
    """

    link: str
    """The slowest link class among the members; empty for size 1."""
    size: int
    """Members of the group."""
    inner: "Span | None" = None
    """Members in one unit of the level below (the most there are in any), None for one each."""
    ranks_per_device: int = 1

    def __post_init__(self) -> None:
        check_count(self.size, "size of a span")
        check_count(self.ranks_per_device, "ranks per device of a span")
        if self.size == 1 and (self.link or self.inner):
            raise InvalidValueError(
                f"a span of one rank has link {shown(self.link)}; leave link and inner out"
            )
        if self.size > 1:
            check_link_name(self.link)
        if self.inner is None:
            return
        if not 1 < self.inner.size < self.size:
            raise InvalidValueError(
                f"{self.inner.size} of {self.size} members are in one unit; an inner span has "
                "more than one and fewer than all members: drop it"
            )
        if self.inner.ranks_per_device != self.ranks_per_device:
            raise InvalidValueError(
                f"inner ranks per device {self.inner.ranks_per_device} differ from "
                f"{self.ranks_per_device}; use one number"
            )

    @property
    def members_inside(self) -> int:
        """Members in one unit of the level below the slowest link, at least 1."""
        return 1 if self.inner is None else self.inner.size

    def __str__(self) -> str:
        parts: list[str] = []
        span: Span | None = self
        while span is not None:
            parts.append(f"{span.size}@{span.link}" if span.link else "1")
            span = span.inner
        shared = f" shared={self.ranks_per_device}" if self.ranks_per_device > 1 else ""
        return "/".join(parts) + shared

    @classmethod
    def parse(cls, text: str) -> "Span":
        """The inverse of `str`; raises ParseError."""
        return parse_checked(text, _FORM, cls._scan)

    @classmethod
    def _scan(cls, scanner: Scanner) -> "Span":
        parts: list[tuple[int, str]] = []
        while True:
            size = scanner.integer()
            link = scanner.need(LINK_NAME, "a link class") if scanner.take("@") else ""
            parts.append((size, link))
            if not scanner.take("/"):
                break
        shared = scanner.integer() if scanner.take(" shared=") else 1
        span: Span | None = None
        for size, link in reversed(parts):
            span = cls(link, size, span, shared)
        if span is None:
            raise scanner.error("a size")
        if str(span) != scanner.text[: scanner.position]:
            raise ParseError(
                f"cannot parse {shown(scanner.text)}: it is written {span}; the form is {_FORM}"
            )
        return span
