"""What is timed between ranks: every collective by message and group size, overlap, group memory.

Collectives run through the runtime's own redistributions, so that packing and joining pieces is in
their time, as it is in training. All groups of a size run at once, as in training.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

from shardwise.ir.cluster import Cluster
from shardwise.ir.layout import Layout
from shardwise.ir.mesh import Mesh, MeshAxis
from shardwise.runtime.profile_memory import resident_bytes
from shardwise.runtime.profile_samples import Case, Group, Planned, Session, at_quantile
from shardwise.runtime.redistribute import Router

MESSAGES: Final = (1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
"""Bytes, by the convention of ir/link.py."""
WIDTH: Final = 64
MOVES: Final = {
    "all_gather": ("x0:S(1)", "R"),
    "reduce_scatter": ("x0:P", "x0:S(1)"),
    "all_reduce": ("x0:P", "R"),
    "all_to_all": ("x0:S(1)", "x0:S(2)"),
}
"""Collective -> the redistribution of a [1, S, WIDTH] that is lowered to it."""
BETWEEN: Final = 128
"""Width of the products that every rank computes before each collective, as training does."""
BETWEEN_S: Final = 1e-3
"""For about how long: what passes between two messages of a layer. In a row of collectives alone
the backend's threads never go to sleep, and ranks never wait for each other."""
GROUPS: Final = 8
"""Groups made to see what one takes."""


@dataclass(frozen=True, slots=True)
class Ring:
    """The groups of `size` ranks, `stride` apart, that tile the world: over one link class."""

    link: str
    stride: int
    size: int

    def mesh(self, world_size: int) -> Mesh:
        """A mesh whose axis x0 is these groups."""
        axes = [MeshAxis("x0", self.size, self.link)]
        if self.stride > 1:
            axes.append(MeshAxis("inner", self.stride, self.link))
        rest = world_size // (self.size * self.stride)
        if rest > 1:
            axes.append(MeshAxis("data", rest, self.link))
        return Mesh(tuple(axes))

    def key(self, kind: str) -> str:
        """Name of a curve."""
        return f"{self.link} {kind} {self.size}"


def rings(cluster: Cluster) -> Iterator[Ring]:
    """Per level, groups of 2, 4, ... of its units and of all of them."""
    stride = 1
    for level in cluster.levels:
        sizes = {level.size, *(2**i for i in range(1, level.size.bit_length()))}
        for size in sorted(sizes):
            if size > 1 and level.size % size == 0:
                yield Ring(level.link, stride, size)
        stride *= level.size


def link_groups(session: Session, cluster: Cluster) -> Iterator[Group]:
    """Collectives of every ring; a collective of all ranks, which makes the process groups."""
    world = session.communicator.world_size
    between = _between(session)
    for ring in rings(cluster):
        mesh = ring.mesh(world)
        groups = mesh.groups(("x0",))
        session.communicator.declare_groups(groups)
        router = Router(mesh, session.communicator, session.device)
        mine = next(group for group in groups if session.communicator.rank in group)
        for kind in (*MOVES, "broadcast", "send_recv", "ring_exchange"):
            if kind in ("send_recv", "ring_exchange") and not dist.is_initialized():
                continue  # ranks that are threads have no messages of two

            cases = (_message(kind, ring, size, router, mine, between) for size in MESSAGES)
            yield Group(f"{kind} of {ring.size} over {ring.link}", tuple(cases), everywhere=True)


def _between(session: Session) -> Callable[[], None]:
    """Products that take a core about BETWEEN_S for all its ranks, as many on every rank."""
    a = torch.randn(BETWEEN, BETWEEN, device=session.device)
    one_s = min(session.stopwatch.seconds(lambda: a @ a) for _ in range(9))
    times = max(1, round(BETWEEN_S / session.sharing / session.largest(one_s)))

    def run() -> None:
        for _ in range(times):
            a @ a

    return run


def _message(
    kind: str,
    ring: Ring,
    size: int,
    router: Router,
    group: tuple[int, ...],
    between: Callable[[], None],
) -> Planned:
    rows = max(ring.size, size // 4 // WIDTH // ring.size * ring.size)
    key, x = ring.key(kind), 4.0 * rows * WIDTH
    # the message of an all_to_all is a rank's part
    shape = (1, ring.size * rows if kind == "all_to_all" else rows, WIDTH)

    def build() -> Case:
        return Case(key, x, _call(kind, shape, router, group), before=between)

    return Planned(key, x, build)


def _call(
    kind: str, shape: tuple[int, int, int], router: Router, group: tuple[int, ...]
) -> Callable[[], object]:
    if kind in MOVES:
        source, target = (Layout.parse(text) for text in MOVES[kind])
        local = torch.randn(source.local_shape(shape, router.mesh, router.rank))
        x = local.to(router.device)
        return lambda: router.run(x, source, target, shape)
    x = torch.randn(shape).to(router.device)
    if kind == "broadcast":
        return lambda: router.communicator.broadcast(x, group, group[0])
    place, received = group.index(router.rank), torch.empty_like(x)
    after, before = group[(place + 1) % len(group)], group[place - 1]
    sends = kind == "ring_exchange" or place % 2 == 0
    receives = kind == "ring_exchange" or place % 2 == 1

    def exchange() -> None:
        requests = []
        if receives:
            requests.append(dist.P2POp(dist.irecv, received, before))
        if sends:
            requests.append(dist.P2POp(dist.isend, x, after))
        for request in dist.batch_isend_irecv(requests):
            request.wait()

    return exchange


@dataclass(frozen=True, slots=True)
class Overlap:
    """Of one link: the part of communication that hides behind compute, and what that costs."""

    hidden: float
    contention: float
    repeats: int


def measure_overlap(session: Session, repeats: int = 9) -> Overlap | None:
    """A product beside an all_reduce of all ranks of about its length; None for ranks that are
    threads or one rank."""
    if not dist.is_initialized() or session.communicator.world_size == 1:
        return None
    device = session.device
    message = torch.zeros(1 << 20, device=device)
    a = torch.randn(512, 512, device=device)

    def communicate() -> None:
        dist.all_reduce(message)

    def together(times: int) -> Callable[[], None]:
        def run() -> None:
            request = dist.all_reduce(message, async_op=True)
            for _ in range(times):
                a @ a
            assert request is not None
            request.wait()

        return run

    def compute(times: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(times):
                a @ a

        return run

    def fastest(run: Callable[[], object], count: int = repeats) -> float:
        times = []
        for _ in range(count):
            session.communicator.barrier(session.everyone)
            times.append(session.largest(session.stopwatch.seconds(run, waits=True)))
        return at_quantile(sorted(times), 0.3)

    one, message_s = fastest(compute(1), 5), fastest(communicate, 5)
    times = max(1, round(message_s / one))
    compute_s, both_s, message_s = (
        fastest(compute(times)), fastest(together(times)), fastest(communicate),
    )  # fmt: skip
    hidden = (compute_s + message_s - both_s) / min(compute_s, message_s)
    contention = 1.0
    if hidden > 0.2:  # else nothing runs beside anything
        contention = max(1.0, both_s / max(compute_s, message_s))
    return Overlap(min(1.0, max(0.0, hidden)), contention, repeats)


def measure_group_bytes(session: Session) -> float | None:
    """Bytes per rank of one more process group that has communicated; None for threads."""
    if not dist.is_initialized() or session.communicator.world_size == 1:
        return None
    before = resident_bytes(session.device)
    handles = []
    for _ in range(GROUPS):
        handle = dist.new_group(list(session.everyone))
        dist.all_reduce(torch.zeros(1, device=session.device), group=handle)
        handles.append(handle)
    grown = resident_bytes(session.device) - before
    for handle in handles:
        dist.destroy_process_group(handle)
    return session.largest(max(0.0, grown / GROUPS))
