"""Timeline: when every action of a pipeline ran, and the memory that this takes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.scanner import shown
from shardwise.ir.schedule_action import Action, ActionKind

Bytes = Callable[[int, int], float]
"""(chunk, micro-batch) -> bytes on the device of the chunk."""


class Message(NamedTuple):
    """One result on its way to another device."""

    source: Action
    target: Action
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Start and end of every action, device by device in order, from time 0.

    No two actions of a device overlap; they stand in the order that the device was given. Raises
    InvalidValueError otherwise.
    """

    orders: tuple[tuple[Action, ...], ...]
    start_s: tuple[tuple[float, ...], ...]
    """Per device and action."""
    end_s: tuple[tuple[float, ...], ...]
    messages: tuple[Message, ...] = ()
    """Transfers between devices, in the order of the actions that send them."""

    def __post_init__(self) -> None:
        for device, (order, starts, ends) in enumerate(
            zip(self.orders, self.start_s, self.end_s, strict=True)
        ):
            before = 0.0
            for action, start, end in zip(order, starts, ends, strict=True):
                if not before <= start <= end:
                    raise InvalidValueError(
                        f"{action} runs from {shown(start)} to {shown(end)} s on device {device}, "
                        f"which is free from {shown(before)} s; give times in order"
                    )
                before = end

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.orders)

    @property
    def makespan_s(self) -> float:
        """End of the last action of all."""
        return max((ends[-1] for ends in self.end_s if ends), default=0.0)

    @property
    def period_s(self) -> float:
        """The most seconds that a device takes from its first action to its last.

        The time of a step where no device waits for another between steps (optimizer steps without
        a global norm, arXiv:2401.10241 section 4); with such a wait it is `makespan_s`.
        """
        return max(map(self.span_s, range(self.devices)))

    @property
    def idle_share(self) -> float:
        """Of the devices' time up to the end of all, the part in which none of them computes."""
        whole = self.makespan_s * self.devices
        return 1 - sum(map(self.busy_s, range(self.devices))) / whole if whole else 0.0

    def busy_s(self, device: int) -> float:
        """Seconds in which a device computes."""
        return sum(self.end_s[device]) - sum(self.start_s[device])

    def idle_s(self, device: int) -> float:
        """Seconds up to the end of all in which a device does not compute."""
        return self.makespan_s - self.busy_s(device)

    def span_s(self, device: int) -> float:
        """Seconds from a device's first action to the end of its last."""
        return self.end_s[device][-1] - self.start_s[device][0] if self.end_s[device] else 0.0

    def bubble_s(self, device: int) -> float:
        """Seconds between a device's first action and its last in which it does not compute."""
        return self.span_s(device) - self.busy_s(device)

    def tasks(self) -> Iterator[tuple[int, Action, float, float]]:
        """(device, action, start, end) of every action, device by device."""
        for device, order in enumerate(self.orders):
            for action, start, end in zip(
                order, self.start_s[device], self.end_s[device], strict=True
            ):
                yield device, action, start, end

    def in_flight(self) -> tuple[int, ...]:
        """Per device, the most pairs of chunk and micro-batch between F and their last action."""
        return tuple(int(peak.bytes) for peak in memory(self, lambda *_: 1, lambda *_: 1))


@dataclass(frozen=True, slots=True)
class Peak:
    """The most memory that a device holds, and when it first does."""

    bytes: float
    time_s: float
    action: Action | None
    """The action that starts then; None for a device without any."""


def memory(
    timeline: Timeline,
    saved_bytes: Bytes,
    weight_bytes: Bytes,
    transient_bytes: Callable[[ActionKind, int, int], float] = lambda *_: 0,
    fixed_bytes: Sequence[float] = (),
) -> tuple[Peak, ...]:
    """Walk the memory of every device; the peak of each. Grows with each of its inputs.

    A pair of chunk and micro-batch holds `saved_bytes` from the start of F to the end of B, then
    `weight_bytes` (what the backward of weights reads) to the end of W; without W it holds nothing
    after B. `transient_bytes` are held while their action runs, `fixed_bytes[device]` always.
    """
    peaks = []
    for device, order in enumerate(timeline.orders):
        split = any(action.kind is ActionKind.W for action in order)
        held = fixed = fixed_bytes[device] if fixed_bytes else 0
        peak = Peak(fixed, 0.0, None)
        for action, start in zip(order, timeline.start_s[device], strict=True):
            pair = (action.chunk, action.micro_batch)
            if action.kind is ActionKind.F:
                held += saved_bytes(*pair)
            now = held + transient_bytes(action.kind, *pair)
            if now > peak.bytes or peak.action is None:
                peak = Peak(now, start, action)
            if action.kind is ActionKind.B:
                held -= saved_bytes(*pair)
                held += weight_bytes(*pair) if split else 0
            elif action.kind is ActionKind.W:
                held -= weight_bytes(*pair)
        peaks.append(peak)
    return tuple(peaks)
