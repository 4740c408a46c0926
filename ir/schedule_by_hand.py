"""The zero-bubble schedules that their paper gives by hand, for any number of micro-batches.

Qi et al. 2024, arXiv:2401.10241: sections 2.1 (ZB-H1), 2.2 (ZB-H2) and 6 (ZB-V). They are made for
F, B and W of equal time; the actions of micro-batches that are not there are left out, as nothing
that runs needs them.
"""

from shardwise.ir.schedule_action import Action, ActionKind
from shardwise.ir.schedule_orders import Orders

F, B, W = ActionKind.F, ActionKind.B, ActionKind.W


def zb_h(devices: int, micro_batches: int, rounds: int) -> Orders:
    """ZB-H1 (`rounds` 1) or ZB-H2 (2): at most p + (rounds - 1) (p - 1) micro-batches a device.

    Device d, with r = rounds and e = p - d - 1 devices after it: r e + 1 forwards ahead, then B, W,
    F in turn, with W r d micro-batches behind B.
    """
    orders = []
    for device in range(devices):
        ahead, behind = rounds * (devices - device - 1) + 1, rounds * device
        order = [Action(F, device, i) for i in range(min(ahead, micro_batches))]
        for i in range(micro_batches + behind):
            if i < micro_batches:
                order.append(Action(B, device, i))
            if i >= behind:
                order.append(Action(W, device, i - behind))
            if i + ahead < micro_batches:
                order.append(Action(F, device, i + ahead))
        orders.append(tuple(order))
    return tuple(orders)


def zb_v(devices: int, micro_batches: int) -> Orders:
    """ZB-V: device d runs the chunks d and 2 p - 1 - d; at most 2 p chunks' activations on each.

    Forwards of the first chunk ahead, then both chunks in turn, until the second chunk's backwards
    come; then F, B, W of the first and of the second in turn; then the backwards that are left,
    with the weights last.
    """
    count = max(micro_batches, 2 * devices - 1)
    return tuple(
        tuple(action for action in _v_order(device, devices, count)
              if action.micro_batch < micro_batches)
        for device in range(devices)
    )  # fmt: skip


def _v_order(device: int, devices: int, count: int) -> list[Action]:
    order: list[Action] = []
    chunks = (device, 2 * devices - 1 - device)
    done = {(kind, chunk): 0 for kind in ActionKind for chunk in (0, 1)}

    def run(*steps: tuple[ActionKind, int]) -> None:
        for kind, chunk in steps:
            if done[kind, chunk] < count:
                order.append(Action(kind, chunks[chunk], done[kind, chunk]))
                done[kind, chunk] += 1

    for _ in range(2 * (devices - device) - 1):
        run((F, 0))
    for _ in range(device):
        run((F, 1), (F, 0))
    for _ in range(devices - device):
        run((F, 1), (B, 1), (W, 1))
    while done[F, 1] < count:
        run((F, 0), (B, 0), (W, 0), (F, 1), (B, 1), (W, 1))
    for _ in range(device):
        run((B, 0), (B, 1))
    for _ in range(devices - device):
        run((B, 0), (W, 0))
    for chunk in (1, 0):
        while done[W, chunk] < count:
            run((W, chunk))
    return order
