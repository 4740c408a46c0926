"""Bucket edges: candidate lengths, and the exact choice among them by a 1-D dynamic program."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shardwise.ir.lengths import Lengths
from shardwise.planner.candidates import Option, SlotPrice

MAX_BUCKETS = 8
"""Most buckets of a plan: each is compiled, verified and checked for memory."""
MAX_EDGES = 20
"""Most candidate edges; the ratio between neighbours follows from it."""
FINEST_RATIO = 2**0.5
"""Candidates are no closer than this: padding then wastes at most 41 % of a document."""


def edge_multiple(world_size: int) -> int:
    """Candidate edges are multiples of this, so that every model axis up to 64 divides them."""
    return min(world_size, 64)


def last_edge(lengths: Lengths, world_size: int) -> int:
    """The longest padded length of any plan: the longest document, rounded up."""
    return _up(lengths.largest()["S"], edge_multiple(world_size))


def candidate_edges(lengths: Lengths, multiple: int) -> tuple[int, ...]:
    """0 and lengths up to the longest, in a geometric row, rounded up to a multiple.

    The last edge holds the longest document; the first is near the 5th percentile.
    """
    longest = lengths.largest()["S"]
    shortest = max(1, lengths.percentiles("S", (5.0,))[0].length)
    ratio = max(FINEST_RATIO, (longest / shortest) ** (1 / MAX_EDGES)) if longest > shortest else 2
    edges = {_up(longest, multiple)}
    length = float(longest)
    while length > shortest and len(edges) < MAX_EDGES:
        length /= ratio
        edges.add(_up(max(1, int(length)), multiple))
    return (0, *sorted(edges))


def _up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Band:
    """A bucket as chosen: indices of its edges, its option, prices and mean slots a step."""

    low: int
    high: int
    option: Option
    price: SlotPrice
    mean_slots: float

    @property
    def step_s(self) -> float:
        """Expected seconds of a step spent in this bucket."""
        return self.mean_slots * self.price.time_s


BestOption = Callable[[int, int], Band | None]


def best_partition(edge_count: int, best: BestOption) -> tuple[Band, ...] | None:
    """Bands that cover all edges with the least expected time; None where none is feasible.

    Exact over all partitions into at most MAX_BUCKETS bands: f(j, m) is the least time of the
    documents up to edge j in m bands. Fewer bands win ties.
    """
    table: list[list[tuple[float, tuple[Band, ...]] | None]] = [
        [None] * (MAX_BUCKETS + 1) for _ in range(edge_count)
    ]
    table[0][0] = (0.0, ())
    for high in range(1, edge_count):
        for low in range(high):
            band = best(low, high)
            if band is None:
                continue
            for count in range(MAX_BUCKETS):
                before = table[low][count]
                if before is None:
                    continue
                time_s = before[0] + band.step_s
                known = table[high][count + 1]
                if known is None or time_s < known[0] * (1 - 1e-12):
                    table[high][count + 1] = (time_s, (*before[1], band))
    ends = [entry for entry in table[-1] if entry is not None]
    if not ends:
        return None
    least = min(entry[0] for entry in ends)
    return next(entry[1] for entry in ends if entry[0] <= least * (1 + 1e-9))


def lengths_of(edges: Sequence[int], band: Band) -> tuple[int, int]:
    """(low, high] of a band in tokens."""
    return edges[band.low], edges[band.high]
