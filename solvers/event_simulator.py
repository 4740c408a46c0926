"""When the actions of a pipeline run: their orders, durations and transfers to a Timeline.

Each device runs its actions in the order that it is given, one at a time, each as early as it can.
An action waits for the one before it on its device and for the message with its input from another
device. Three ways for messages to travel:

    overlapped  a message leaves when its action ends and takes `transfer_s`; computing goes on at
                both ends. Messages do not slow each other down.
    receiver    the receiver waits while a message travels, which starts when it is there, right
                before the action that needs it; the sender goes on.
    blocking    both devices wait while a message travels, and it starts when both are there: the
                sender right after the action, the receiver right before the action that needs it.
                A device sends and receives in one batch between two actions. Megatron-LM's 1F1B
                with batched point-to-point calls (`send_forward_recv_backward`) does this. Orders
                that overlapped messages can run may deadlock here; that is an error.

The work is linear in the number of actions.
"""

from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.schedule_action import Links, Order, link, waiting
from shardwise.ir.schedule_times import Duration, Times, Transfer, earliest, seconds
from shardwise.solvers.timeline import Message, Timeline


class Transfers(StrEnum):
    """What devices do while a message travels; see the module."""

    OVERLAPPED = "overlapped"
    RECEIVER = "receiver"
    BLOCKING = "blocking"


def simulate(
    orders: Sequence[Order],
    duration_s: Duration,
    transfer_s: Transfer = lambda *_: 0.0,
    *,
    transfers: Transfers = Transfers.OVERLAPPED,
) -> Timeline:
    """Run the orders of all devices, beginning at time 0.

    Transfers between chunks of one device are not asked for. Raises InvalidValueError for orders
    that `link` refuses, for a deadlock of blocking messages, and for a negative or unknown number
    of seconds.
    """
    links = link(orders)
    actions = [action for order in orders for action in order]
    durations, travel = seconds(links, actions, duration_s, transfer_s)
    if transfers is Transfers.BLOCKING:
        start, end, leaves = _blocking(links, durations, travel, orders)
    else:
        held = transfers is Transfers.RECEIVER
        start, end, leaves = earliest(links, durations, travel, held=held)
    first = links.first
    return Timeline(
        tuple(map(tuple, orders)),
        tuple(tuple(start[a:b]) for a, b in pairwise(first)),
        tuple(tuple(end[a:b]) for a, b in pairwise(first)),
        tuple(
            Message(actions[k], actions[to], leaves[to], leaves[to] + travel[to])
            for k, to in enumerate(links.consumer)
            if to >= 0
        ),
    )


def _blocking(
    links: Links, durations: list[float], travel: list[float], orders: Sequence[Order]
) -> Times:
    count = len(durations)
    start, end, leaves = [0.0] * count, [-1.0] * count, [0.0] * count
    first, producers, consumers = links.first, links.producer, links.consumer
    device_of = [d for d, order in enumerate(orders) for _ in order]
    at = list(first[:-1])

    def there(number: int) -> float:
        """When a device is there to receive the input of an action; negative if not known yet."""
        return 0.0 if number == first[device_of[number]] else end[number - 1]

    pending = set(range(len(orders)))
    while pending:
        device = pending.pop()
        number = at[device]
        while number < first[device + 1]:
            begin = there(number)
            received = producers[number]
            sent = consumers[number - 1] if number > first[device] else -1
            waits = (received >= 0 and end[received] < 0) or (sent >= 0 and there(sent) < 0)
            if waits:
                break
            arrived = begin
            if received >= 0:
                leaves[number] = max(begin, end[received])
                arrived = leaves[number] + travel[number]
            if sent >= 0:
                leaves[sent] = max(begin, there(sent))
                arrived = max(arrived, leaves[sent] + travel[sent])
            start[number] = arrived
            end[number] = arrived + durations[number]
            for other in (consumers[number], _sender(links, number + 1, first[device + 1])):
                if other >= 0:
                    pending.add(device_of[other])
            number += 1
        at[device] = number
    stuck = [d for d, number in enumerate(at) if number < first[d + 1]]
    if stuck:
        waits_for = [f"device {d} at {orders[d][at[d] - first[d]]}" for d in stuck]
        raise InvalidValueError(
            f"blocking messages deadlock: {waiting(waits_for)}; use overlapped transfers for "
            "these orders"
        )
    for number, to in enumerate(consumers):
        if to >= 0 and number + 1 == first[device_of[number] + 1]:
            leaves[to] = max(end[number], there(to))
    return start, end, leaves


def _sender(links: Links, number: int, stop: int) -> int:
    """Who sends the input of an action of the same device, -1 for none."""
    return links.producer[number] if number < stop else -1
