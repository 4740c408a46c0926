"""How many latencies of a link one collective pays: the depth of a tree, or the hops of a ring.

NCCL runs all_reduce as a tree where latency counts, but all_gather and reduce_scatter as a ring
through all members, so their latency grows with the number of ranks and not with its logarithm:
over 512 GPUs of 64 nodes about 1.1 ms, which small shards cannot hide. One hop is much cheaper
than one step of a tree, since the chunks of a ring are small.
"""

import math
from typing import Final

RINGS: Final = ("all_gather", "reduce_scatter", "broadcast")
"""Kinds that have no tree."""

SINGLE: Final = ("send_recv", "ring_exchange")
"""Kinds of one message between two ranks."""

RING_HOP: Final = 4.0 / 14.0
"""A hop over the link, of its latency. Published, NCCL src/graph/tuning.cc (01afd20a77b5): 4.0
microseconds for a network hop of a ring, protocol LL128; 14 for the Simple protocol (later)."""

INNER_HOP: Final = 1.9 / 14.0
"""A hop inside a unit, of the link's latency. Published, the same table: 1.9 microseconds over
NVLink, protocol LL128."""


def latency_steps(kind: str, size: int, members_inside: int = 1) -> float:
    """Latencies of the link for one collective among `size` members, `members_inside` of them in
    each unit below the link.

    One for a message between two ranks, the depth of a binary tree for trees; for rings one, and
    a share of one for each further hop over the link and inside its units. Never below 1.
    """
    if kind in SINGLE or size <= 2:
        return 1.0
    if kind not in RINGS:
        return float(math.ceil(math.log2(size)))
    units = math.ceil(size / members_inside)
    over = max(0, units - 2)
    inside = size - units
    return 1.0 + over * RING_HOP + inside * INNER_HOP
