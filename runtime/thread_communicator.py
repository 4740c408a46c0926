"""Simulated ranks: threads of one process that meet in memory to exchange tensors.

Nothing is left to chance: reductions add in group order, a rank that calls something else than
its group is named, and ranks that wait for each other in vain are told so at once, not after a
time-out. Backward on CPU runs in the calling thread, so autograd Functions may communicate.

The ranks share torch's global random generator: draw from a torch.Generator of your own.
"""

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from shardwise.runtime.collective_call import (
    CollectiveCall,
    Group,
    describe_difference,
    name_ranks,
)
from shardwise.runtime.communicator import CollectiveError, Communicator
from shardwise.runtime.rank_failure import RankFailure, RanksFailedError

Result = TypeVar("Result")

_GRACE_S = 1.0
"""How long ranks that were told of a failure get to end."""


@dataclass(slots=True)
class _Round:
    """One collective under way: who came with what, and how many have read it."""

    calls: dict[int, str] = field(default_factory=dict)
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    is_full: bool = False
    readers_left: int = 0


class ThreadWorld:
    """Where the ranks of one process meet; its methods may be called by any thread."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.failures: list[RankFailure] = []
        """In the order in which the ranks failed."""
        self._changed = threading.Condition()
        self._rounds: dict[Group, _Round] = {}
        self._waiting: dict[int, str] = {}
        self._ended: set[int] = set()
        self._broken = ""

    def meet(self, rank: int, group: Group, call: str, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Wait for the whole group, return its tensors in group order. Until `part` they are
        shared: read them only. Raises CollectiveError when the group does not come together."""
        with self._changed:
            self._raise_if_broken()
            meeting = self._rounds.setdefault(group, _Round())
            meeting.calls[rank] = call
            meeting.tensors[rank] = x
            if len(meeting.calls) < len(group):
                self._waiting[rank] = call
                self._break_if_stuck()
                self._changed.wait_for(lambda: meeting.is_full or self._broken)
                self._raise_if_broken()
            else:
                self._fill(group, meeting)
            return tuple(meeting.tensors[member] for member in group)

    def part(self, group: Group) -> None:
        """Wait until the whole group has read; then this rank may overwrite its tensor."""
        with self._changed:
            meeting = self._rounds[group]
            meeting.readers_left -= 1
            if meeting.readers_left == 0:
                meeting.tensors.clear()
                del self._rounds[group]
                self._changed.notify_all()
            self._changed.wait_for(lambda: meeting.readers_left == 0 or self._broken)
            if meeting.readers_left:
                self._raise_if_broken()

    def end(self, rank: int, failure: RankFailure | None = None) -> None:
        """Note that a rank has returned, or failed: then every other rank fails in its next
        collective."""
        with self._changed:
            self._ended.add(rank)
            if failure is not None:
                self.failures.append(failure)
                self._break(str(failure))
            self._break_if_stuck()
            self._changed.notify_all()

    def wait_for_ends(self, timeout_s: float) -> list[int]:
        """Wait until every rank has ended; return those that hold up the rest: they have not
        ended by then, and do not wait for another."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ended) == self.world_size, timeout_s)
            going = {*self._ended, *self._waiting}
            return [rank for rank in range(self.world_size) if rank not in going]

    def break_off(self, reason: str) -> None:
        """Let every rank fail in its present or next collective."""
        with self._changed:
            self._break(reason)

    def _fill(self, group: Group, meeting: _Round) -> None:
        difference = describe_difference({rank: meeting.calls[rank] for rank in group})
        if difference is not None:
            self._break(difference)
            self._raise_if_broken()
        for member in group:
            self._waiting.pop(member, None)
        meeting.is_full = True
        meeting.readers_left = len(group)
        self._changed.notify_all()

    def _break_if_stuck(self) -> None:
        for group, meeting in self._rounds.items():
            gone = [r for r in group if r in self._ended and r not in meeting.calls]
            if gone:
                came, call = next(iter(meeting.calls.items()))
                self._break(f"{name_ranks(gone)} ended while rank {came} waits in {call}")
        if self._waiting and len(self._waiting) + len(self._ended) == self.world_size:
            waits = "; ".join(
                f"rank {rank} waits in {self._waiting[rank]}" for rank in sorted(self._waiting)
            )
            self._break(f"every rank waits for another: {waits}")

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._changed.notify_all()

    def _raise_if_broken(self) -> None:
        if self._broken:
            raise CollectiveError(self._broken)


class ThreadCommunicator(Communicator):
    """One simulated rank of a ThreadWorld; `run_ranks` makes one for each."""

    def __init__(self, rank: int, world: ThreadWorld) -> None:
        super().__init__(rank, world.world_size)
        self._world = world

    def _make_groups(self, groups: tuple[Group, ...]) -> None:
        everyone = tuple(range(self.world_size))
        if len(everyone) > 1:
            self._world.meet(self.rank, everyone, f"declare_groups{groups}", torch.empty(0))
            self._world.part(everyone)

    def _execute(self, call: CollectiveCall, x: torch.Tensor) -> torch.Tensor:
        tensors = self._world.meet(self.rank, call.group, str(call), x)
        result = _combine(call, tensors, call.group.index(self.rank))
        del tensors  # before the others go on: a rank holds no tensor of another for longer
        self._world.part(call.group)
        return result


def run_ranks(
    world_size: int,
    function: Callable[[ThreadCommunicator], Result],
    *,
    timeout_s: float = 60.0,
) -> list[Result]:
    """Run `function(communicator)` on simulated ranks; return the results in rank order.

    Raises RanksFailedError when a rank raises, or is not done after timeout_s. A thread cannot
    be killed: one that hangs outside a collective stays behind until the process ends.
    """
    world = ThreadWorld(world_size)
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = function(ThreadCommunicator(rank, world))
        except BaseException as error:
            errors[rank] = error
            summary = " ".join(traceback.format_exception_only(error)).strip()
            world.end(rank, RankFailure(rank, "raised", summary, traceback.format_exc()))
        else:
            world.end(rank)

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True)
        for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    try:
        hung = world.wait_for_ends(timeout_s)
        failures = [_describe_hung(rank, threads[rank], timeout_s) for rank in hung]
    finally:
        world.break_off(f"not all ranks were done after {timeout_s:g} s")
    if hung:
        world.wait_for_ends(_GRACE_S)
    failures += [failure for failure in world.failures if failure.rank not in hung]
    if failures:
        error = RanksFailedError(f"{world_size} simulated ranks", failures)
        raise error from errors.get(error.first.rank)
    return [results[rank] for rank in range(world_size)]


def _describe_hung(rank: int, thread: threading.Thread, timeout_s: float) -> RankFailure:
    frame = sys._current_frames().get(thread.ident or 0)
    stack = "".join(traceback.format_stack(frame)) if frame else ""
    return RankFailure(rank, "hung", f"not done after {timeout_s:g} s", stack)


def _combine(call: CollectiveCall, tensors: tuple[torch.Tensor, ...], place: int) -> torch.Tensor:
    if call.kind == "all_gather":
        return torch.stack(tensors)
    if call.kind == "all_to_all":
        return torch.stack([x[place] for x in tensors])
    if call.kind == "all_reduce":
        return _reduce(call.op, tensors)
    if call.kind == "reduce_scatter":
        return _reduce(call.op, tuple(x[place] for x in tensors))
    if call.root is not None:
        return tensors[call.group.index(call.root)].clone()
    return torch.empty(0)


def _reduce(op: str, tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    result = tensors[0].clone()
    for x in tensors[1:]:
        if op == "sum":
            result.add_(x)
        elif op == "max":
            torch.maximum(result, x, out=result)
        else:
            torch.minimum(result, x, out=result)
    return result
