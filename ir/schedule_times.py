"""When linked actions run at the earliest, with messages that travel between their devices."""

from collections.abc import Callable, Sequence
from math import inf

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.schedule_action import Action, ActionKind, Links

Duration = Callable[[ActionKind, int, int], float]
"""(kind, chunk, micro-batch) -> seconds of the action."""
Transfer = Callable[[int, int, int], float]
"""(from chunk, to chunk, micro-batch) -> seconds of a message between their devices."""
Times = tuple[list[float], list[float], list[float]]
"""Of every action by number: start, end, and when the message with its input leaves (0 where no
message brings it)."""


def earliest(
    links: Links, durations: Sequence[float], travel: Sequence[float], *, held: bool = False
) -> Times:
    """Run every action as early as the one before it on its device and its message allow.

    By number of the action: `durations` in seconds, `travel` of the message with its input. Time 0
    is the start of the first. With `held` a message leaves only once its receiver has nothing else
    to do before the action that needs it.
    """
    count = len(durations)
    start, end, leaves = [0.0] * count, [0.0] * count, [0.0] * count
    heads, producers = set(links.first), links.producer
    for number in links.sequence:
        begin = 0.0 if number in heads else end[number - 1]
        producer = producers[number]
        if producer >= 0:
            leaves[number] = max(begin, end[producer]) if held else end[producer]
            begin = max(begin, leaves[number] + travel[number])
        start[number] = begin
        end[number] = begin + durations[number]
    return start, end, leaves


def seconds(
    links: Links, actions: Sequence[Action], duration_s: Duration, transfer_s: Transfer
) -> tuple[list[float], list[float]]:
    """Durations and travel of every action by number, as `earliest` reads them.

    Raises InvalidValueError for a negative or infinite number of seconds, or none.
    """
    durations = [duration_s(one.kind, one.chunk, one.micro_batch) for one in actions]
    travel = [0.0] * len(actions)
    for number, producer in enumerate(links.producer):
        if producer >= 0:
            source, target = actions[producer], actions[number]
            travel[number] = transfer_s(source.chunk, target.chunk, source.micro_batch)
    for what, row in (("duration of", durations), ("transfer to", travel)):
        for action, one in zip(actions, row, strict=True):
            if not 0 <= one < inf:
                raise InvalidValueError(
                    f"the {what} {action} takes {one!r} s; give a finite number of at least 0"
                )
    return durations, travel
