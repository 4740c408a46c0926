"""Redistributions: the table of emission.md section 3, steps and their text."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.layout import Layout
from shardwise.ir.lowering import lower
from shardwise.ir.mesh import Mesh
from shardwise.ir.redistribution import CollectiveStep, Redistribution, StepKind, step_bytes
from shardwise.ir.value_layout import ValueLayout
from tests.support.layout_oracle import layouts, meshes, shapes
from tests.support.step_oracle import execute, holds, place

MESH = Mesh.parse("x0=4@nvlink data=2@ib")
STATES = {"S": "x0:S(0)", "S'": "x0:S(1)", "R": "R", "R'": "R | x0:P", "P": "x0:P"}


@pytest.mark.parametrize(
    ("source", "target", "forward", "backward"),
    [
        ("S", "R'", ["all_gather"], ["reduce_scatter"]),
        ("S", "R", ["all_gather"], ["slice"]),
        ("R", "R'", [], ["all_reduce"]),
        ("P", "R", ["all_reduce"], []),
        ("P", "S", ["reduce_scatter"], ["all_gather"]),
        ("R", "S", ["slice"], ["all_gather"]),
        ("S", "S'", ["all_to_all"], ["all_to_all"]),
        ("R'", "P", ["mask"], ["mask"]),
        ("R", "P", ["mask"], []),
        ("R'", "R", [], ["mask"]),
        ("P", "R'", ["all_reduce"], ["all_reduce"]),
        ("R'", "S", ["slice"], ["mask"]),
        ("S", "P", ["mask"], ["slice"]),
        *((state, state, [], []) for state in ("S", "R", "R'", "P")),
    ],
)
@pytest.mark.parametrize("others", ["", "data:S(0)", "data:P"])
def test_the_four_states(
    source: str, target: str, forward: list[str], backward: list[str], others: str
) -> None:
    """One axis changes its state, whatever the others do, in no more than one step each way."""
    pair = [_with(ValueLayout.parse(STATES[name]), others) for name in (source, target)]
    move = Redistribution(*pair)
    assert [step.kind for step in lower(*move.forward, MESH)] == forward
    assert [step.kind for step in lower(*move.backward, MESH)] == backward
    shape = (16, 8)
    whole = np.arange(128.0).reshape(shape)
    for begin, end in (move.forward, move.backward):
        local = place(whole, begin, MESH, np.random.default_rng(1))
        for step in lower(begin, end, MESH):
            local, moved = execute(step, local, shape, MESH)
            assert moved == step_bytes(step, shape, 8, MESH)
            assert step.axes == ("x0",)
        assert holds(local, whole, end, MESH)


def _with(value: ValueLayout, others: str) -> ValueLayout:
    """The state on x0 beside what another axis does, applied before it."""
    if not others:
        return value
    forward = Layout(Layout.parse(others).entries + value.forward.entries)
    if others.endswith("P"):
        return ValueLayout(forward, value.gradient)
    return ValueLayout(forward, Layout(Layout.parse(others).entries + value.gradient.entries))


def test_the_message_of_each_state_change() -> None:
    """emission.md: S and P moves are of the whole tensor; the table's bytes at 4 ranks."""
    shape, whole = (16, 8), 16 * 8 * 2
    for source, target, expected in [
        ("S", "R'", (whole, whole)), ("P", "R", (whole, 0)), ("R", "R'", (0, whole)),
        ("P", "S", (whole, whole)), ("S", "S'", (whole // 4, whole // 4)), ("R'", "P", (0, 0)),
    ]:  # fmt: skip
        move = Redistribution(*(ValueLayout.parse(STATES[name]) for name in (source, target)))
        found = tuple(
            sum(step_bytes(step, shape, 2, MESH) for step in lower(*pair, MESH))
            for pair in (move.forward, move.backward)
        )
        assert found == expected, (source, target)


def test_text_of_redistributions() -> None:
    text = "x0:S(1) -> R | x0:P"
    move = Redistribution.parse(text)
    assert str(move) == text
    assert move.forward == (Layout.parse("x0:S(1)"), Layout.parse("R"))
    assert move.backward == (Layout.parse("x0:P"), Layout.parse("x0:S(1)"))
    for bad in ("", "R", "R -> ", "R -> R -> R", "R -> x0:Q"):
        with pytest.raises(ParseError):
            Redistribution.parse(bad)


@settings(max_examples=100)
@given(st.data())
def test_text_of_steps_parses_back(data: st.DataObject) -> None:
    mesh, shape = data.draw(meshes()), data.draw(shapes)
    source, target = data.draw(layouts(mesh, shape)), data.draw(layouts(mesh, shape))
    for step in lower(source, target, mesh):
        assert CollectiveStep.parse(str(step)) == step
    forwards = [ValueLayout.following(source), ValueLayout.following(target)]
    move = Redistribution(*forwards)
    assert Redistribution.parse(str(move)) == move


def test_steps_know_their_op() -> None:
    step = CollectiveStep.parse("all_reduce(x0): x0:P(max) -> R")
    assert step.op == "max" and not step.is_local and step.kind == "all_reduce"
    local = CollectiveStep.parse("slice(x0): R -> x0:S(0)")
    assert local.is_local and local.kind is StepKind.SLICE
    with pytest.raises(InvalidValueError, match="no op"):
        _ = local.op


@pytest.mark.parametrize(
    "text",
    [
        "gather(x0): x0:S(0) -> R", "all_gather(): x0:S(0) -> R", "all_gather(x0): x0:S(0)",
        "all_gather(x0): R -> R", "all_gather(x0): x0:P -> R", "all_gather(x0): R -> x0:S(0)",
        "all_gather(x0,x0): x0:S(0) -> R", "all_gather(x1): x0:S(0) -> R",
        "all_gather(x0): x0:S(0) x1:S(0) -> x1:S(0)", "all_gather(x0): x0:S(0) x1:P -> R",
        "all_gather(x0,x1): x0:S(0) x1:S(1) -> R", "all_gather(x1,x0): x0:S(0) x1:S(0) -> R",
        "all_gather(x0): x0:I(0,0:2/0:2,partial) -> R", "all_reduce(x0): x0:S(0) -> R",
        "all_reduce(x0): x0:P -> x0:P", "reduce_scatter(x0): R -> x0:S(0)",
        "reduce_scatter(x0): x1:S(0) x0:P -> x0:S(0) x1:S(0)",
        "reduce_scatter(x1,x0): x0:P x1:P -> x0:S(0) x1:S(0)",
        "all_to_all(x0): x0:S(0) -> x0:S(0,outer=2)", "all_to_all(x0): x0:S(0) -> R",
        "slice(x0): x0:S(0) -> x0:S(1)", "slice(x0): R -> x0:P", "slice(x0): x0:P -> x0:S(0)",
        "mask(x0): x0:P -> R", "mask(x0): R -> x0:S(0)", "mask(x0): x0:S(0) -> x0:P(max)",
        "mask(x0): x0:I(0,0:2/0:2) -> x0:I(0,0:1/0:2,partial)", "mask(x0) x0:P -> R",
        "all_gather(x0): x0:S(0) x1:S(1) -> x1:S(0)",
    ],
)  # fmt: skip
def test_steps_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ParseError):
        CollectiveStep.parse(text)


def test_a_bad_step_says_what_is_wrong() -> None:
    with pytest.raises(InvalidValueError, match=r"turns x0 from P to R, which all_gather over x0"):
        CollectiveStep(StepKind.ALL_GATHER, ("x0",), Layout.parse("x0:P"), Layout())
    with pytest.raises(InvalidValueError, match="kind 'gather' is not known"):
        CollectiveStep("gather", ("x0",), Layout(), Layout())  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="name one or more"):
        CollectiveStep(StepKind.SLICE, (), Layout(), Layout())


def test_zero_3_of_a_tensor_parallel_weight() -> None:
    """ZeRO-3 over data of a weight that is used sharded: one gather, one scatter."""
    mesh = Mesh.parse("x0=4@nvlink data=2@ib")
    weight = Redistribution.parse("x0:S(0) data:S(0) -> x0:S(0) | x0:S(0) data:P")
    assert [str(s) for s in lower(*weight.forward, mesh)] == [
        "all_gather(data): x0:S(0) data:S(0) -> x0:S(0)"
    ]
    assert [str(s) for s in lower(*weight.backward, mesh)] == [
        "reduce_scatter(data): x0:S(0) data:P -> x0:S(0) data:S(0)"
    ]
    shape = (4096, 1024)
    gathered = math.prod(shape) // 4 * 2
    for pair in (weight.forward, weight.backward):
        assert [step_bytes(s, shape, 2, mesh) for s in lower(*pair, mesh)] == [gathered]
