"""Zero-bubble orders: the backward in two parts, and the weights' part wherever time is left.

Qi et al. 2024, arXiv:2401.10241. B of a micro-batch is on the critical path of the pipeline and W
is not, so W fills gaps and comes last. What limits this is memory: a micro-batch keeps its
activations from F to B, and a share of them from B to W. The paper's schedules allow as much of it
on every device as 1F1B keeps on the first one, p micro-batches (ZB-1p), or twice that (ZB-2p).

Candidates are the paper's schedules by hand (ZB-H1, ZB-H2, ZB-V) and our reading of its heuristic
(section 3.1), run as an event simulation in which each device decides whenever it is free:

    an F starts only if its activations fit under the limit
    F and B that can both start go in turn
    where neither can start, a W does if it ends before the next one can, or if no gap is known
    a shorter gap stays idle, or a W fills it, or does where this device has idled most
    before the first B, an F that would delay it is held back, or not
    W also goes where F waits for memory

As in the paper, all combinations of these choices are tried, and the best candidate is kept: the
least time that the device that takes longest needs from its first action to its last (the period of
a step if optimizer steps wait for nobody), then the least time of the whole. Nothing is random.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from itertools import pairwise, product
from math import inf
from typing import Final

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.schedule_action import Action, ActionKind, link
from shardwise.ir.schedule_orders import Orders
from shardwise.ir.schedule_times import Duration, Transfer, earliest, seconds

F, B, W = ActionKind.F, ActionKind.B, ActionKind.W
Cost = tuple[float, float]
"""(period, time of the whole), in seconds."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What the order of a zero-bubble schedule depends on."""

    duration_s: Duration
    transfer_s: Transfer
    weight_share: float = 1.0
    """Share of a micro-batch's activations that stays from B to W, 0 to 1. A transformer layer
    without fused attention keeps 32 of 34 + 5 a s / h bytes per token and hidden element
    (arXiv:2401.10241, table 1)."""

    @classmethod
    def equal(
        cls,
        forward_s: float,
        backward_s: float,
        weight_s: float,
        transfer_s: float = 0.0,
        *,
        weight_share: float = 1.0,
    ) -> "Costs":
        """The same seconds for every chunk and micro-batch."""
        times = {F: forward_s, B: backward_s, W: weight_s}
        return cls(lambda kind, *_: times[kind], lambda *_: transfer_s, weight_share)

    def __post_init__(self) -> None:
        if not 0 <= self.weight_share <= 1:
            raise InvalidValueError(
                f"weight_share is {self.weight_share}; give the share of activations kept from B "
                "to W, 0 to 1"
            )


class Fill(StrEnum):
    """What becomes of a gap that is shorter than a W."""

    IDLE = "idle"
    MOST_IDLE = "most_idle"
    W = "w"


@dataclass(frozen=True, slots=True)
class Choices:
    """One combination of the heuristic's choices."""

    fill: Fill
    hold_forward: bool


CHOICES: Final = tuple(Choices(*row) for row in product(Fill, (False, True)))


def zero_bubble(
    chunks_of: Sequence[Sequence[int]],
    micro_batches: int,
    limit: float,
    costs: Costs,
    by_hand: Sequence[Orders] = (),
) -> Orders:
    """The best candidate; `chunks_of[d]` are device d's chunks, first to last.

    `limit` is the most activations on a device, in micro-batches of a whole device: a chunk's are
    one part in the number of its device's chunks. `by_hand` are candidates that keep to it. Raises
    InvalidValueError for a limit under one micro-batch.
    """
    if limit < 1:
        raise InvalidValueError(f"limit of {limit} micro-batches a device; give at least 1")
    candidates = [(_cost(orders, costs), orders) for orders in by_hand]
    for choices in CHOICES:
        candidates.append(_Greedy(chunks_of, micro_batches, limit, costs, choices).run())
    for place in (0, 1):
        least = min(cost[place] for cost, _ in candidates)
        candidates = [one for one in candidates if one[0][place] <= least * (1 + 1e-9)]
    return candidates[0][1]


def _cost(orders: Orders, costs: Costs) -> Cost:
    links = link(orders)
    actions = [action for order in orders for action in order]
    start, end, _ = earliest(links, *seconds(links, actions, costs.duration_s, costs.transfer_s))
    first = links.first
    spans = (end[b - 1] - start[a] for a, b in pairwise(first))
    return max(spans), max(end)


@dataclass
class _Device:
    """What one device has done, and what it may do next."""

    chunks: Sequence[int]
    next_micro_batch: dict[tuple[ActionKind, int], int]
    order: list[Action]
    weights: deque[tuple[int, int]]
    """(chunk, micro-batch) whose W is to come, oldest first."""
    held: float = 0.0
    free_s: float = 0.0
    started_s: float = 0.0
    idle_s: float = 0.0
    last: ActionKind = W


class _Greedy:
    """One run of the heuristic."""

    def __init__(
        self,
        chunks_of: Sequence[Sequence[int]],
        micro_batches: int,
        limit: float,
        costs: Costs,
        choices: Choices,
    ) -> None:
        self.count, self.limit, self.costs, self.choices = micro_batches, limit, costs, choices
        self.devices = [
            _Device(row, {(k, c): 0 for c in row for k in (F, B)}, [], deque()) for row in chunks_of
        ]
        self.device_of = {c: d for d, row in enumerate(chunks_of) for c in row}
        self.last_chunk = max(self.device_of)
        self.ready: dict[tuple[ActionKind, int, int], float] = {
            (F, 0, i): 0.0 for i in range(micro_batches)
        }
        """When the inputs of an action are on its device, once that is known."""
        self.events: list[tuple[float, int]] = []
        self.longest_idle_s = 0.0
        self.tick_s = 1e-9 * max(
            costs.duration_s(kind, chunk, i)
            for kind in (F, B, W)
            for chunk in self.device_of
            for i in range(micro_batches)
        )
        """Times closer than this are one: rounding decides nothing."""

    def run(self) -> tuple[Cost, Orders]:
        """The orders, with their cost."""
        for d in range(len(self.devices)):
            heappush(self.events, (0.0, d))
        while self.events:
            time, d = heappop(self.events)
            if self.devices[d].free_s <= time:
                self._decide(d, time)
        spans = [one.free_s - one.started_s for one in self.devices]
        cost = max(spans), max(one.free_s for one in self.devices)
        return cost, tuple(tuple(one.order) for one in self.devices)

    def _decide(self, d: int, time: float) -> None:
        """Start the action that the rules name, or wait for the next input that is known of."""
        one = self.devices[d]
        forward, forward_s = self._first(one, F, time)
        backward, backward_s = self._first(one, B, time)
        if backward is not None and (forward is None or one.last is not B):
            self._start(d, B, *backward, time)
        elif forward is not None and not self._held_back(one, forward, time, backward_s):
            self._start(d, F, *forward, time)
        elif one.weights and self._worth_it(one, time, min(forward_s, backward_s)):
            self._start(d, W, *one.weights[0], time)
        elif min(forward_s, backward_s) < inf:
            heappush(self.events, (min(forward_s, backward_s), d))

    def _first(
        self, one: _Device, kind: ActionKind, time: float
    ) -> tuple[tuple[int, int] | None, float]:
        """The chunk and micro-batch that can start now, deepest first, and when the next one can.

        An F that does not fit cannot start, and no time is known from which it does.
        """
        soonest = inf
        for place in reversed(range(len(one.chunks))):
            chunk = one.chunks[place]
            i = one.next_micro_batch[kind, chunk]
            at = self.ready.get((kind, chunk, i), inf) if i < self.count else inf
            if at == inf or (kind is F and not self._fits(one, place)):
                continue
            if at <= time + self.tick_s:
                return (chunk, i), soonest
            soonest = min(soonest, at)
        return None, soonest

    def _fits(self, one: _Device, place: int) -> bool:
        """Whether one more F's activations fit, with room left for those of deeper chunks."""
        parts = len(one.chunks)
        return one.held + (parts - place) / parts <= self.limit * (1 + 1e-9)

    def _held_back(
        self, one: _Device, forward: tuple[int, int], time: float, backward_s: float
    ) -> bool:
        """Whether to leave an F for the first B, which comes before it would end."""
        if not self.choices.hold_forward or one.next_micro_batch[B, one.chunks[-1]] > 0:
            return False
        return backward_s + self.tick_s < time + self.costs.duration_s(F, *forward)

    def _worth_it(self, one: _Device, time: float, next_s: float) -> bool:
        """Whether to start a W, with the next input at `next_s`."""
        if next_s - time >= self.costs.duration_s(W, *one.weights[0]) - self.tick_s:
            return True
        match self.choices.fill:
            case Fill.W:
                return True
            case Fill.MOST_IDLE:
                return one.idle_s + next_s - time > self.longest_idle_s + self.tick_s
        return False

    def _start(self, d: int, kind: ActionKind, chunk: int, i: int, time: float) -> None:
        one, share, part = self.devices[d], self.costs.weight_share, 1 / len(self.devices[d].chunks)
        end = time + self.costs.duration_s(kind, chunk, i)
        if not one.order:
            one.started_s = time
        else:
            one.idle_s += time - one.free_s
            self.longest_idle_s = max(self.longest_idle_s, one.idle_s)
        one.order.append(Action(kind, chunk, i))
        one.free_s = end
        if kind is W:
            one.weights.popleft()
            one.held -= share * part
        else:
            one.last = kind
            one.next_micro_batch[kind, chunk] = i + 1
            one.held += part if kind is F else (share - 1) * part
        if kind is B:
            one.weights.append((chunk, i))
        for needed_by, to in self._results(kind, chunk):
            other = self.device_of[to]
            at = end if other == d else end + self.costs.transfer_s(chunk, to, i)
            self.ready[needed_by, to, i] = at
            if other != d:
                heappush(self.events, (max(time, self.devices[other].free_s), other))
        heappush(self.events, (end, d))

    def _results(self, kind: ActionKind, chunk: int) -> Iterator[tuple[ActionKind, int]]:
        """What an action's result is an input of."""
        if kind is F and chunk < self.last_chunk:
            yield F, chunk + 1
        elif kind is F:
            yield B, chunk
        elif kind is B and chunk > 0:
            yield B, chunk - 1
