"""How one rank of several failed, and the error that carries it to whoever started them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardwise.ir.errors import ShardwiseError


@dataclass(frozen=True, slots=True)
class RankFailure:
    """What became of one rank."""

    rank: int
    kind: Literal["raised", "died", "hung"]
    summary: str
    """One line: the exception, the exit code, or how long it was waited for."""
    detail: str = ""
    """Traceback, stack at the time-out, or the end of what the process printed."""

    def __str__(self) -> str:
        return f"rank {self.rank} {self.kind}: {self.summary}"


class RanksFailedError(ShardwiseError):
    """A function run on several ranks failed; `first` is the rank that did so first, as far as
    can be told: the others then fail for want of it. The details follow the first line."""

    def __init__(self, what: str, failures: Sequence[RankFailure]) -> None:
        self.failures = tuple(failures)
        others = "".join(f"; {failure}" for failure in self.failures[1:])
        details = "".join(
            f"\n\n--- rank {failure.rank} ---\n{failure.detail.rstrip()}"
            for failure in self.failures
            if failure.detail
        )
        super().__init__(f"{what}: {self.first}{others}{details}")

    @property
    def first(self) -> RankFailure:
        """The failure that came first."""
        return self.failures[0]
