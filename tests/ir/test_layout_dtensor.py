"""Layouts against DTensor: each rank in turn, with a process group that sends nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from shardwise.ir.errors import UnsupportedError
from shardwise.ir.layout import Layout, to_dtensor_placements
from shardwise.ir.lowering import lower
from shardwise.ir.mesh import Mesh
from tests.support.layout_oracle import Shape, layouts, meshes

L = Layout.parse
KINDS = {
    "all_gather": "all_gather_into_tensor",
    "all_reduce": "all_reduce",
    "reduce_scatter": "reduce_scatter_tensor",
}


@contextmanager
def device_mesh(mesh: Mesh, rank: int) -> Iterator[DeviceMesh]:
    """The mesh as `rank` of a world in which collectives do nothing."""
    store = FakeStore()
    dist.init_process_group("fake", rank=rank, world_size=mesh.world_size, store=store)
    try:
        grid = torch.from_numpy(mesh.rank_grid())
        yield DeviceMesh("cpu", grid, mesh_dim_names=mesh.axis_names)
    finally:
        dist.destroy_process_group()


def real(placements: tuple[tuple[str, int | str], ...]) -> list[Placement]:
    """The data of `to_dtensor_placements` as DTensor's own values."""
    made: list[Placement] = []
    for kind, value in placements:
        if kind == "shard":
            made.append(Shard(int(value)))
        else:
            made.append(Partial(str(value)) if kind == "partial" else Replicate())
    return made


def check(layout: Layout, placements: list[Placement], shape: Shape, mesh: Mesh) -> None:
    """Every rank's local tensor and shape are DTensor's."""
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    for rank in range(mesh.world_size):
        held = layout.index_sets(shape, mesh, rank)
        expected = whole
        for dim, one in enumerate(held):
            expected = expected.index_select(dim, torch.from_numpy(one.to_numpy()))
        with device_mesh(mesh, rank) as device:
            local = distribute_tensor(whole, device, placements, src_data_rank=None).to_local()
            sizes, offset = compute_local_shape_and_global_offset(shape, device, placements)
        assert torch.equal(local, expected), (layout, rank)
        assert tuple(sizes) == layout.local_shape(shape, mesh, rank) == tuple(local.shape)
        if expected.numel() and not any(isinstance(p, _StridedShard) for p in placements):
            assert tuple(offset) == tuple(one.intervals[0][0] for one in held)


shapes = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


@settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])
@given(st.data())
def test_local_tensors_are_dtensors(data: st.DataObject) -> None:
    mesh = data.draw(meshes(max_axes=3, max_ranks=8))
    shape = data.draw(shapes)
    layout = data.draw(layouts(mesh, shape, addends=False))
    try:
        placements = to_dtensor_placements(layout, mesh)
    except UnsupportedError:
        assume(False)
    # Axes of one rank cut nothing; DTensor is asked without them.
    check(layout.normalised(mesh), real(placements), shape, mesh)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("x0:S(0) data:S(0)", (7, 3)),
        ("x0:S(0) data:S(0)", (1,)),
        ("x0:S(1) data:S(0)", (5, 6)),
        ("data:S(2)", (2, 2, 3)),
        ("R", (3, 3)),
    ],
)
@pytest.mark.parametrize("ranks", ["", " ranks=x0,data"])
def test_uneven_shards_in_any_rank_order(layout: str, shape: Shape, ranks: str) -> None:
    mesh = Mesh.parse(f"x0=4@nvlink data=2@ib{ranks}")
    check(L(layout), real(to_dtensor_placements(L(layout), mesh)), shape, mesh)


@pytest.mark.parametrize("outer", [2, 3, 4])
def test_outer_is_dtensors_private_strided_shard(outer: int) -> None:
    """DTensor's own one is private; it agrees."""
    mesh = Mesh.parse("x0=2@nvlink")
    size = outer * 6
    check(L(f"x0:S(0,outer={outer})"), [_StridedShard(0, split_factor=outer)], (size, 2), mesh)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("x0:S(0)", "R"), ("R", "x0:S(0)"), ("x0:P", "R"), ("x0:P", "x0:S(0)"),
        ("x0:S(0) data:S(1)", "x0:S(0)"), ("x0:S(0) data:S(0)", "R"), ("x0:P data:P", "R"),
        ("x0:S(0) data:P", "x0:S(0) data:S(1)"), ("x0:P data:S(1)", "x0:S(0)"),
        ("x0:P data:P", "x0:S(0) data:S(1)"),
    ],
)  # fmt: skip
def test_no_more_collectives_than_dtensor(source: str, target: str) -> None:
    """The kinds are DTensor's; where it takes an axis at a time, we take a run in one step.

    Without all-to-all, which DTensor replaces on CPU, and R -> P, which it refuses.
    """
    mesh = Mesh.parse("x0=2@nvlink data=2@ib")
    steps = [s for s in lower(L(source), L(target), mesh) if not s.is_local]
    with device_mesh(mesh, 0) as device:
        begin, end = (real(to_dtensor_placements(L(text), mesh)) for text in (source, target))
        local = torch.zeros(L(source).local_shape((8, 8), mesh, 0))
        value = DTensor.from_local(
            local, device, begin, run_check=False, shape=(8, 8), stride=(8, 1)
        )
        with CommDebugMode() as mode:
            value.redistribute(placements=end)
    counted = {str(op).rpartition(".")[2]: n for op, n in mode.get_comm_counts().items()}
    for kind, name in KINDS.items():
        ours = sum(step.kind == kind for step in steps)
        theirs = counted.get(name, 0)
        assert ours <= theirs, (kind, counted)
        assert (ours > 0) == (theirs > 0), (kind, counted)
