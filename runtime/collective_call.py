"""What is said of one collective: the record that is compared with a plan, the call that is
compared between ranks, and the sentences of the errors."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from shardwise.ir.errors import InvalidValueError, ParseError

Group = tuple[int, ...]
"""Global ranks in the order in which a gather concatenates: (0, 1) is not (1, 0)."""

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "barrier")
REDUCTIONS = ("sum", "max", "min")


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """One executed collective, as a plan states it: text `all_reduce 0,1 64 float32`."""

    kind: str
    """One of KINDS but barrier, which carries no message and is never recorded."""
    group: Group
    message_bytes: int
    """Per rank: all_gather and reduce_scatter, the larger (gathered) local tensor; all_reduce,
    broadcast and all_to_all, the local tensor given."""
    dtype: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS[:-1]:
            raise InvalidValueError(
                f"record of kind {self.kind!r}: not a recorded collective; "
                f"use one of {', '.join(KINDS[:-1])}"
            )
        if len(self.group) < 2 or self.message_bytes < 0:
            raise InvalidValueError(
                f"record of {self.message_bytes} bytes over ranks {self.group}: a message has "
                "2 ranks and 0 bytes at least; do not record a group of one rank"
            )

    def __str__(self) -> str:
        ranks = ",".join(map(str, self.group))
        return f"{self.kind} {ranks} {self.message_bytes} {self.dtype}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form; raises ParseError with the expected form."""
        match = re.fullmatch(r"([a-z_]+) (\d+(?:,\d+)*) (\d+) ([a-z]\w*)", text)
        if match is None:
            raise ParseError(
                f"{text!r}: expected `kind ranks bytes dtype`, as `all_reduce 0,1 64 float32`"
            )
        kind, ranks, size, dtype = match.groups()
        return cls(kind, tuple(map(int, ranks.split(","))), int(size), dtype)


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """What every rank of a group has to ask for alike; text for messages only."""

    kind: str
    group: Group
    shape: tuple[int, ...] = ()
    dtype: str = ""
    op: str = ""
    """The reduction, of reduce_scatter and all_reduce."""
    root: int | None = None
    """The global rank whose tensor a broadcast copies."""

    def __str__(self) -> str:
        detail = self.op if self.root is None else f"root {self.root}"
        what = f"{self.kind}({detail})" if detail else self.kind
        tensor = "" if self.kind == "barrier" else f" of {self.dtype}{list(self.shape)}"
        return f"{what}{tensor} over ranks {list(self.group)}"


def describe_difference(calls: Mapping[int, str]) -> str | None:
    """Say which ranks called what, the odd ones first; None when all call the same."""
    ranks_by_call: dict[str, list[int]] = {}
    for rank, call in calls.items():
        ranks_by_call.setdefault(call, []).append(rank)
    if len(ranks_by_call) == 1:
        return None
    odd_first = sorted(ranks_by_call.items(), key=lambda item: (len(item[1]), -item[1][0]))
    parts = [f"{name_ranks(ranks)} called {call}" for call, ranks in odd_first]
    return "; ".join(parts) + "; all ranks of a group must make the same calls in the same order"


def name_ranks(ranks: Iterable[int]) -> str:
    """Return "rank 2" or "ranks 0, 1, 3"."""
    names = [str(rank) for rank in ranks]
    return f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}"
