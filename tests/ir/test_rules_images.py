"""Decisions on convolutions and on statistics over the batch; run in test_rules_execute."""

import pytest

from shardwise.ir.argument import Ref
from shardwise.ir.axis_state import ADDEND, READ, WHOLE, Sharded
from tests.support.rule_decision import BATCH, TENSOR, decision


def test_rows_of_a_batch_go_to_channels_for_their_statistics_and_back():
    """In training statistics are of all documents; in evaluation they are given."""
    shapes = [("float32[B, 8, 4, 4]", Sharded(0)), *[("float32[8]", WHOLE)] * 4]
    trained, evaluated = (
        decision(
            "aten.batch_norm.default", *shapes, setting=BATCH, out="float32[B, 8, 4, 4]",
            args=(*(Ref(f"v{i}") for i in range(5)), training, 0.1, 1e-5, False),
        )
        for training in (True, False)
    )  # fmt: skip
    assert trained.reads == (Sharded(1), *[Sharded(0)] * 4) and trained.writes == (Sharded(1),)
    assert trained.afterwards == Sharded(0)
    assert evaluated.reads == (Sharded(0), *[READ] * 4) and evaluated.writes == (Sharded(0),)
    assert evaluated.afterwards is None


def test_channels_that_the_axis_does_not_divide_keep_the_batch_whole():
    shapes = [("float32[B, 3, 4]", Sharded(0)), *[("float32[3]", WHOLE)] * 2]
    made = decision(
        "aten.batch_norm.default", *shapes, setting=BATCH, out="float32[B, 3, 4]",
        args=(*(Ref(f"v{i}") for i in range(3)), None, None, True, 0.1, 1e-5, False),
    )  # fmt: skip
    assert made.reads == (WHOLE,) * 3 and made.writes == (WHOLE,)
    assert made.afterwards == Sharded(0)


@pytest.mark.parametrize(
    ("kind", "filters"),
    [("aten.conv2d.default", "[16, 8, 3, 3]"), ("aten.conv_transpose2d.input", "[8, 16, 3, 3]")],
)
def test_two_convolutions_are_column_then_row_parallel(kind, filters):
    transposed = "transpose" in kind
    first = decision(
        kind, ("float32[B, 8, 4, 4]", WHOLE), (f"float32{filters}", WHOLE, True),
        ("float32[16]", WHOLE, True), out="float32[B, 16, 4, 4]",
    )  # fmt: skip
    assert first.reads == (READ, Sharded(int(transposed)), Sharded(0))
    assert first.writes == (Sharded(1),)
    second = decision(
        kind, ("float32[B, 8, 4, 4]", Sharded(1)), (f"float32{filters}", WHOLE, True),
        ("float32[16]", WHOLE, True), out="float32[B, 16, 4, 4]",
    )  # fmt: skip
    assert second.reads == (Sharded(1), Sharded(int(not transposed)), ADDEND)
    assert second.writes == (ADDEND,)


def test_convolutions_of_groups_split_the_batch_only():
    args = (Ref("v0"), Ref("v1"), None, (1,), (0,), (1,), 8)
    values = ("float32[B, 8, 4]", "float32[8, 1, 2]")
    for state, setting, wanted in (
        (Sharded(0), BATCH, Sharded(0)),
        (Sharded(1), TENSOR, WHOLE),
        (WHOLE, TENSOR, WHOLE),
    ):
        made = decision(
            "aten.conv1d.default", (values[0], state), (values[1], WHOLE, True),
            setting=setting, args=args, out="float32[B, 8, 3]",
        )  # fmt: skip
        assert (made.reads[0], made.writes) == (wanted, (wanted,))
