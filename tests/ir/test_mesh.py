"""Meshes: rank numbers, groups, stages, text."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.mesh import Mesh, MeshAxis
from tests.support.layout_oracle import meshes

MESH = Mesh.parse("stage=2@ib x0=2@nvlink x1=3@nvlink data=2@ib")


def test_default_order_has_model_axes_innermost() -> None:
    assert MESH.rank_order == ("stage", "data", "x0", "x1")
    expected = list(itertools.product(range(2), range(2), range(2), range(3)))
    for rank, (stage, data, x0, x1) in enumerate(expected):
        coordinates = {"stage": stage, "x0": x0, "x1": x1, "data": data}
        assert MESH.coordinates(rank) == coordinates
        assert list(MESH.coordinates(rank)) == list(MESH.axis_names)
        assert MESH.coordinate_tuple(rank) == (stage, x0, x1, data)
        assert MESH.rank(coordinates) == rank


@settings(max_examples=60)
@given(meshes())
def test_ranks_count_the_coordinates_in_rank_order(mesh: Mesh) -> None:
    sizes = {axis.name: axis.size for axis in mesh.axes}
    counted = itertools.product(*(range(sizes[name]) for name in mesh.rank_order))
    ranks = 0
    for rank, values in enumerate(counted):
        coordinates = dict(zip(mesh.rank_order, values, strict=True))
        assert mesh.coordinates(rank) == coordinates
        assert mesh.rank(coordinates) == rank
        assert mesh.rank_grid()[tuple(coordinates[name] for name in mesh.axis_names)] == rank
        ranks += 1
    assert mesh.world_size == ranks
    assert mesh.rank_grid().shape == tuple(axis.size for axis in mesh.axes)


@settings(max_examples=60)
@given(meshes(), st.data())
def test_groups_partition_the_ranks_in_the_order_asked_for(mesh: Mesh, data: st.DataObject) -> None:
    names = data.draw(st.permutations(mesh.axis_names))
    axes = tuple(names[: data.draw(st.integers(0, len(names)))])
    groups = mesh.groups(axes)
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))
    assert [min(group) for group in groups] == sorted(min(group) for group in groups)
    for group in groups:
        assert len(group) == mesh.group_size(axes)
        places = [mesh.coordinates(rank) for rank in group]
        others = [name for name in mesh.axis_names if name not in axes]
        assert len({tuple(place[name] for name in others) for place in places}) == 1
        flat = [tuple(place[name] for name in axes) for place in places]
        assert flat == sorted(flat), "the first name must vary slowest"
        for rank in group:
            assert mesh.group(axes, rank) == group


def test_known_groups() -> None:
    mesh = Mesh.parse("x0=2@nvlink x1=2@nvlink")
    assert mesh.groups(("x1",)) == ((0, 1), (2, 3))
    assert mesh.groups(("x0",)) == ((0, 2), (1, 3))
    assert mesh.groups(("x0", "x1")) == ((0, 1, 2, 3),)
    assert mesh.groups(("x1", "x0")) == ((0, 2, 1, 3),)
    assert mesh.groups(()) == ((0,), (1,), (2,), (3,))


@pytest.mark.parametrize("text", [str(MESH), f"{MESH} ranks=x1,data,stage,x0"])
def test_stages(text: str) -> None:
    mesh = Mesh.parse(text)
    inner = mesh.without_stage()
    assert inner.axis_names == ("x0", "x1", "data")
    assert inner.rank_order == tuple(name for name in mesh.rank_order if name != "stage")
    seen: list[int] = []
    for stage in range(2):
        ranks = mesh.stage_ranks(stage)
        for local, rank in enumerate(ranks):
            assert mesh.coordinates(rank) == {"stage": stage, **inner.coordinates(local)}
        seen += ranks
    assert sorted(seen) == list(range(24))
    flat = Mesh.parse("x0=2@nvlink")
    assert flat.stage_ranks(0) == (0, 1)
    assert flat.without_stage() == flat
    with pytest.raises(InvalidValueError, match="no stage axis"):
        flat.stage_ranks(1)
    with pytest.raises(InvalidValueError, match="stage=2"):
        mesh.stage_ranks(2)


@settings(max_examples=60)
@given(meshes())
def test_text_parses_back(mesh: Mesh) -> None:
    assert Mesh.parse(str(mesh)) == mesh
    for axis in mesh.axes:
        assert MeshAxis.parse(str(axis)) == axis
        assert mesh.axis(axis.name) is axis


def test_known_texts() -> None:
    assert str(Mesh(())) == "1"
    assert Mesh.parse("1") == Mesh(()) and Mesh(()).world_size == 1
    assert Mesh(()).coordinates(0) == {} and Mesh(()).rank({}) == 0
    axes = (MeshAxis("x0", 4, "nvlink"), MeshAxis("data", 2, "ib"))
    assert str(Mesh(axes)) == "x0=4@nvlink data=2@ib"
    assert str(Mesh(axes, ("x0", "data"))) == "x0=4@nvlink data=2@ib ranks=x0,data"
    assert Mesh.parse("x0=4@nvlink data=2@ib ranks=data,x0") == Mesh(axes)


@pytest.mark.parametrize(
    "text",
    [
        "", "x0", "x0=0@ib", "x0=2", "x0=2@", "X0=2@ib", "x0=2@ib x0=2@ib", "1 x0=2@ib",
        "data=2@ib x0=2@ib", "x0=2@ib stage=2@ib", "ranks=x0", "x0=2@ib ranks=x1",
        "x0=2@ib ranks=x0,x0", "x0=2@ib ranks=", "ranks=2@ib", "x0=2@ib ranks=x0 y=2@ib",
        "x0=-1@ib", "x0=02@ib",
    ],
)  # fmt: skip
def test_bad_texts(text: str) -> None:
    with pytest.raises(ParseError):
        Mesh.parse(text)


def test_bad_values_say_what_to_change() -> None:
    axis = MeshAxis("x0", 2, "ib")
    with pytest.raises(InvalidValueError, match="put stage first"):
        Mesh((axis, MeshAxis("stage", 2, "ib")))
    with pytest.raises(InvalidValueError, match="put data last"):
        Mesh((MeshAxis("data", 2, "ib"), axis))
    with pytest.raises(InvalidValueError, match="rename one"):
        Mesh((axis, axis))
    with pytest.raises(InvalidValueError, match="rank order"):
        Mesh((axis,), ("x1",))
    for name, size, link in [("X", 2, "ib"), ("x", 0, "ib"), ("x", True, "ib"), ("x", 2, "IB")]:
        with pytest.raises(InvalidValueError, match="use a"):
            MeshAxis(name, size, link)
    with pytest.raises(InvalidValueError, match="0 to 23"):
        MESH.coordinates(24)
    with pytest.raises(InvalidValueError, match="0 to 23"):
        MESH.group(("x0",), -1)
    with pytest.raises(InvalidValueError, match="x0=2 is not in"):
        MESH.rank({"stage": 0, "x0": 2, "x1": 0, "data": 0})
    with pytest.raises(InvalidValueError, match="do not name"):
        MESH.rank({"x0": 0})
    with pytest.raises(InvalidValueError, match="has no axis 'y'"):
        MESH.axis("y")
    with pytest.raises(InvalidValueError, match="repeat"):
        MESH.groups(("x0", "x0"))
