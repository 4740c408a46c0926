"""Action: one piece of a pipeline's work, and what orders of actions must satisfy to run.

A model is cut into chunks 0 .. C-1; every micro-batch passes forward through all of them and back.

    F c.i   forward of chunk c on micro-batch i
    B c.i   its backward: of the inputs only where W stands beside it, else all of it
    W c.i   its backward of the weights

    F c.i needs F c-1.i         B c.i needs F c.i, and B c+1.i unless c is the last
    W c.i needs B c.i           an edge between devices is a transfer, of activations or gradients

Each device runs its own list of actions in order. `link` checks the lists of all devices and finds
who waits for whom; simulators and executors start from its answer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.scanner import made, shown

_ACTION: Final = re.compile(r"([FBW])(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")


class ActionKind(StrEnum):
    """What an action computes."""

    F = "F"
    """Forward."""
    B = "B"
    """Backward of the inputs; of the weights too in schedules without W."""
    W = "W"
    """Backward of the weights."""


_ROW: Final = {ActionKind.F: 0, ActionKind.B: 1, ActionKind.W: 2}


@dataclass(frozen=True, slots=True)
class Action:
    """One chunk's work on one micro-batch. Text: `F2.5`, chunk 2 and micro-batch 5.

    Raises InvalidValueError unless chunk and micro-batch are ints from 0.
    """

    kind: ActionKind
    chunk: int
    micro_batch: int

    def __post_init__(self) -> None:
        chunk, micro_batch = self.chunk, self.micro_batch
        ints = type(chunk) is int and type(micro_batch) is int
        if (
            type(self.kind) is not ActionKind
            or not ints
            or not 0 <= chunk < 10**9
            or not 0 <= micro_batch < 10**9
        ):
            raise InvalidValueError(
                f"action {shown((self.kind, chunk, micro_batch))}: give an ActionKind, and a chunk "
                "and a micro-batch numbered from 0"
            )

    def __str__(self) -> str:
        return f"{self.kind}{self.chunk}.{self.micro_batch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """The action that prints as `text`; raises ParseError."""
        found = _ACTION.fullmatch(text) if type(text) is str else None
        if found is None:
            raise ParseError(f"cannot parse {shown(text)} as an action: expected a form like F2.5")
        return made(text, cls, ActionKind(found[1]), int(found[2]), int(found[3]))


Order = Sequence[Action]
"""The actions of one device, in the order in which it runs them."""


@dataclass(frozen=True, slots=True)
class Links:
    """Orders that can run: their sizes, and for every action the one on another device before it.

    Actions are numbered device by device, in order: `first[d] + k` is action k of device d.
    """

    chunks: int
    micro_batches: int
    splits_backward: bool
    """Whether there are W actions."""
    device_of_chunk: tuple[int, ...]
    first: tuple[int, ...]
    """Number of the first action of each device, and of all at the end."""
    producer: tuple[int, ...]
    """Of each action, the number of the action on another device whose result it needs; else -1."""
    consumer: tuple[int, ...]
    """Of each action, the number of the action on another device that needs its result; else -1."""
    sequence: tuple[int, ...]
    """All actions so that each comes after those that it needs and those before it on its
    device."""

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.first) - 1


def link(orders: Sequence[Order]) -> Links:
    """Check the orders of all devices and link their actions.

    Raises InvalidValueError unless chunks and micro-batches are numbered from 0, F and B of each
    pair are there exactly once (W for all pairs or none), all actions of a chunk are on one device
    and in the order F, B, W, and the devices, each waiting for what the next action needs, all
    reach their ends.
    """
    actions = [action for order in orders for action in order]
    if not actions:
        raise InvalidValueError("the orders hold no action; give F and B of one micro-batch")
    chunks = 1 + max(action.chunk for action in actions)
    count = 1 + max(action.micro_batch for action in actions)
    first = [0]
    for order in orders:
        first.append(first[-1] + len(order))
    splits = any(action.kind is ActionKind.W for action in actions)
    needed = (3 if splits else 2) * chunks * count
    if len(actions) < needed:
        raise InvalidValueError(
            f"{len(actions)} actions of {chunks} chunks and {count} micro-batches: {needed} are "
            f"needed, F, B{', W' if splits else ''} of every pair once; add those that are missing"
        )
    number_of, device_of_chunk = _numbered(orders, chunks, count)
    producer = _producers(number_of, device_of_chunk, chunks, count, splits)
    consumer = [-1] * len(actions)
    for number, made_by in enumerate(producer):
        if made_by >= 0:
            consumer[made_by] = number
    sequence = _sequence(actions, first, producer, consumer)
    return Links(chunks, count, splits, tuple(device_of_chunk), tuple(first), tuple(producer),
                 tuple(consumer), sequence)  # fmt: skip


def _numbered(orders: Sequence[Order], chunks: int, count: int) -> tuple[list[int], list[int]]:
    """Number of each action by (kind, chunk, micro-batch), and the device of each chunk."""
    number_of = [-1] * (3 * chunks * count)
    device_of_chunk = [-1] * chunks
    number = 0
    for device, order in enumerate(orders):
        for action in order:
            chunk = action.chunk
            key = (_ROW[action.kind] * chunks + chunk) * count + action.micro_batch
            if number_of[key] >= 0:
                raise InvalidValueError(f"{action} comes twice; every action comes once")
            if device_of_chunk[chunk] != device:
                if device_of_chunk[chunk] >= 0:
                    raise InvalidValueError(
                        f"{action} is on device {device} and chunk {chunk} is on device "
                        f"{device_of_chunk[chunk]}: put all its actions on one"
                    )
                device_of_chunk[chunk] = device
            number_of[key] = number
            number += 1
    return number_of, device_of_chunk


def _producers(
    number_of: list[int], device_of_chunk: list[int], chunks: int, count: int, splits: bool
) -> list[int]:
    """Who on another device is waited for; local needs are checked at once."""
    size = chunks * count
    producer = [-1] * (size * (3 if splits else 2))

    def local(before: int, after: int) -> None:
        if number_of[before] > number_of[after]:
            names = [
                Action(tuple(ActionKind)[key // size], key // count % chunks, key % count)
                for key in (after, before)
            ]
            raise InvalidValueError(
                f"{names[0]} comes before {names[1]}, whose result it needs, on device "
                f"{device_of_chunk[names[0].chunk]}; swap them"
            )

    for chunk in range(chunks):
        here = device_of_chunk[chunk]
        for i in range(chunk * count, (chunk + 1) * count):
            local(i, size + i)
            if splits:
                local(size + i, 2 * size + i)
            for needs, key in ((i - count, i), (size + i + count, size + i)):
                before = chunk - 1 if key == i else chunk + 1
                if not 0 <= before < chunks:
                    continue
                if device_of_chunk[before] == here:
                    local(needs, key)
                else:
                    producer[number_of[key]] = number_of[needs]
    return producer


def _sequence(
    actions: list[Action], first: list[int], producer: list[int], consumer: list[int]
) -> tuple[int, ...]:
    """All actions in an order in which they can run; raises InvalidValueError for a deadlock."""
    done = [False] * len(actions)
    at = first[:-1]
    device_of = [device for device, (a, b) in enumerate(pairwise(first)) for _ in range(a, b)]
    sequence: list[int] = []
    ready = list(range(len(at)))
    while ready:
        device = ready.pop()
        number, end = at[device], first[device + 1]
        while number < end and (producer[number] < 0 or done[producer[number]]):
            done[number] = True
            sequence.append(number)
            if consumer[number] >= 0 and at[device_of[consumer[number]]] == consumer[number]:
                ready.append(device_of[consumer[number]])
            number += 1
        at[device] = number
    if len(sequence) < len(actions):
        waits = [
            f"device {device} before {actions[number]} for {actions[producer[number]]}"
            for device, number in enumerate(at)
            if number < first[device + 1]
        ]
        raise InvalidValueError(
            f"the orders never end: {waiting(waits)}; move an action that is waited for forward"
        )
    return tuple(sequence)


def waiting(waits: Sequence[str]) -> str:
    """`... waits: a; b; c and 4 more`, for errors."""
    more = f" and {len(waits) - 3} more" if len(waits) > 3 else ""
    return f"there wait {', '.join(waits[:3])}{more}"
