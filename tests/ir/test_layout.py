"""Layout arithmetic against arrays of indices that numpy cuts step by step."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError, UnsupportedError
from shardwise.ir.expression import symbol
from shardwise.ir.layout import (
    Layout,
    Partial,
    Replicate,
    Select,
    Shard,
    equivalent,
    missing_count,
    refines,
    to_dtensor_placements,
)
from shardwise.ir.mesh import Mesh
from tests.support.layout_oracle import (
    Shape,
    all_indices,
    elements,
    layouts,
    meshes,
    shapes,
)

MESH = Mesh.parse("x0=2@nvlink x1=3@nvlink data=2@ib")
L = Layout.parse


@st.composite
def cases(draw: st.DrawFn, count: int = 1) -> tuple[Mesh, Shape, list[Layout]]:
    mesh, shape = draw(meshes()), draw(shapes)
    return mesh, shape, [draw(layouts(mesh, shape)) for _ in range(count)]


@settings(max_examples=200)
@given(cases())
def test_index_sets_are_what_cutting_step_by_step_leaves(
    case: tuple[Mesh, Shape, list[Layout]],
) -> None:
    mesh, shape, (layout,) = case
    layout.check(shape, mesh)
    largest = [0] * len(shape)
    for rank, expected in enumerate(all_indices(layout, shape, mesh)):
        held = layout.index_sets(shape, mesh, rank)
        for mine, want in zip(held, expected, strict=True):
            assert mine.to_numpy().tolist() == want.tolist()  # in the same (increasing) order
        sizes = layout.local_shape(shape, mesh, rank)
        assert sizes == tuple(len(want) for want in expected)
        largest = [max(pair) for pair in zip(largest, sizes, strict=True)]
    assert layout.largest_local_shape(shape, mesh) == tuple(largest)


@settings(max_examples=100)
@given(cases())
def test_every_element_is_held(case: tuple[Mesh, Shape, list[Layout]]) -> None:
    mesh, shape, (layout,) = case
    per_rank = [elements(held, shape) for held in all_indices(layout, shape, mesh)]
    assert set().union(*per_rank) == set(range(int(np.prod(shape))))


@settings(max_examples=150)
@given(cases(count=2))
def test_relations(case: tuple[Mesh, Shape, list[Layout]]) -> None:
    mesh, shape, (a, b) = case
    sets_a = [elements(held, shape) for held in all_indices(a, shape, mesh)]
    sets_b = [elements(held, shape) for held in all_indices(b, shape, mesh)]

    def addends(layout: Layout) -> set[tuple[str, object]]:
        return {
            (name, p)
            for name, p in layout.entries
            if mesh.axis(name).size > 1
            and (isinstance(p, Partial) or (isinstance(p, Select) and p.partial))
        }

    for rank in range(mesh.world_size):
        gone = sets_b[rank] - sets_a[rank] if addends(a) <= addends(b) else sets_b[rank]
        assert missing_count(a, b, shape, mesh, rank) == len(gone)
    alike = addends(a) == addends(b)
    pairs = list(zip(sets_a, sets_b, strict=True))
    assert refines(a, b, shape, mesh) == (alike and all(x <= y for x, y in pairs))
    assert equivalent(a, b, shape, mesh) == (alike and all(x == y for x, y in pairs))
    assert refines(a, a, shape, mesh) and equivalent(b, b, shape, mesh)


@settings(max_examples=100)
@given(cases(), st.data())
def test_more_cuts_refine(case: tuple[Mesh, Shape, list[Layout]], data: st.DataObject) -> None:
    mesh, shape, (layout,) = case
    kept = data.draw(st.integers(0, len(layout.entries)))
    dropped = layout.entries[kept:]
    coarse = Layout(layout.entries[:kept])
    if all(isinstance(p, Shard) for _, p in dropped):
        assert refines(layout, coarse, shape, mesh)
        for rank in range(mesh.world_size):
            assert missing_count(coarse, layout, shape, mesh, rank) == 0


@settings(max_examples=150)
@given(cases(), st.data())
def test_normal_form(case: tuple[Mesh, Shape, list[Layout]], data: st.DataObject) -> None:
    mesh, shape, (layout,) = case
    normal = layout.normalised(mesh)
    assert equivalent(layout, normal, shape, mesh)
    assert normal.normalised(mesh) == normal
    assert all(mesh.axis(name).size > 1 for name in normal.axes)
    assert equivalent(layout, layout.normalised(), shape, mesh)
    # Shuffle across dims while the order inside each dim stays: the normal form is the same.
    order = data.draw(st.permutations(range(len(layout.entries))))
    queues = {dim: list(layout.cuts(dim)) for dim in layout.cut_dims}
    shuffled = []
    for at in order:
        name, placement = layout.entries[at]
        if isinstance(placement, Shard | Select):
            shuffled.append(queues[placement.dim].pop(0))
        else:
            shuffled.append((name, placement))
    assert Layout(tuple(shuffled)).normalised(mesh) == normal


@settings(max_examples=150)
@given(cases())
def test_text_parses_back(case: tuple[Mesh, Shape, list[Layout]]) -> None:
    _, _, (layout,) = case
    assert Layout.parse(str(layout)) == layout


def test_known_texts() -> None:
    text = "x0:S(1) x1:S(0,outer=3) x2:S(0,sections=64/32/32) data:P"
    assert str(L(text)) == text
    assert L("R") == Layout() and str(Layout()) == "R"
    assert L("x0:I(0,0:64/0:64/64:128/64:128)").placement("x0") == Select(
        0, ((0, 64), (0, 64), (64, 128), (64, 128))
    )
    assert str(L("x1:S(1) x0:S(0) x2:P data:S(1)").normalised()) == (
        "x0:S(0) x1:S(1) data:S(1) x2:P"
    )
    assert str(L("x0:S(0,sections=4/4/4)").normalised()) == "x0:S(0,outer=3)"


@pytest.mark.parametrize(
    "text",
    ["", " ", "R R", "x0", "x0:R", "R x0:P", "x0:S(0) x0:P", "X:P", "x0:P x1:P(max)", "x0:Q",
     "x0:P(max) x1:I(0,0:2/0:2,partial)", "x0=S(0)"],
)  # fmt: skip
def test_bad_texts(text: str) -> None:
    with pytest.raises(ParseError):
        Layout.parse(text)


def test_parts() -> None:
    layout = L("x1:S(1) x0:S(0) data:P x2:S(1,outer=2)")
    assert layout.axes == ("x1", "x0", "data", "x2")
    assert layout.placement("x0") == Shard(0)
    assert layout.placement("y") == Replicate()
    assert layout.cuts(1) == (("x1", Shard(1)), ("x2", Shard(1, outer=2)))
    assert layout.cut_dims == (0, 1)
    assert layout.addends == {("data", Partial())}
    assert layout.op == "sum" and L("R").op is None and L("x0:P(max)").op == "max"
    assert L("x0:I(0,0:2/0:2,partial)").op == "sum"
    assert layout.without(("x1", "data")) == L("x0:S(0) x2:S(1,outer=2)")


def test_known_shards() -> None:
    shape = (7, 12)
    layout = L("x0:S(0) x1:S(1,outer=2) data:S(0)")
    # Dim 0: 7 = 4 + 3 over x0, then 4 = 2 + 2 and 3 = 2 + 1 over data. Dim 1: two blocks of 6.
    rank = MESH.rank({"x0": 1, "x1": 2, "data": 1})
    held = layout.index_sets(shape, MESH, rank)
    assert [str(one) for one in held] == ["6:7", "4:6,10:12"]
    assert layout.local_shape(shape, MESH, rank) == (1, 4)
    # The other order of axes nests the other way round.
    other = L("data:S(0) x0:S(0)").index_sets(shape, MESH, rank)
    assert [str(one) for one in other] == ["6:7", "0:12"]
    rank = MESH.rank({"x0": 1, "x1": 0, "data": 0})
    assert str(L("x0:S(0) data:S(0)").index_sets(shape, MESH, rank)[0]) == "4:6"
    assert str(L("data:S(0) x0:S(0)").index_sets(shape, MESH, rank)[0]) == "2:4"
    assert not equivalent(L("x0:S(0) data:S(0)"), L("data:S(0) x0:S(0)"), (8,), MESH)


def test_views_keep_their_shards() -> None:
    """[B, S] sharded on S is [B * S] sharded with outer B (emission.md section 3)."""
    batch, length = 3, 8
    split, merged = (
        L("x0:S(1)"),
        Layout((("x0", Shard(0, outer=symbol("B"))),)).at({"B": batch}),
    )
    flat = np.arange(batch * length).reshape(batch, length)
    for rank in range(MESH.world_size):
        rows, columns = split.index_sets((batch, length), MESH, rank)
        (one,) = merged.index_sets((batch * length,), MESH, rank)
        expected = flat[np.ix_(rows.to_numpy(), columns.to_numpy())].ravel()
        assert one.to_numpy().tolist() == expected.tolist()


def test_what_an_edge_costs() -> None:
    shape = (12, 6)
    rank = MESH.rank({"x0": 1, "x1": 1, "data": 0})
    master = L("x0:S(0) x1:S(0) data:S(0)")  # one row each
    assert missing_count(master, master, shape, MESH, rank) == 0
    assert missing_count(master, L("x0:S(0)"), shape, MESH, rank) == 5 * 6
    assert missing_count(master, L("x0:S(1)"), shape, MESH, rank) == 12 * 3 - 1 * 3
    assert missing_count(L("R"), master, shape, MESH, rank) == 0
    assert missing_count(L("x0:P"), L("R"), shape, MESH, rank) == 72
    assert missing_count(L("x0:P"), L("x0:P"), shape, MESH, rank) == 0
    assert refines(master, L("x0:S(0) x1:S(0)"), shape, MESH)
    assert not refines(L("x0:S(0)"), master, shape, MESH)
    assert not refines(L("x0:S(0)"), L("x1:P"), shape, MESH)
    heads = L("x0:I(0,0:12/0:12)")
    assert equivalent(heads, L("R"), shape, MESH)
    assert not equivalent(L("x0:I(0,0:12/0:12,partial)"), L("R"), shape, MESH)


def test_misfits_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="cuts dim 1"):
        L("x0:S(1)").index_sets((4,), MESH, 0)
    with pytest.raises(InvalidValueError, match="cuts dim 1"):
        L("x0:S(1)").local_shape((4,), MESH, 0)
    with pytest.raises(InvalidValueError, match="has no axis 'y'"):
        L("y:S(0)").local_shape((4,), MESH, 0)
    with pytest.raises(InvalidValueError, match="that 3 divides, not 4"):
        L("x0:S(0,outer=3)").check((4,), MESH)
    # 5 = 3 + 2 over x0: outer 3 fits the first half only.
    with pytest.raises(InvalidValueError, match="that 3 divides, not 2"):
        L("x0:S(0) x1:S(0,outer=3)").check((5,), MESH)
    with pytest.raises(InvalidValueError, match="symbolic"):
        L("x0:S(0,outer=B)").check((4,), MESH)
    with pytest.raises(InvalidValueError, match="for 3 ranks"):
        L("x0:I(0,0:2/0:2/2:4)").check((4,), MESH)
    with pytest.raises(InvalidValueError, match="leave replicated axes out"):
        Layout((("x0", Replicate()),))
    with pytest.raises(InvalidValueError, match="one placement"):
        Layout((("x0", Partial()), ("x0", Shard(0))))
    with pytest.raises(InvalidValueError, match="rename"):
        Layout((("X0", Partial()),))
    with pytest.raises(InvalidValueError, match="selects twice"):
        Layout((("x0", Select(0, ((0, 2), (0, 2)))), ("x1", Select(0, ((0, 2),) * 3))))
    with pytest.raises(InvalidValueError, match="different ops"):
        Layout((("x0", Partial()), ("x1", Partial("max"))))


def test_dtensor_placements() -> None:
    layout = L("x0:S(0) data:S(0) x1:P")
    assert to_dtensor_placements(layout, MESH) == (
        ("shard", 0), ("partial", "sum"), ("shard", 0),
    )  # fmt: skip
    assert to_dtensor_placements(L("R"), MESH) == (("replicate", ""),) * 3
    assert to_dtensor_placements(L("data:S(0) x0:S(1)"), MESH)[2] == ("shard", 0)
    for text, reason in [
        ("data:S(0) x0:S(0)", "order data, x0"),
        ("x0:S(0,outer=2)", "store the sections"),
        ("x0:S(0,sections=2/1)", "store the sections"),
        ("x0:I(0,0:2/0:2)", "store the sections"),
    ]:
        with pytest.raises(UnsupportedError, match=reason):
            to_dtensor_placements(L(text), MESH)


def test_large_meshes_take_intervals_not_elements() -> None:
    """512 ranks and 10**12 elements: only interval arithmetic can do this at all."""
    mesh = Mesh.parse("x0=8@nvlink x1=8@nvlink data=8@ib")
    shape = (3 * 10**6, 10**6)
    layout, use = L("x0:S(0,outer=3) x1:S(1) data:S(0)"), L("x0:S(0,outer=3) x1:S(1)")
    layout.check(shape, mesh)
    assert refines(layout, use, shape, mesh)
    total = sum(missing_count(layout, use, shape, mesh, rank) for rank in range(mesh.world_size))
    assert total == 7 * shape[0] * shape[1]
    counts = [
        np.prod([one.count() for one in layout.index_sets(shape, mesh, rank)], dtype=object)
        for rank in range(mesh.world_size)
    ]
    assert sum(counts) == shape[0] * shape[1]
    assert layout.largest_local_shape(shape, mesh) == (46875, 125000)


def test_all_orders_of_three_axes_nest() -> None:
    mesh = Mesh.parse("x0=2@nvlink x1=2@nvlink data=3@ib")
    for order in itertools.permutations(mesh.axis_names):
        layout = L(" ".join(f"{name}:S(0)" for name in order))
        for rank in range(mesh.world_size):
            at, size = 0, 12
            for name in order:
                size //= mesh.axis(name).size
                at += mesh.coordinates(rank)[name] * size
            assert layout.index_sets((12,), mesh, rank)[0].intervals == ((at, at + 1),)
