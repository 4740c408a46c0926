"""Schedule: what every device of a pipeline does, action by action, and the kinds that we make.

`docs/design/schedules.md` compares the kinds.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.scanner import made, shown
from shardwise.ir.schedule_action import Action, link
from shardwise.ir.schedule_by_hand import zb_h, zb_v
from shardwise.ir.schedule_orders import Orders, gpipe, interleaved, one_forward_one_backward
from shardwise.ir.schedule_zero_bubble import Costs, zero_bubble


class ScheduleKind(StrEnum):
    """How micro-batches pass through a pipeline of p devices."""

    GPIPE = "gpipe"
    """All forwards, then all backwards (Huang et al. 2019, arXiv:1811.06965)."""
    ONE_F_ONE_B = "1f1b"
    """At most p micro-batches in flight (Narayanan et al. 2021, arXiv:2104.04473, 2.2.1)."""
    INTERLEAVED = "interleaved_1f1b"
    """The same with several chunks a device (2.2.2 there)."""
    ZB_H1 = "zb_h1"
    """Zero bubble with 1F1B's memory (Qi et al. 2024, arXiv:2401.10241, ZB-H1 and ZB-1p)."""
    ZB_H2 = "zb_h2"
    """Zero bubble with twice that (ZB-H2 and ZB-2p)."""
    ZB_V = "zb_v"
    """Zero bubble with 1F1B's memory and two chunks a device, down and back up (ZB-V)."""

    @property
    def splits_backward(self) -> bool:
        """Whether the backward of the weights is an action of its own, W."""
        return self.value.startswith("zb_")

    @property
    def takes_chunks(self) -> bool:
        """Whether a device runs several chunks of the model."""
        return self in (ScheduleKind.INTERLEAVED, ScheduleKind.ZB_V)


_CHUNKS: Final = {ScheduleKind.ZB_V: 2}
"""Chunks of a device where there is no choice and they are not 1."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A kind and the orders of all devices, which `schedule_action.link` accepts.

    Text: `1f1b F0.0 F0.1 B0.0 B0.1 | F1.0 B1.0 F1.1 B1.1`. Raises InvalidValueError.
    """

    kind: ScheduleKind
    orders: Orders

    def __post_init__(self) -> None:
        if type(self.kind) is not ScheduleKind:
            raise InvalidValueError(f"kind {shown(self.kind)}: give a ScheduleKind")
        link(self.orders)

    def __str__(self) -> str:
        return f"{self.kind} " + " | ".join(" ".join(map(str, order)) for order in self.orders)

    @classmethod
    def parse(cls, text: str) -> "Schedule":
        """The schedule that prints as `text`; raises ParseError."""
        word, _, rest = text.partition(" ") if type(text) is str else ("", "", "")
        if word not in set(ScheduleKind):
            raise ParseError(
                f"cannot parse {shown(text)} as a schedule: expected a form like "
                "'1f1b F0.0 B0.0 | F1.0 B1.0', with one of the kinds " + ", ".join(ScheduleKind)
            )
        orders = tuple(
            tuple(Action.parse(one) for one in part.split(" ") if part)
            for part in rest.split(" | ")
        )
        return made(text, cls, ScheduleKind(word), orders)


def actions(
    kind: ScheduleKind,
    *,
    devices: int,
    micro_batches: int,
    chunks_per_device: int | None = None,
    costs: Costs | None = None,
    activation_limit: float | None = None,
) -> Orders:
    """Per device, its actions in order; `schedule_action.link` accepts them.

    Micro-batches may be of any sizes: but for the zero-bubble kinds, orders depend on their number
    alone. Those read `costs` (default: F, B and W of equal time, no transfers) and keep to
    `activation_limit`, the most micro-batches whose activations a device holds (default: p, 2 p for
    zb_h2). `chunks_per_device` is at least 2 for interleaved_1f1b, and fixed for the others. Raises
    InvalidValueError.
    """
    for name, value in (("devices", devices), ("micro_batches", micro_batches)):
        if type(value) is not int or value < 1:
            raise InvalidValueError(f"{name} is {shown(value)}; give a whole number from 1")
    fixed = _CHUNKS.get(kind, 1)
    chunks = fixed if chunks_per_device is None else chunks_per_device
    if kind is ScheduleKind.INTERLEAVED:
        if type(chunks) is not int or chunks < 2:
            raise InvalidValueError(
                f"chunks_per_device is {shown(chunks)} in {kind}; give 2 or more, or use 1f1b"
            )
    elif chunks != fixed:
        raise InvalidValueError(f"chunks_per_device is {shown(chunks)}; {kind} has {fixed}")
    match kind:
        case ScheduleKind.GPIPE:
            orders = gpipe(devices, micro_batches)
        case ScheduleKind.ONE_F_ONE_B:
            orders = one_forward_one_backward(devices, micro_batches)
        case ScheduleKind.INTERLEAVED:
            orders = interleaved(devices, micro_batches, chunks)
        case _:
            limit = activation_limit
            if limit is None:
                limit = 2 * devices if kind is ScheduleKind.ZB_H2 else devices
            orders = _zero_bubble(
                kind, devices, micro_batches, limit, costs or Costs.equal(1, 1, 1)
            )
    link(orders)
    return orders


def device_of(kind: ScheduleKind, chunk: int, devices: int) -> int:
    """The device of a chunk: chunk modulo devices, as Megatron-LM deals them; in zb_v down the
    devices and back up."""
    if kind is ScheduleKind.ZB_V and chunk >= devices:
        return 2 * devices - 1 - chunk
    return chunk % devices


def _zero_bubble(
    kind: ScheduleKind, devices: int, micro_batches: int, limit: float, costs: Costs
) -> Orders:
    by_hand: list[Orders] = []
    chunks = devices * _CHUNKS.get(kind, 1)
    chunks_of = [
        [chunk for chunk in range(chunks) if device_of(kind, chunk, devices) == device]
        for device in range(devices)
    ]
    if kind is ScheduleKind.ZB_V:
        if limit >= devices:
            by_hand.append(zb_v(devices, micro_batches))
    else:
        by_hand += [
            zb_h(devices, micro_batches, rounds)
            for rounds in (1, 2)
            if devices + (rounds - 1) * (devices - 1) <= limit
        ]
    return zero_bubble(chunks_of, micro_batches, limit, costs, by_hand)
