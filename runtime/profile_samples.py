"""Repeated timings of many cases on all ranks, and the figure that is made of them.

The cases of a group are timed in turns, and the whole list of groups is gone through several times,
so that a slow second of the machine falls on every case alike. A figure is a quantile of all
repeats: the median, or the fastest fifth where other processes have a share of the cores, because
what they add is not the device's (`shared_by_others` tells). Its spread, (third quartile - first) /
median, is kept beside it. Of several ranks the slowest counts.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

import torch

from shardwise.runtime.communicator import Communicator

LEAST_S: Final = 0.0005
"""A timing lasts at least this long; shorter calls are repeated inside it."""
MOST_CALLS: Final = 64
SHARED: Final = 0.03
"""Other processes have a share of the cores if a busy loop waits for this part of its time."""
FAST: Final = 0.2
"""Quantile where the machine is shared."""


@dataclass(frozen=True)
class Case:
    """One thing to time: `run` does it `calls` times."""

    key: str
    """The curve that it is a point of."""
    x: float
    """FLOP or bytes of one call."""
    run: Callable[[], object]
    calls: int = 1
    before: Callable[[], object] | None = None
    """Done before every `run`, and not timed."""


@dataclass(frozen=True)
class Planned:
    """A case that is not built yet: building makes its tensors."""

    key: str
    x: float
    build: Callable[[], Case]


@dataclass(frozen=True)
class Group:
    """Cases of growing size whose tensors exist while the group is timed.

    What is larger than a case over the time limit is not built.
    """

    title: str
    cases: tuple[Planned, ...]
    everywhere: bool = False
    """Every rank takes part even where ranks share a device: a collective."""


@dataclass
class Samples:
    """Seconds of one call by (curve, x): of every repeat, on this rank."""

    seconds: dict[tuple[str, float], list[float]] = field(default_factory=dict)
    yards: dict[tuple[str, float], list[float]] = field(default_factory=dict)
    """Of the same repeats, seconds of the yardstick just before; none where it is not used."""

    def add(self, case: Case, seconds: float, yard_s: float | None = None) -> None:
        """One more repeat."""
        self.seconds.setdefault((case.key, case.x), []).append(seconds)
        if yard_s is not None:
            self.yards.setdefault((case.key, case.x), []).append(yard_s)

    def at_pace(self, key: tuple[str, float], usual_s: float) -> list[float]:
        """The repeats of a case, had the core always been as fast as when the yardstick took
        `usual_s`."""
        seconds = self.seconds.get(key, [])
        yards = self.yards.get(key, [usual_s] * len(seconds))
        return [one * usual_s / yard_s for one, yard_s in zip(seconds, yards, strict=True)]


@dataclass(frozen=True, slots=True)
class Figure:
    """What many repeats come to."""

    seconds: float
    spread: float
    repeats: int

    @classmethod
    def of(cls, seconds: Sequence[float], quantile: float) -> "Figure":
        """The quantile of some repeats, which need no order."""
        values = sorted(seconds)
        middle = at_quantile(values, 0.5)
        spread = (at_quantile(values, 0.75) - at_quantile(values, 0.25)) / middle
        return cls(at_quantile(values, quantile), spread, len(values))


def at_quantile(values: Sequence[float], quantile: float) -> float:
    """The value at a quantile of sorted values, straight between two of them."""
    place = quantile * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


class Stopwatch:
    """Times calls on a device: by events on cuda; on cpu by the time that this thread had a core,
    which other processes don't lengthen, or by the clock where calls wait for other ranks."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def seconds(
        self,
        run: Callable[[], object],
        times: int = 1,
        before: Callable[[], object] | None = None,
        *,
        waits: bool = False,
    ) -> float:
        """Seconds of `times` calls, done one after the other; `before` each is not in them.
        `waits` says that they wait for other ranks."""
        if before is not None:
            total = 0.0
            for _ in range(times):
                before()
                total += self.seconds(run, waits=waits)
            return total
        if self.device.type == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            for _ in range(times):
                run()
            stop.record()
            stop.synchronize()
            return float(start.elapsed_time(stop)) / 1e3
        clock = time.perf_counter if waits else time.thread_time
        started = clock()
        for _ in range(times):
            run()
        return clock() - started


YARD_ELEMENTS: Final = 1 << 16
YARD_WIDTH: Final = 128


class Yardstick:
    """The same work over and over, to see how fast this core is now: clock rates and what else runs
    on the same chip change a core's speed by half from one second to the next."""

    def __init__(self) -> None:
        self._a, self._x = torch.randn(YARD_WIDTH, YARD_WIDTH), torch.randn(YARD_ELEMENTS)
        self.seconds: list[float] = []

    def take(self) -> float:
        """Seconds of the work now: the median of three tries."""
        self.seconds.append(sorted(self._once() for _ in range(3))[1])
        return self.seconds[-1]

    @property
    def usual_s(self) -> float:
        """The median of all that was taken; 1 where nothing was."""
        return at_quantile(sorted(self.seconds), 0.5) if self.seconds else 1.0

    def _once(self) -> float:
        started = time.thread_time()
        for _ in range(4):  # products, pointwise operators, and their start
            _ = self._a @ self._a
            for _ in range(2):
                _ = self._x + self._x
        return time.thread_time() - started


def shared_by_others(seconds: float = 0.2, *, sharing: int = 1) -> float:
    """The part of its time for which a busy loop of this process had no core, 0 to 1, beyond what
    `sharing` ranks of a core that all run it take from each other."""
    started, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        pass
    waited = time.perf_counter() - started - (time.process_time() - used)
    return max(0.0, waited / (time.perf_counter() - started) - (1 - 1 / sharing))


def ranks_per_device(communicator: Communicator, device: torch.device) -> int:
    """Ranks that share a device of this node: cores on cpu, as many as this process may use."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", communicator.world_size))
    if device.type == "cuda":
        return ceil(local / max(1, torch.cuda.device_count()))
    return ceil(local / len(os.sched_getaffinity(0)))


class Session:
    """Times groups of cases on all ranks at once; every method is a collective of them."""

    def __init__(
        self,
        communicator: Communicator,
        device: torch.device,
        *,
        sharing: int = 1,
        passes: int = 2,
        repeats: int = 10,
        longest_s: float = 0.06,
        budget_s: float = 0.3,
    ) -> None:
        self.communicator, self.device = communicator, device
        self.everyone = tuple(range(communicator.world_size))
        communicator.declare_groups((self.everyone,))
        self.passes, self.repeats = passes, repeats
        self.longest_s, self.budget_s = longest_s, budget_s
        """No case is larger than the first that takes `longest_s`; a case has `budget_s` a pass."""
        self.stopwatch = Stopwatch(device)
        self.samples = Samples()
        self.yardstick = Yardstick()
        self.sharing = sharing
        self.computes = communicator.rank % sharing == 0
        """Whether this rank times what one device does alone."""

    def run(
        self, groups: Sequence[Group], done: Callable[[str], None] = lambda title: None
    ) -> None:
        """Time all groups, `passes` times over; `done` hears of each that is finished."""
        for _ in range(self.passes):
            for group in groups:
                self._group(group)
                done(group.title)

    def _group(self, group: Group) -> None:
        active = self.computes or group.everywhere
        ready: list[tuple[Case, int, int]] = []
        for planned in group.cases:
            case = planned.build() if active else None
            pilot = 0.0
            if case is not None:
                case.run()
                pilot = self.stopwatch.seconds(case.run, waits=group.everywhere) / case.calls
            pilot = self.largest(pilot)
            most_calls = self.largest(case.calls if case is not None else 0)
            if case is not None:
                times = min(MOST_CALLS, ceil(LEAST_S / max(1e-7, pilot * case.calls)))
                most = int(self.budget_s / max(1e-7, pilot * case.calls * times))
                ready.append((case, times, min(self.repeats, max(1, most))))
            if pilot * most_calls > self.longest_s:
                break
        self.communicator.barrier(self.everyone)
        steady = group.everywhere or self.device.type != "cpu"
        for repeat in range(self.repeats):
            yard_s = None if steady or not ready else self.yardstick.take()
            for case, times, most in ready:
                if repeat < most:
                    seconds = self.stopwatch.seconds(
                        case.run, times, case.before, waits=group.everywhere
                    )
                    self.samples.add(case, seconds / times / case.calls, yard_s)
        self.communicator.barrier(self.everyone)

    def largest(self, value: float) -> float:
        """The largest of the ranks' values."""
        return max(row[0] for row in self.gathered([value]))

    def gathered(self, values: Sequence[float]) -> list[list[float]]:
        """Every rank's values; all ranks give equally many."""
        mine = torch.tensor(list(values), dtype=torch.float64, device=self.device)
        rows: list[list[float]] = self.communicator.all_gather(mine, self.everyone).tolist()
        return rows

    def figures(self, quantile: float) -> dict[str, dict[float, Figure]]:
        """Per curve and x the slowest rank's figure, among the ranks that timed it.

        The first rank times everything; the others, who may have timed a part, get its list.
        """
        result: dict[str, dict[float, Figure]] = {}
        for key, x in self._keys():
            mine = self.samples.at_pace((key, x), self.yardstick.usual_s)
            one = Figure.of(mine, quantile) if mine else Figure(0.0, 0.0, 0)
            rows = self.gathered([one.seconds, one.spread, float(one.repeats)])
            seconds, spread, repeats = max(rows)
            result.setdefault(key, {})[x] = Figure(seconds, spread, int(repeats))
        return result

    def _keys(self) -> list[tuple[str, float]]:
        """What the first rank has timed, on every rank."""
        text = json.dumps(list(self.samples.seconds)).encode()
        size = int(self.largest(len(text) if self.communicator.rank == 0 else 0))
        mine = torch.zeros(size, dtype=torch.uint8)
        if self.communicator.rank == 0:
            mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        sent = self.communicator.broadcast(mine.to(self.device), self.everyone, 0)
        return [(str(key), float(x)) for key, x in json.loads(bytes(sent.tolist()))]
