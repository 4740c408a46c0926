"""Every operator rule, executed: one operator on simulated ranks against the whole operator.

Operands arrive in any state in which they can: whole, sharded on any dim with any outer, as
addends; the axes have the roles of the strategies. Outputs and gradients agree to 1e-12.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.argument import Ref
from shardwise.ir.axis_state import WHOLE, Sharded
from shardwise.ir.localise import settings as axis_settings
from shardwise.ir.mesh import Mesh
from shardwise.ir.rules import RULES
from shardwise.ir.tensor import TensorSpec
from tests.support import (
    rule_cases_images,
    rule_cases_index,
    rule_cases_model,
    rule_cases_pointwise,
    rule_cases_shape,
)
from tests.support.rig import strategy
from tests.support.rule_runner import (
    B,
    Case,
    Operand,
    S,
    check_case,
    is_even,
    possible_states,
    sizes_for,
)

MESHES = tuple(Mesh.parse(text) for text in ("x0=2@l", "x0=2@l data=2@l", "x0=4@l"))
IMPLEMENTATIONS = ("data", "tensor", "tensor_sequence", "ulysses")
CASES = (
    rule_cases_pointwise.CASES
    | rule_cases_shape.CASES
    | rule_cases_model.CASES
    | rule_cases_images.CASES
    | rule_cases_index.CASES
)


@st.composite
def states_of(draw, operand, mesh, implementation, sizes):
    """A state per axis; the batch axis `data` cuts the batch, or nothing."""
    found = []
    for one in axis_settings(strategy(implementation, mesh), mesh):
        options = possible_states(operand, one)
        if one.axis == "data":
            options = [s for s in options if not hasattr(s, "dim") or s == one.home(operand.spec)]
        found.append(draw(st.sampled_from(options)))
    states = tuple(found)
    if not is_even(states, operand.shape, mesh, sizes):
        states = (states[0], *(WHOLE for _ in states[1:]))
    return states


def run(kind, data, mesh):
    case = data.draw(CASES[kind])
    implementation = data.draw(st.sampled_from(IMPLEMENTATIONS))
    batch, length = data.draw(st.integers(1, 2)), data.draw(st.integers(2, 3))
    sizes = sizes_for(mesh, implementation, batch, length)
    states = {
        name: data.draw(states_of(operand, mesh, implementation, sizes))
        for name, operand in case.operands.items()
    }
    check_case(case, mesh, implementation, sizes, states, seed=data.draw(st.integers(0, 9)))


def test_every_kind_has_cases():
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize("more", [(), (1,), (7,), (-1, True)])
@pytest.mark.parametrize("implementation", ["data", "tensor"])
def test_lookups_in_a_sharded_table(implementation, more):
    """Rows of either rank may be the padding, which gets no gradient."""
    operands = {"a": Operand((8, 4), parameter=True), "b": Operand((B, S), "ids:8")}
    args = (Ref("a"), Ref("b"), *more)
    out = TensorSpec((B, S, 4), "float64")
    case = Case("aten.embedding.default", operands, args, (out,))
    mesh = MESHES[0]
    sizes = sizes_for(mesh, implementation, 2, 5)
    states = {"a": (WHOLE,), "b": (Sharded(0) if implementation == "data" else WHOLE,)}
    call = check_case(case, mesh, implementation, sizes, states)
    sharded = implementation == "tensor" and more != (-1, True)
    assert call.library == ("vocabulary_embedding" if sharded else None)


@pytest.mark.parametrize("mask", [None, (S, S), (B, 1, 1, S), (4, S, S)])
@pytest.mark.parametrize("kv", [1, 2, 4])
@pytest.mark.parametrize("state", [Sharded(1), Sharded(2)])
def test_attention_of_heads_on_four_ranks(state, kv, mask):
    """As many key heads as ranks, half as many, one; masks of heads and of rows, trained."""
    operands = {
        "a": Operand((B, 4, S, 8)), "b": Operand((B, kv, S, 8)), "c": Operand((B, kv, S, 8)),
    }  # fmt: skip
    if mask is not None:
        operands["d"] = Operand(mask)
    args = (*map(Ref, "abc"), Ref("d") if mask else None, 0.0, mask is None)
    kind = "aten.scaled_dot_product_attention.default"
    out = TensorSpec((B, 4, S, 8), "float64")
    case = Case(kind, operands, args, (out,), (("enable_gqa", True),))
    mesh = MESHES[2]
    sizes = sizes_for(mesh, "ulysses", 1, 1)
    rows = state if state.dim == 2 else WHOLE
    states = {"a": (state,), "b": (rows,), "c": (rows,), "d": (WHOLE,)}
    call = check_case(case, mesh, "ulysses", sizes, states)
    assert call.parts == 4
    assert call.library == (None if kv == 4 else "attention_of_local_heads")


@pytest.mark.parametrize("kind", sorted(rule_cases_pointwise.CASES))
@settings(max_examples=2)
@given(st.data())
def test_pointwise(kind, data):
    run(kind, data, data.draw(st.sampled_from(MESHES)))


@pytest.mark.parametrize("kind", sorted(rule_cases_shape.CASES))
@settings(max_examples=8)
@given(st.data())
def test_views_cuts_and_joins(kind, data):
    run(kind, data, data.draw(st.sampled_from(MESHES)))


@pytest.mark.parametrize("kind", sorted(rule_cases_model.CASES))
@settings(max_examples=18)
@given(st.data())
def test_products_reductions_attention_and_losses(kind, data):
    run(kind, data, data.draw(st.sampled_from(MESHES)))


@pytest.mark.parametrize("kind", sorted(rule_cases_images.CASES))
@settings(max_examples=6)
@given(st.data())
def test_convolutions_pools_and_norms_of_images(kind, data):
    run(kind, data, data.draw(st.sampled_from(MESHES)))


@pytest.mark.parametrize("kind", sorted(rule_cases_index.CASES))
@settings(max_examples=12)
@given(st.data())
def test_look_ups_repetition_and_order(kind, data):
    run(kind, data, data.draw(st.sampled_from(MESHES)))
