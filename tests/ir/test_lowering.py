"""The lowering, executed on all ranks in one process as numpy arrays."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.expression import symbol
from shardwise.ir.layout import Layout, Shard, refines
from shardwise.ir.lowering import lower
from shardwise.ir.mesh import Mesh
from shardwise.ir.redistribution import CollectiveStep, StepKind, step_bytes
from tests.support.layout_oracle import Shape, layouts, meshes, shapes
from tests.support.step_oracle import execute, holds, place

MESH = Mesh.parse("x0=2@nvlink x1=3@nvlink x2=2@nvlink data=2@ib")
L = Layout.parse


def run(source: Layout, target: Layout, shape: Shape, mesh: Mesh) -> int:
    """Check every step of the lowering; returns the bytes that it moves."""
    whole = np.arange(1, math.prod(shape) + 1, dtype=float).reshape(shape)
    local = place(whole, source, mesh, np.random.default_rng(0))
    assert holds(local, whole, source, mesh)
    current, total = source.normalised(mesh), 0
    for step in lower(source, target, mesh):
        assert step.source == current
        local, moved = execute(step, local, shape, mesh)
        assert step_bytes(step, shape, 8, mesh) == moved, str(step)
        assert holds(local, whole, step.target, mesh), str(step)
        current, total = step.target, total + moved
    assert current == target.normalised(mesh)
    assert holds(local, whole, target, mesh)
    return total


@st.composite
def cases(draw: st.DrawFn) -> tuple[Mesh, Shape, Layout, Layout]:
    mesh, shape = draw(meshes(max_ranks=16)), draw(shapes)
    source, target = draw(layouts(mesh, shape)), draw(layouts(mesh, shape))
    # Half of the pairs share a prefix, so that the lowering has something to keep.
    if draw(st.booleans()) and source.entries:
        kept = source.entries[: draw(st.integers(1, len(source.entries)))]
        names = {name for name, _ in kept}
        rest = tuple(entry for entry in target.entries if entry[0] not in names)
        try:
            mixed = Layout(kept + rest)
            mixed.check(shape, mesh)
            target = mixed
        except InvalidValueError:
            pass
    return mesh, shape, source, target


@settings(max_examples=250)
@given(cases())
def test_every_pair_of_layouts_is_lowered_right(
    case: tuple[Mesh, Shape, Layout, Layout],
) -> None:
    mesh, shape, source, target = case
    run(source, target, shape, mesh)


@settings(max_examples=100)
@given(cases())
def test_nothing_moves_that_need_not(case: tuple[Mesh, Shape, Layout, Layout]) -> None:
    mesh, shape, source, _ = case
    assert lower(source, source, mesh) == ()
    assert lower(source, source.normalised(mesh), mesh) == ()
    # Dropping plain inner cuts is gathers only, adding them back is one local slice.
    values = Layout(tuple(entry for entry in source.entries if isinstance(entry[1], Shard)))
    for kept in range(len(values.entries)):
        coarse = Layout(values.entries[:kept])
        if not _fits(values, shape, mesh) or not _fits(coarse, shape, mesh):
            continue
        assert all(step.kind is StepKind.ALL_GATHER for step in lower(values, coarse, mesh))
        back = lower(coarse, values, mesh)
        assert refines(values, coarse, shape, mesh)
        assert [step.kind for step in back] == [StepKind.SLICE] * len(back)
        assert len(back) <= 1


def _fits(layout: Layout, shape: Shape, mesh: Mesh) -> bool:
    try:
        layout.check(shape, mesh)
    except InvalidValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("source", "target", "steps"),
    [
        ("R", "R", []),
        ("x0:S(0)", "R", ["all_gather(x0)"]),
        ("R", "x0:S(0)", ["slice(x0)"]),
        ("x0:P", "R", ["all_reduce(x0)"]),
        ("x0:P", "x0:S(0)", ["reduce_scatter(x0)"]),
        ("R", "x0:P", ["mask(x0)"]),
        ("x0:S(0)", "x0:S(1)", ["all_to_all(x0)"]),
        ("x0:S(0) x1:S(0) data:S(0)", "R", ["all_gather(x0,x1,data)"]),
        ("x0:S(0) x1:S(0) data:S(0)", "x0:S(0)", ["all_gather(x1,data)"]),
        ("x0:S(0) x1:S(1) data:S(0)", "x0:S(0)", ["all_gather(data)", "all_gather(x1)"]),
        ("x0:S(1) data:S(0)", "x0:S(1)", ["all_gather(data)"]),
        ("R", "x0:S(0) x1:S(1) data:S(0)", ["slice(x0,data,x1)"]),
        ("x0:P x1:P data:P", "data:P", ["all_reduce(x0,x1)"]),
        ("x0:P x1:P", "x0:S(0) x1:S(0)", ["reduce_scatter(x0,x1)"]),
        ("x0:P x1:P", "x1:S(0) x0:S(0)", ["reduce_scatter(x1,x0)"]),
        ("x0:P x1:P", "x0:S(0)", ["reduce_scatter(x0)", "all_reduce(x1)"]),
        ("x0:P", "x1:S(0) x0:S(0)", ["slice(x1)", "reduce_scatter(x0)"]),
        ("x1:S(0) x0:P", "x1:S(0) x0:S(0)", ["reduce_scatter(x0)"]),
        ("x1:S(0) x0:P", "x0:S(0) x1:S(0)",
         ["all_gather(x1)", "reduce_scatter(x0)", "slice(x1)"]),
        ("x0:S(0) x1:S(0)", "x0:S(1) x1:S(1)", ["all_to_all(x0,x1)"]),
        ("x0:S(0) x1:S(0)", "x0:S(0) x1:S(1)", ["all_to_all(x1)"]),
        ("x0:S(0) x1:S(0)", "x1:S(1) x0:S(1)", ["all_to_all(x1)", "all_to_all(x0)"]),
        ("x0:S(0) x1:S(0)", "x0:S(1)", ["all_gather(x1)", "all_to_all(x0)"]),
        ("x0:S(0)", "x1:S(1) x0:S(1)", ["slice(x1)", "all_to_all(x0)"]),
        ("x0:S(0)", "x0:S(1) x1:S(1)", ["all_to_all(x0)", "slice(x1)"]),
        ("x0:S(0) x1:S(0)", "x1:S(0) x0:S(0)", ["all_gather(x0,x1)", "slice(x1,x0)"]),
        ("x0:S(0) x1:S(1)", "x0:S(1) x1:S(0)",
         ["all_gather(x0)", "all_to_all(x1)", "slice(x0)"]),
        ("x0:S(0)", "x0:S(0,outer=3)", ["all_gather(x0)", "slice(x0)"]),
        ("x0:S(0)", "x0:P", ["mask(x0)"]),
        ("x0:S(0)", "x0:P(max)", ["all_gather(x0)", "mask(x0)"]),
        ("x0:P", "x0:P(max)", ["all_reduce(x0)", "mask(x0)"]),
        ("x0:I(0,0:6/0:6)", "R", ["all_gather(x0)"]),
        ("R", "x0:I(0,0:6/0:6)", ["slice(x0)"]),
        ("x0:S(0)", "x0:I(0,0:6/0:6)", ["all_gather(x0)", "slice(x0)"]),
        ("x0:I(0,0:6/0:6,partial)", "R", ["mask(x0)", "all_reduce(x0)"]),
        ("x0:I(0,0:6/0:6)", "x0:I(0,0:6/0:6,partial)", ["mask(x0)"]),
        ("x0:I(0,0:6/0:6,partial)", "x0:S(0)", ["mask(x0)", "reduce_scatter(x0)"]),
        ("R", "x0:I(0,0:6/0:6,partial) x1:S(0)", ["slice(x0)", "mask(x0)", "slice(x1)"]),
        # What is gathered anyway makes room for what moves; addends are reduced while small, and
        # padded late.
        ("x0:S(0) x1:S(1)", "x0:S(1)", ["all_gather(x1)", "all_to_all(x0)"]),
        ("x0:I(0,0:6/0:6,partial) x1:S(1)", "R",
         ["mask(x0)", "all_reduce(x0)", "all_gather(x1)"]),
        ("x0:S(0) x1:S(1)", "x0:P", ["all_gather(x1)", "mask(x0)"]),
        # Padding x1 would leave other addends of an element with each copy that x0 holds.
        ("x0:I(0,0:4/0:6) x1:S(0)", "x1:P", ["all_gather(x0,x1)", "mask(x1)"]),
        # A minimum must be taken before there can be addends to sum.
        ("x1:S(1) x0:P(min)", "x1:P x0:S(1)", ["all_reduce(x0)", "mask(x1)", "slice(x0)"]),
        ("x1:I(0,0:6/0:6/0:6) x0:P(max)", "x1:I(0,0:6/0:6/0:6,partial) x0:S(0)",
         ["all_reduce(x0)", "mask(x1)", "slice(x0)"]),
    ],
)  # fmt: skip
def test_known_lowerings(source: str, target: str, steps: list[str]) -> None:
    found = lower(L(source), L(target), MESH)
    assert [str(step).partition(":")[0] for step in found] == steps
    run(L(source), L(target), (6, 12), MESH)


@pytest.mark.parametrize("shape", [(5, 7), (12, 6), (1, 1), (0, 4)])
def test_known_bytes(shape: Shape) -> None:
    """Uneven parts count as the largest one on every rank: 5 over 2 ranks are 2 x 3."""
    up = {n: 2 * math.ceil(n / 2) for n in shape}
    full = shape[0] * shape[1] * 4
    by = {
        "all_gather(x0): x0:S(0) -> R": up[shape[0]] * shape[1] * 4,
        "reduce_scatter(x0): x0:P -> x0:S(1)": up[shape[1]] * shape[0] * 4,
        "all_reduce(x0): x0:P -> R": full,
        "all_reduce(x0): data:S(0) x0:P -> data:S(0)": up[shape[0]] // 2 * shape[1] * 4,
        "all_to_all(x0): x0:S(0) -> x0:S(1)": up[shape[0]] * up[shape[1]] // 2 * 4,
        "slice(x0): R -> x0:S(0)": 0,
        "mask(x0): R -> x0:P": 0,
    }
    for text, expected in by.items():
        assert step_bytes(CollectiveStep.parse(text), shape, 4, MESH) == expected, text


def test_axes_of_one_rank_do_nothing() -> None:
    mesh = Mesh.parse("x0=1@nvlink data=2@ib")
    assert lower(L("x0:P data:S(0)"), L("data:S(0) x0:S(1)"), mesh) == ()
    assert lower(L("x0:S(0) data:S(0)"), L("data:S(0)"), mesh) == ()


def test_symbolic_outers_are_compared_as_they_are() -> None:
    batch, other = (Layout((("x0", Shard(0, outer=symbol(n))),)) for n in "BS")
    assert lower(batch, batch, MESH) == ()
    assert [step.kind for step in lower(batch, other, MESH)] == ["all_gather", "slice"]
    with pytest.raises(InvalidValueError, match="symbolic"):
        step_bytes(lower(batch, Layout(), MESH)[0], (8,), 4, MESH)


def test_misfits_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="no axis 'y'"):
        lower(L("y:S(0)"), L("R"), MESH)
    with pytest.raises(InvalidValueError, match="2 intervals for axis x1 of 3 ranks"):
        lower(L("R"), L("x1:I(0,0:2/0:2)"), MESH)


def test_a_large_mesh() -> None:
    mesh = Mesh.parse("x0=8@nvlink x1=8@nvlink data=8@ib")
    master, use = L("x0:S(0) x1:S(0) data:S(0)"), L("x0:S(0)")
    (step,) = lower(master, use, mesh)
    assert str(step) == f"all_gather(x1,data): {master} -> {use}"
    assert step_bytes(step, (8192, 4096), 2, mesh) == 8192 // 8 * 4096 * 2
    assert lower(master, use, mesh) is lower(master, use, mesh)
