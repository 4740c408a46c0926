"""Fast numbers agree with the exact ones."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.expression import evaluate, parse_expression
from shardwise.ir.layout import Layout
from shardwise.ir.mesh import Mesh
from shardwise.ir.tensor import TensorSpec
from shardwise.planner.sizes import local_bytes, number, parts

MESH = Mesh.parse("x0=2@l data=4@l")


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["B*S", "2*B*S**2 + 3", "floor(B/4)*S", "Max(B, S)", "B*S*32*2"]),
    st.integers(1, 10**4),
    st.integers(1, 10**5),
)
def test_number_is_evaluate(text, batch, length):
    sizes = {"B": batch, "S": length}
    expression = parse_expression(text)
    assert number(expression, sizes) == evaluate(expression, sizes)


def test_number_of_an_int():
    assert number(7, {}) == 7


@pytest.mark.parametrize("text", ["R", "x0:S(1)", "x0:S(1) data:S(0)", "data:P x0:S(1)",
                                  "x0:S(1) data:S(1)"])  # fmt: skip
def test_local_bytes_are_those_of_the_local_shape(text):
    layout = Layout.parse(text)
    spec = TensorSpec.parse("bfloat16[B, S, 8]")
    for rank in range(MESH.world_size):
        batch, length, width = layout.local_shape((8, 64, 8), MESH, rank)
        expected = batch * length * width * 2
        assert local_bytes(spec, layout, MESH, {"B": 8, "S": 64}) == expected


def test_parts_count_cuts_only():
    assert parts(Layout.parse("data:P"), MESH) == 1
    assert parts(Layout.parse("x0:S(0) data:S(0)"), MESH) == 8
