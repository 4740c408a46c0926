"""Layouts at rest of every scheme."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.graph import Parameter
from shardwise.ir.layout import Layout
from shardwise.ir.localise import localise
from shardwise.ir.mesh import Mesh
from shardwise.ir.name_pattern import NamePattern
from shardwise.ir.parameter_choice import Lifetime
from shardwise.ir.strategy import Recompute
from shardwise.ir.tensor import TensorSpec
from shardwise.planner import menu
from shardwise.planner.scheme import SCHEMES, choices, patterns, scheme_rest, tensor_dims
from tests.support.hand_model import TENSOR_DIM, hand_graph

BY_NAME = {scheme.name: scheme for scheme in SCHEMES}
MESH = Mesh.parse("x0=2@l data=4@l")


def program(mesh, kv_heads=2):
    graph, units = hand_graph(kv_heads=kv_heads)
    one = menu.strategy("tensor_sequence", mesh, Recompute.NONE)
    return graph, localise(graph, units, mesh, [one] * len(units))


def rest(scheme, shape, dim=0, mesh=MESH):
    parameter = Parameter("w", TensorSpec(shape, "float32"))
    return scheme_rest(parameter, mesh, BY_NAME[scheme], {"w": dim})


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_tensor_dims_are_those_of_the_tensor_parallel_program(kv_heads):
    """Key and value heads fewer than ranks: their rows are cut all the same."""
    _, local = program(Mesh.parse("x0=2@l"), kv_heads)
    dims = tensor_dims(local)
    expected = {"table": TENSOR_DIM["table"]}
    names = set(TENSOR_DIM) - {"table"}
    for layer in (0, 1):
        expected |= {f"layers.{layer}.{name}": TENSOR_DIM[name] for name in names}
    assert dims == expected


@pytest.mark.parametrize(
    ("scheme", "master", "accumulator", "lifetime"),
    [
        ("DDP", "R", "R", "step"),
        ("TP", "x0:S(1)", "x0:S(1)", "step"),
        ("ZeRO-1", "x0:S(1) data:S(1)", "R", "step"),
        ("TP+ZeRO-1", "x0:S(1) data:S(1)", "x0:S(1)", "step"),
        ("ZeRO-2", "x0:S(1) data:S(1)", "x0:S(1) data:S(1)", "step"),
        ("ZeRO-3", "x0:S(1) data:S(1)", "x0:S(1) data:S(1)", "use"),
    ],
)
def test_a_matrix_rests_as_the_scheme_says(scheme, master, accumulator, lifetime):
    one = rest(scheme, (16, 32), dim=1)
    assert str(one.master) == master
    assert str(one.accumulator) == accumulator
    assert one.lifetime == lifetime


@pytest.mark.parametrize("scheme", BY_NAME)
def test_vectors_and_what_no_axis_divides_replicate(scheme):
    for shape in ((64,), (), (15, 32)):
        one = rest(scheme, shape)
        assert one.master == one.accumulator == Layout(())
        assert one.lifetime is Lifetime.STEP


def test_an_axis_that_does_not_divide_is_left_out():
    assert str(rest("ZeRO-3", (6, 32)).master) == "x0:S(0)"
    assert str(rest("ZeRO-3", (4, 32), mesh=Mesh.parse("x0=3@l data=4@l")).master) == "data:S(0)"


@settings(deadline=None, max_examples=60)
@given(st.tuples(st.integers(1, 48), st.integers(1, 48)), st.sampled_from(sorted(BY_NAME)),
       st.sampled_from(["x0=2@l data=4@l", "x0=3@l", "data=6@l", "x0=4@l data=2@l"]))  # fmt: skip
def test_cuts_are_even(shape, scheme, mesh):
    mesh = Mesh.parse(mesh)
    one = rest(scheme, shape, mesh=mesh)
    for layout in (one.master, one.accumulator):
        assert len({layout.local_shape(shape, mesh, r) for r in range(mesh.world_size)}) == 1


@pytest.mark.parametrize("scheme", BY_NAME)
def test_choices_name_every_parameter_once(scheme):
    graph, local = program(MESH)
    found = choices(graph, MESH, BY_NAME[scheme], tensor_dims(local))
    named = [name for choice in found for name in choice.names.names()]
    assert sorted(named) == sorted(p.name for p in graph.parameters)


def test_patterns():
    names = ["a.0.w", "a.1.w", "a.3.w", "table", "a.0.b"]
    found = patterns(names)
    assert found == ["table", "a.{0:2}.w", "a.{3:4}.w", "a.{0:1}.b"]
    assert sorted(n for p in found for n in NamePattern.parse(p).names()) == sorted(names)
