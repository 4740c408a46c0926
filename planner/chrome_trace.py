"""Timelines as Chrome trace events: JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

A process is a class of ranks that all do the same (a pipeline stage), its threads are lanes:
`compute` and `communication`. Spans of a lane never overlap: those that would go to a further lane
of the same name with a number. Times are microseconds from the start of the step. The format is
Google's "Trace Event Format": events of phase X (complete), C (counter) and M (metadata).
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.scanner import shown
from shardwise.solvers.timeline import Timeline

COMPUTE: Final = "compute"
COMMUNICATION: Final = "communication"
_MICROSECONDS: Final = 1e6

Event = dict[str, object]


@dataclass(frozen=True, slots=True)
class Span:
    """Something that a class of ranks does for a while. Raises InvalidValueError for bad times."""

    process: str
    lane: str
    name: str
    start_s: float
    duration_s: float
    arguments: tuple[tuple[str, str | int | float], ...] = ()
    """What a click on the span shows."""

    def __post_init__(self) -> None:
        times = (self.start_s, self.duration_s)
        if not all(0 <= time < float("inf") for time in times):
            raise InvalidValueError(
                f"span {shown(self.name)} starts at {times[0]!r} s and lasts {times[1]!r} s; give "
                "finite times of at least 0"
            )

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True)
class Count:
    """A number that holds from a time on, drawn as a curve."""

    process: str
    name: str
    time_s: float
    value: float


def save_trace(path: Path, spans: Iterable[Span], counts: Iterable[Count] = ()) -> None:
    """Write a trace file, and the folder that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(trace_text(spans, counts), encoding="utf-8")


def trace_text(spans: Iterable[Span], counts: Iterable[Count] = ()) -> str:
    """The JSON text of a trace file."""
    events = trace_events(list(spans), list(counts))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False) + "\n"


def trace_events(spans: Sequence[Span], counts: Sequence[Count] = ()) -> list[Event]:
    """Events in the order of processes, lanes and time; processes in the order of their coming."""
    named = [*(one.process for one in spans), *(one.process for one in counts)]
    processes = list(dict.fromkeys(named))
    events: list[Event] = []
    for pid, process in enumerate(processes):
        events.append(_metadata("process_name", pid, 0, name=process))
        events.append(_metadata("process_sort_index", pid, 0, sort_index=pid))
        mine = sorted((one for one in spans if one.process == process), key=_by_lane)
        for tid, (lane, row) in enumerate(_lanes(mine)):
            events.append(_metadata("thread_name", pid, tid, name=lane))
            events.append(_metadata("thread_sort_index", pid, tid, sort_index=tid))
            events += [_complete(one, pid, tid) for one in row]
        events += [_counter(one, pid) for one in counts if one.process == process]
    return events


def timeline_spans(timeline: Timeline, processes: Sequence[str] = ()) -> Iterator[Span]:
    """A pipeline's actions, and its messages as their receivers see them.

    `processes[d]` names device d, `device d` by default.
    """
    names = processes or [f"device {d}" for d in range(timeline.devices)]
    device_of = {}
    for device, action, start, end in timeline.tasks():
        device_of[action] = device
        arguments = (("chunk", action.chunk), ("micro-batch", action.micro_batch))
        yield Span(names[device], COMPUTE, str(action), start, end - start, arguments)
    for source, target, start, end in timeline.messages:
        arrow = f"{source} to {target}"
        yield Span(names[device_of[target]], COMMUNICATION, arrow, start, end - start)


def _by_lane(span: Span) -> tuple[bool, str, float, float]:
    return span.lane != COMPUTE, span.lane, span.start_s, span.end_s


def _lanes(spans: Sequence[Span]) -> Iterator[tuple[str, list[Span]]]:
    """Spans, sorted by lane and start, dealt to as few lanes of their name as do not overlap."""
    for lane, group in groupby(spans, key=lambda one: one.lane):
        rows: list[list[Span]] = []
        for span in group:
            free = next((row for row in rows if row[-1].end_s <= span.start_s), None)
            if free is None:
                rows.append([span])
            else:
                free.append(span)
        for number, row in enumerate(rows):
            yield lane if number == 0 else f"{lane} {number + 1}", row


def _complete(span: Span, pid: int, tid: int) -> Event:
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.lane,
        "pid": pid,
        "tid": tid,
        "ts": span.start_s * _MICROSECONDS,
        "dur": span.duration_s * _MICROSECONDS,
        "args": dict(span.arguments),
    }


def _counter(count: Count, pid: int) -> Event:
    time = count.time_s * _MICROSECONDS
    return {"ph": "C", "name": count.name, "pid": pid, "ts": time, "args": {"value": count.value}}


def _metadata(what: str, pid: int, tid: int, **arguments: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments}
