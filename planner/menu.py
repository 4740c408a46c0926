"""The executable menu: meshes, strategies of a bucket, recomputation, seats."""

from collections.abc import Iterator
from itertools import combinations

from shardwise.ir.cluster import Cluster
from shardwise.ir.mesh import DATA, Mesh, MeshAxis
from shardwise.ir.strategy import Recompute, Role, Strategy
from shardwise.ir.value_layout import ValueLayout

MODEL_AXIS = "x0"
ROLES = {"data": Role.BATCH, "tensor_sequence": Role.TENSOR, "ulysses": Role.SEQUENCE}
"""Implementation -> role of the model axis; `data` (the axis) always splits the batch."""
RECOMPUTES = (Recompute.NONE, Recompute.LAYER)
MAX_SEATS = 256
"""Most documents of one replica in a micro-batch: powers of two up to this are offered."""


def meshes(cluster: Cluster) -> Iterator[Mesh]:
    """Every factorisation of the world into a model axis (inside a node first) and `data`."""
    world = cluster.world_size
    for size in (n for n in range(1, world + 1) if world % n == 0):
        axes = []
        if size > 1:
            axes.append(MeshAxis(MODEL_AXIS, size, cluster.link_of(1, size)))
        if world // size > 1:
            axes.append(MeshAxis(DATA, world // size, cluster.link_of(size, world // size)))
        yield Mesh(tuple(axes))


def strategy(
    implementation: str,
    mesh: Mesh,
    recompute: Recompute,
    layouts: tuple[ValueLayout, ...] = (),
) -> Strategy:
    """One implementation on the model axis of a mesh."""
    roles = tuple(
        (axis.name, Role.BATCH if axis.name == DATA else ROLES[implementation])
        for axis in mesh.axes
    )
    return Strategy(implementation, roles, layouts, layouts, recompute)


def model_size(mesh: Mesh) -> int:
    """Ranks along the model axis, 1 without one."""
    return mesh.axis(MODEL_AXIS).size if MODEL_AXIS in mesh.axis_names else 1


def implementations(mesh: Mesh) -> tuple[str, ...]:
    """Those that differ on a mesh: without a model axis all are `data`."""
    return tuple(ROLES) if MODEL_AXIS in mesh.axis_names else ("data",)


def subsets(names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Every non-empty subset: what a plan may switch between."""
    for size in range(1, len(names) + 1):
        yield from combinations(names, size)


def seat_counts() -> tuple[int, ...]:
    """Powers of two up to MAX_SEATS."""
    return tuple(2**i for i in range(MAX_SEATS.bit_length()))
