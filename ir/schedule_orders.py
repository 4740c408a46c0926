"""Orders of actions that depend on no durations: GPipe, 1F1B, interleaved 1F1B.

With p devices and m micro-batches:

    gpipe     m forwards, then m backwards, in the order of the micro-batches
    1f1b      device d: min(p - d - 1, m) forwards ahead, then one forward and one backward in turn
              (Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1: PipeDream-Flush)
    interleaved 1f1b
              v chunks a device, chunk k * p + d is device d's k-th; micro-batches in groups of p,
              a group through one chunk, then the next; device d is min(2 (p - d - 1) + (v - 1) p,
              m v) forwards ahead (section 2.2.2 there, and Megatron-LM's schedules.py)

Megatron-LM refuses the interleaved schedule where a last group has fewer micro-batches than there
are devices. Here the groups are made for m rounded up to a multiple of p, and the actions of
micro-batches that are not there are left out: what runs needs nothing of them, so it can run, and
the gaps that they leave are idle time.
"""

from itertools import chain

from shardwise.ir.schedule_action import Action, ActionKind

Orders = tuple[tuple[Action, ...], ...]
"""Per device, its actions in order."""


def gpipe(devices: int, micro_batches: int) -> Orders:
    """All forwards, then all backwards; device d runs chunk d."""
    return tuple(
        tuple(
            Action(kind, device, i)
            for kind in (ActionKind.F, ActionKind.B)
            for i in range(micro_batches)
        )
        for device in range(devices)
    )


def one_forward_one_backward(devices: int, micro_batches: int) -> Orders:
    """1F1B; device d runs chunk d and keeps at most p - d micro-batches."""
    return tuple(
        _alternating(
            [Action(ActionKind.F, device, i) for i in range(micro_batches)],
            [Action(ActionKind.B, device, i) for i in range(micro_batches)],
            devices - device - 1,
        )
        for device in range(devices)
    )


def interleaved(devices: int, micro_batches: int, chunks_per_device: int) -> Orders:
    """Interleaved 1F1B; device d runs the chunks d, p + d, 2 p + d, ..."""
    rounded = -(-micro_batches // devices) * devices
    orders = []
    for device in range(devices):
        forward = [
            Action(ActionKind.F, k * devices + device, i)
            for start in range(0, rounded, devices)
            for k in range(chunks_per_device)
            for i in range(start, start + devices)
        ]
        backward = [
            Action(ActionKind.B, k * devices + device, i)
            for start in range(0, rounded, devices)
            for k in reversed(range(chunks_per_device))
            for i in range(start, start + devices)
        ]
        ahead = 2 * (devices - device - 1) + (chunks_per_device - 1) * devices
        order = _alternating(forward, backward, ahead)
        orders.append(tuple(action for action in order if action.micro_batch < micro_batches))
    return tuple(orders)


def _alternating(forward: list[Action], backward: list[Action], ahead: int) -> tuple[Action, ...]:
    """`ahead` forwards (or all), one forward and one backward in turn, the backwards left over."""
    ahead = min(ahead, len(forward))
    turns = zip(forward[ahead:], backward, strict=False)
    rest = backward[len(forward) - ahead :]
    return (*forward[:ahead], *chain.from_iterable(turns), *rest)
