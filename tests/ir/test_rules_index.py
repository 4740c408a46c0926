"""Decisions on look-ups; run in test_rules_execute."""

import numpy as np
import pytest

from shardwise.ir.argument import Ref
from shardwise.ir.axis_state import READ, WHOLE, Sharded
from tests.support.rule_decision import BATCH, SEQUENCE, decision


def test_rows_of_tokens_choose_among_whole_experts():
    """Weights of experts by token: the tokens are cut, and the weights read whole beside them."""
    made = decision(
        "aten.index.Tensor", ("float32[4, 8, 8]", WHOLE, True), ("int64[2*B*S]", Sharded(0, 2)),
        args=(Ref("v0"), (Ref("v1"),)), setting=BATCH, out="float32[2*B*S, 8, 8]", at={1: (1, 0)},
    )  # fmt: skip
    assert made.reads == (READ, Sharded(0, 2)) and made.writes == (Sharded(0, 2),)


def test_indices_that_arrive_whole_are_cut_at_home():
    made = decision(
        "aten.index.Tensor", ("float32[64, 8]", WHOLE), ("int64[B, S]", WHOLE),
        args=(Ref("v0"), (Ref("v1"),)), setting=SEQUENCE, at={1: (1, 0)},
    )  # fmt: skip
    assert made.reads == (READ, Sharded(1)) and made.writes == (Sharded(1),)


@pytest.mark.parametrize("dtype", ["bool", "uint8"])
def test_a_mask_selects_from_whole_tensors(dtype):
    made = decision(
        "aten.index.Tensor", ("float32[B, S, 8]", Sharded(0)), (f"{dtype}[B]", WHOLE),
        args=(Ref("v0"), (Ref("v1"),)), setting=BATCH, at={1: (1, 0)},
    )  # fmt: skip
    assert made.reads == (WHOLE, WHOLE) and made.writes == (WHOLE,)


@pytest.mark.parametrize(
    ("dims", "state", "written"),
    [
        ((1, 3), Sharded(0), Sharded(1)),
        ((1, 3), Sharded(2), Sharded(2)),
        ((1, 2), Sharded(3), Sharded(2)),
        ((2, 3), Sharded(1), Sharded(1)),
        ((0,), Sharded(2), Sharded(2)),
    ],
)
def test_where_dims_stand_after_a_look_up(dims, state, written):
    """Indices that are apart stand first, as in numpy; neighbours stay where they are."""
    places = [Ref(f"v{dims.index(i) + 1}") if i in dims else None for i in range(dims[-1] + 1)]
    shape = [4, 4, 4, 4]
    looked_up = np.zeros(shape)[tuple([0] if p else slice(None) for p in places)].shape
    made = decision(
        "aten.index.Tensor", ("float32[4, 4, 4, 4]", state), *[("int64[1]", WHOLE)] * len(dims),
        args=(Ref("v0"), tuple(places)), out=f"float32[{', '.join(map(str, looked_up))}]",
        at={i + 1: (1, dim) for i, dim in enumerate(dims)},
    )  # fmt: skip
    assert made.reads[0] == state and made.writes == (written,)
    marked = [4, 4, 4, 4]
    marked[state.dim] = 6
    shown = np.zeros(marked)[tuple([0] if p else slice(None) for p in places)].shape
    assert shown[written.dim] == 6
