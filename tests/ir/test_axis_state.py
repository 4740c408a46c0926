"""States per axis and the layouts that they make together."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.axis_state import ADDEND, READ, WHOLE, Sharded, value_layout
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.expression import symbol
from shardwise.ir.mesh import Mesh

B, S = symbol("B"), symbol("S")
MESH = Mesh.parse("x0=2@l x1=3@l data=2@l")


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ({}, "R"),
        ({"x0": WHOLE, "data": READ}, "R | data:P"),
        ({"x0": ADDEND}, "x0:P"),
        ({"x0": ADDEND, "data": READ}, "x0:P | data:P"),
        ({"x0": Sharded(1), "data": Sharded(0)}, "x0:S(1) data:S(0)"),
        ({"x0": Sharded(0, B), "data": Sharded(0)}, "x0:S(0,outer=B) data:S(0)"),
        ({"x0": Sharded(0), "data": Sharded(0, B)}, "x0:S(0) data:S(0,outer=floor(B/2))"),
        ({"x0": Sharded(0, B), "data": Sharded(0, B)}, "x0:S(0,outer=B) data:S(0,outer=B)"),
    ],
)
def test_states_become_layouts_in_mesh_order(states, text):
    assert str(value_layout(states, MESH)) == text


@st.composite
def nested(draw):
    """Sizes of a dim's factors, and per axis the factor that it cuts."""
    ranks = [axis.size for axis in MESH.axes]
    count = draw(st.integers(1, 4))
    factors = [draw(st.integers(1, 2)) for _ in range(count)]
    cuts = [draw(st.none() | st.integers(0, count - 1)) for _ in ranks]
    for size, at in zip(ranks, cuts, strict=True):
        if at is not None:
            factors[at] *= size
    return factors, cuts


@settings(max_examples=150)
@given(nested())
def test_axes_cut_the_factors_of_a_merged_dim_independently(case):
    """Each axis keeps its coordinate's chunk of its factor; outers count blocks of what is left."""
    factors, cuts = case
    length = math.prod(factors)
    states = {
        axis.name: Sharded(0, math.prod(factors[:at]))
        for axis, at in zip(MESH.axes, cuts, strict=True)
        if at is not None
    }
    layout = value_layout(states, MESH).forward
    for rank in range(MESH.world_size):
        kept = np.arange(length).reshape(factors)
        places = MESH.coordinates(rank)
        for axis, at in zip(MESH.axes, cuts, strict=True):
            if at is not None:
                kept = np.split(kept, axis.size, axis=at)[places[axis.name]]
        (held,) = layout.index_sets((length,), MESH, rank)
        assert held.to_numpy().tolist() == kept.ravel().tolist()


def test_dims_count_from_the_left():
    with pytest.raises(InvalidValueError, match="index from the left"):
        Sharded(-1)
