"""Derived layouts of a parameter: where gradients wait, and how copies are kept."""

import pytest

from shardwise.ir.errors import MismatchError
from shardwise.ir.layout import Layout
from shardwise.ir.mesh import Mesh
from shardwise.ir.parameter_choice import Lifetime, ParameterChoice
from shardwise.ir.program import Use
from shardwise.ir.rest import Rest, copy_layout, rests, stored_layout, uses_by_parameter
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.value_layout import ValueLayout
from tests.support.hand_model import hand_graph, layer_shapes

MESH = Mesh.parse("x0=2@l data=2@l")


def use(text, name="w"):
    return Use(f"{name}__use1", name, TensorSpec((8, 8), "float32"), ValueLayout.parse(text))


def rest(accumulator, master="x0:S(0) data:S(0)"):
    return Rest("w", (8, 8), Layout.parse(master), Layout.parse(accumulator), Lifetime.STEP)


@pytest.mark.parametrize(
    ("accumulator", "gradients", "expected"),
    [
        ("R", ["R"], "R"),
        ("R", ["R | x0:P data:P"], "x0:P data:P"),
        ("R", ["R | x0:P data:P", "x0:S(0) | x0:S(0) data:P"], "x0:P data:P"),
        ("R", ["x0:S(0) | x0:S(0) data:P"], "x0:S(0) data:P"),
        ("R", ["R", "R | data:P"], "data:P"),
        ("x0:S(0)", ["R | x0:P data:P"], "x0:S(0) data:P"),
        ("x0:S(0) data:S(0)", ["R | x0:P data:P"], "x0:S(0) data:S(0)"),
        ("x0:S(0) data:S(0)", ["R"], "x0:S(0) data:S(0)"),
        ("R", [], "R"),
    ],
)
def test_gradients_wait_where_every_use_can_leave_them(accumulator, gradients, expected):
    found = stored_layout(rest(accumulator), [use(text) for text in gradients], MESH)
    assert found == Layout.parse(expected)


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        (["x0:S(0)", "x0:S(0)"], "x0:S(0)"),
        (["x0:S(0)", "R"], "R"),
        (["x0:S(1)", "x0:S(0)"], "R"),
        ([], "R"),
    ],
)
def test_copies_are_kept_as_all_uses_want_them(uses, expected):
    assert copy_layout([use(text) for text in uses]) == Layout.parse(expected)


def test_uses_are_gathered_by_name():
    found = uses_by_parameter([use("R", "a"), use("R", "b"), use("x0:S(0)", "a")])
    assert {name: len(uses) for name, uses in found.items()} == {"a": 2, "b": 1}


def test_every_parameter_of_the_graph_has_a_rest():
    graph, _ = hand_graph()
    whole = Layout(())
    patterns = ["table", *(f"layers.{{0:2}}.{name}" for name in layer_shapes(2))]
    choices = [ParameterChoice(pattern, whole, whole, Lifetime.STEP) for pattern in patterns]
    found = rests(graph, choices)
    assert [one.name for one in found] == [p.name for p in graph.parameters]
    assert found[0].shape == (48, 32)
    with pytest.raises(MismatchError, match="table"):
        rests(graph, choices[1:])
