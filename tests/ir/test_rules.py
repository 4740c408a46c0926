"""The registry of rules, what an axis divides, where values rest, and the mapping of reshapes.

That each rule computes the right thing is tested by running it:
tests/runtime/test_rules_execute.py.
"""

import itertools
import math

import numpy as np
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir import decide  # noqa: F401  (fills the registry)
from shardwise.ir.argument import Ref
from shardwise.ir.axis_state import ADDEND, READ, WHOLE, Sharded
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.expression import evaluate, symbol
from shardwise.ir.operator import Operator
from shardwise.ir.rules import RULES, Operand, Operands, Setting, rule, whole
from shardwise.ir.rules_view import map_reshape
from shardwise.ir.strategy import Role
from tests.support.rule_decision import BATCH, FREE, SEQUENCE, TENSOR, decision, spec

B, S = symbol("B"), symbol("S")

# --- the registry -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(RULES))
def test_every_kind_is_one_of_torch(kind):
    target = torch.ops
    for part in kind.split("."):
        target = getattr(target, part)
    assert isinstance(target, torch._ops.OpOverload)


def test_a_kind_has_one_rule():
    with pytest.raises(InvalidValueError, match=r"aten\.linear\.default has two rules"):
        rule("aten.linear.default")(whole)


def test_without_a_rule_all_is_whole():
    operator = Operator("op", "aten.topk.default", (Ref("a"), 2), (), (spec("float32[B]"),) * 2)
    operand = Operand(("args", 0), spec("float32[B, S]"), Sharded(0), True, False)
    made = whole(Operands(operator, (operand,), BATCH))
    assert made.reads == (WHOLE,) and made.writes == (WHOLE, WHOLE)


# --- what an axis divides, and where values rest ----------------------------------------------

LENGTHS = (
    B, S, B * S, 4 * B, 6 * S, 3 * B, S - 1, S + B, sympy.floor(S / 2), 4 * sympy.floor(S / 2),
    S**2, B * S**2, sympy.Integer(8), 8, 6, 3, 2 * S + 2, B / 2, 7 * B * S,
)  # fmt: skip


@settings(max_examples=150)
@given(
    st.sampled_from(LENGTHS),
    st.sampled_from([2, 3, 4]),
    st.sampled_from([(Role.BATCH, False), (Role.TENSOR, False), (Role.TENSOR, True)]),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_what_is_divided_is_divided_at_every_padded_size(length, size, role, factors):
    setting = Setting("x0", size, role[0], sequence_home=role[1])
    batch = factors[0] * (size if role[0] is Role.BATCH else 1)
    sizes = {"B": batch, "S": factors[1] * (size if role[1] else 1)}
    if setting.divides(length):
        value = length if isinstance(length, int) else evaluate(length, sizes)
        assert value % size == 0, f"{length} at {sizes}"


@pytest.mark.parametrize(
    ("setting", "length", "divided"),
    [
        (BATCH, B, True), (BATCH, B * S, True), (BATCH, S, False), (BATCH, 3 * B, True),
        (SEQUENCE, S, True), (SEQUENCE, B, False), (SEQUENCE, 3 * S, True), (TENSOR, S, False),
        (TENSOR, 2 * S, True), (TENSOR, 6, True), (TENSOR, 5, False), (BATCH, B + 1, False),
        (SEQUENCE, symbol("S_src"), True),
    ],
)  # fmt: skip
def test_divides(setting, length, divided):
    assert setting.divides(length) is divided


@pytest.mark.parametrize(
    ("setting", "text", "home"),
    [
        (BATCH, "float32[B, S, 8]", Sharded(0)),
        (BATCH, "float32[S, 8]", WHOLE),
        (BATCH, "float32[4, 4*B]", Sharded(1)),
        (SEQUENCE, "float32[B, S, 8]", Sharded(1)),
        (SEQUENCE, "float32[B*S, 8]", Sharded(0, B)),
        (SEQUENCE, "float32[B, 4, S, S]", Sharded(2)),
        (SEQUENCE, "float32[B, 8]", WHOLE),
        (TENSOR, "float32[B, S, 8]", WHOLE),
        (FREE, "float32[B, S, 8]", WHOLE),
        (BATCH, "float32[]", WHOLE),
    ],
)
def test_home(setting, text, home):
    assert setting.home(spec(text)) == home


# --- reshapes ---------------------------------------------------------------------------------


def held(shape, state, ranks, place):
    """Flat numbers of the elements that a rank has, in its order; None for an uneven cut."""
    middle = shape[state.dim] // state.outer
    if shape[state.dim] % state.outer or middle % ranks:
        return None
    array = np.arange(math.prod(shape)).reshape(
        *shape[: state.dim], state.outer, middle, *shape[state.dim + 1 :]
    )
    return np.split(array, ranks, axis=state.dim + 1)[place].ravel().tolist()


@st.composite
def reshapes(draw):
    atoms = draw(st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=4))

    def grouped():
        shape = [atoms[0]]
        for atom in atoms[1:]:
            if draw(st.booleans()):
                shape[-1] *= atom
            else:
                shape.append(atom)
        if draw(st.booleans()):
            shape.insert(draw(st.integers(0, len(shape))), 1)
        return tuple(shape)

    before, after = grouped(), grouped()
    dim = draw(st.integers(0, len(before) - 1))
    outers = [k for k in range(1, before[dim] + 1) if before[dim] % k == 0]
    return before, after, Sharded(dim, draw(st.sampled_from(outers))), draw(st.sampled_from([2, 3]))


@settings(max_examples=300)
@given(reshapes())
def test_a_reshape_maps_a_shard_to_the_same_elements_or_to_none(case):
    """Right where it answers; and it answers wherever some output shard holds those elements."""
    before, after, state, ranks = case
    setting = Setting("x0", ranks, Role.TENSOR)
    wanted = [held(before, state, ranks, place) for place in range(ranks)]
    mapped = map_reshape(state, before, after, setting)
    if wanted[0] is None or before[state.dim] // state.outer == 1:
        return
    if mapped is not None:
        assert [held(after, mapped, ranks, place) for place in range(ranks)] == wanted
        return
    for dim, length in enumerate(after):
        for outer in (k for k in range(1, length) if length % k == 0):
            found = [held(after, Sharded(dim, outer), ranks, p) for p in range(ranks)]
            assert found != wanted, f"S({dim},outer={outer}) holds the same"


@pytest.mark.parametrize(
    ("setting", "before", "after", "state", "mapped"),
    [
        (SEQUENCE, "[B, S, 8]", "[B*S, 8]", Sharded(1), Sharded(0, B)),
        (SEQUENCE, "[B*S, 8]", "[B, S, 8]", Sharded(0, B), Sharded(1)),
        (BATCH, "[B, S, 8]", "[B*S, 8]", Sharded(0), Sharded(0)),
        (BATCH, "[B*S, 8]", "[B, S, 2, 4]", Sharded(0), Sharded(0)),
        (TENSOR, "[B, S, 8]", "[B, S, 4, 2]", Sharded(2), Sharded(2)),
        (TENSOR, "[B, S, 12]", "[B, S, 3, 4]", Sharded(2), None),
        (TENSOR, "[B, S, 12]", "[B, S, 3, 4]", Sharded(2, 3), Sharded(3)),
        (TENSOR, "[B, S, 3, 4]", "[B, S, 12]", Sharded(3), Sharded(2, 3)),
        (TENSOR, "[B, S, 4, 2]", "[B, S*8]", Sharded(2), Sharded(1, S)),
        (SEQUENCE, "[B, S, 8]", "[S, B, 8]", Sharded(1), None),
        (TENSOR, "[B, 1, 8]", "[B, 8]", Sharded(2), Sharded(1)),
        (TENSOR, "[B, 5, 2]", "[B, 10]", Sharded(1), None),
    ],
)
def test_reshapes_of_a_model(setting, before, after, state, mapped):
    shapes = [spec(f"float32{text}").shape for text in (before, after)]
    assert map_reshape(state, *shapes, setting) == mapped


# --- what makes the collectives few -----------------------------------------------------------


def test_an_mlp_is_column_then_row_parallel():
    up = decision(
        "aten.linear.default", ("float32[B, S, 8]", WHOLE), ("float32[16, 8]", WHOLE, True),
        ("float32[16]", WHOLE, True), out="float32[B, S, 16]",
    )  # fmt: skip
    assert up.reads == (READ, Sharded(0), Sharded(0)) and up.writes == (Sharded(2),)
    down = decision(
        "aten.linear.default", ("float32[B, S, 16]", Sharded(2)), ("float32[8, 16]", WHOLE, True),
        ("float32[8]", WHOLE, True),
    )  # fmt: skip
    assert down.reads == (Sharded(2), Sharded(1), ADDEND) and down.writes == (ADDEND,)


def test_rows_of_the_batch_read_weights_whole():
    made = decision(
        "aten.linear.default", ("float32[B, S, 8]", Sharded(0)), ("float32[16, 8]", WHOLE, True),
        setting=BATCH, out="float32[B, S, 16]",
    )  # fmt: skip
    assert made.reads == (Sharded(0), READ) and made.writes == (Sharded(0),)


def test_a_residual_of_addends_waits_for_one_reduction():
    both = [("float32[B, S, 8]", ADDEND)] * 2
    assert decision("aten.add.Tensor", *both).writes == (ADDEND,)
    assert decision("aten.mul.Tensor", *both).writes == (WHOLE,)
    alone = decision("aten.add.Tensor", both[0], ("float32[B, S, 8]", Sharded(1)), setting=SEQUENCE)
    assert alone.reads == (Sharded(1), Sharded(1))


@pytest.mark.parametrize(
    ("heads", "kv", "library", "kv_state"),
    [(4, 4, None, Sharded(1)), (4, 2, None, Sharded(1)), (4, 1, "attention_of_local_heads", READ)],
)
def test_query_rows_go_to_heads_and_back(heads, kv, library, kv_state):
    made = decision(
        "aten.scaled_dot_product_attention.default",
        (f"float32[B, {heads}, S, 8]", Sharded(2)), (f"float32[B, {kv}, S, 8]", Sharded(2)),
        (f"float32[B, {kv}, S, 8]", Sharded(2)),
        setting=SEQUENCE, out=f"float32[B, {heads}, S, 8]",
    )  # fmt: skip
    assert made.reads == (Sharded(1), kv_state, kv_state)
    assert (made.library, made.afterwards) == (library, Sharded(2))


def test_heads_that_the_axis_does_not_divide_stay_whole():
    made = decision(
        "aten.scaled_dot_product_attention.default",
        *[("float32[B, 3, S, 8]", Sharded(2))] * 3, setting=SEQUENCE, out="float32[B, 3, S, 8]",
    )  # fmt: skip
    assert made.reads == (WHOLE,) * 3 and made.afterwards == Sharded(2)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_the_class_parallel_loss_needs_whole_blocks_of_classes(rows):
    """Classes that stand in outer blocks are gathered: the library counts from one offset."""
    made = decision(
        "aten.cross_entropy_loss.default",
        ("float32[B, 8]", Sharded(1, rows)), ("int64[B]", WHOLE),
        args=(Ref("v0"), Ref("v1"), None, 2), out="float32[]",
    )  # fmt: skip
    assert made.library == ("vocabulary_cross_entropy" if rows == 1 else None)
    assert made.writes == (WHOLE,)


@pytest.mark.parametrize(
    ("scores", "state", "target", "smoothing", "read", "library"),
    [
        ("[B, 8]", Sharded(0), "int64[B]", 0.0, Sharded(0), None),
        ("[B, 8]", Sharded(0), "float32[B, 8]", 0.1, Sharded(0), None),
        ("[B, 8, 4]", Sharded(2), "int64[B, 4]", 0.0, Sharded(1), None),
        ("[B, 8, 4]", Sharded(2), "float32[B, 8, 4]", 0.0, Sharded(2), None),
        ("[B, 8]", Sharded(1), "int64[B]", 0.0, WHOLE, "vocabulary_cross_entropy"),
        ("[B, 8]", Sharded(1), "int64[B]", 0.1, WHOLE, None),
        ("[B, 8]", Sharded(1), "float32[B, 8]", 0.0, WHOLE, None),
        ("[B, 8, 4]", Sharded(1), "int64[B, 4]", 0.0, WHOLE, None),
    ],
)
def test_the_target_is_cut_as_the_rows_are(scores, state, target, smoothing, read, library):
    made = decision(
        "aten.cross_entropy_loss.default", (f"float32{scores}", state), (target, WHOLE),
        args=(Ref("v0"), Ref("v1"), None, 2, -100, smoothing), out="float32[]",
    )  # fmt: skip
    assert (made.reads[1], made.library) == (read, library)
    assert (made.writes[0] is ADDEND) == (read is not WHOLE)


def test_every_pair_of_states_of_a_product_is_answered():
    """Also shards of both operands on different dims: one of them is gathered, none is lost."""
    states = [WHOLE, ADDEND, *(Sharded(d) for d in range(4))]
    for left, right in itertools.product(states, states):
        made = decision(
            "aten.matmul.default", ("float32[4, 4, 4, 4]", left), ("float32[4, 4, 4, 4]", right),
            out="float32[4, 4, 4, 4]",
        )  # fmt: skip
        sharded = [s for s in made.reads if isinstance(s, Sharded)]
        assert (made.writes[0] is WHOLE) == (not sharded)


@pytest.mark.parametrize(
    ("equation", "state", "reads", "written"),
    [
        ("bsn,nk->bsk", Sharded(0), (Sharded(0), READ), Sharded(0)),
        ("bsn,nk->bsk", Sharded(2), (Sharded(2), Sharded(0)), ADDEND),
        ("bsn,nk->kbs", Sharded(1), (Sharded(1), READ), Sharded(2)),
        ("bsn,nk", Sharded(1), (Sharded(1), READ), Sharded(2)),
        ("bsn,nk->...bsk", Sharded(1), (WHOLE, WHOLE), WHOLE),
    ],
)
def test_a_letter_that_is_cut_is_cut_everywhere(equation, state, reads, written):
    made = decision(
        "aten.einsum.default", ("float32[B, S, 8]", state), ("float32[8, 6]", WHOLE),
        args=(equation, (Ref("v0"), Ref("v1"))), out="float32[B, S, 6]",
        at={0: (1, 0), 1: (1, 1)},
    )  # fmt: skip
    assert made.reads == reads and made.writes == (written,)


@pytest.mark.parametrize("kind", ["aten.topk.default", "aten.sort.default", "aten.argsort.default"])
def test_the_last_dim_is_sorted_by_default(kind):
    more = (2,) if "topk" in kind else ()
    for state, wanted in ((Sharded(0), Sharded(0)), (Sharded(2), WHOLE)):
        made = decision(kind, ("float32[B, S, 8]", state), args=(Ref("v0"), *more))
        assert made.reads == (wanted,)


@pytest.mark.parametrize(
    ("sizes", "free"),
    [((0, 0, 0, 2), {0, 2}), ((1, 0), {0, 1}), ((0, 0, 0, 0, 0, 3), {1, 2}), ((0, 0), {0, 1, 2})],
)
def test_only_padded_dims_are_whole(sizes, free):
    for dim in range(3):
        made = decision(
            "aten.constant_pad_nd.default", ("float32[4, 4, 4]", Sharded(dim)),
            args=(Ref("v0"), sizes),
        )  # fmt: skip
        assert (made.reads == (Sharded(dim),)) == (dim in free)
