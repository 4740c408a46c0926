"""Pairs of forward and gradient layout."""

import pytest

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.expression import symbol
from shardwise.ir.layout import Layout, Shard
from shardwise.ir.value_layout import ValueLayout, following

V = ValueLayout.parse


@pytest.mark.parametrize(
    ("text", "forward", "gradient"),
    [
        ("R", "R", "R"),
        ("x0:S(1)", "x0:S(1)", "x0:S(1)"),
        ("R | x0:P", "R", "x0:P"),
        ("x0:P", "x0:P", "R"),
        ("x0:P(max)", "x0:P(max)", "R"),
        ("x0:S(0) x1:P", "x0:S(0) x1:P", "x0:S(0)"),
        ("x0:S(0) | x0:S(0) data:P", "x0:S(0)", "x0:S(0) data:P"),
        ("x0:I(0,0:2/0:2)", "x0:I(0,0:2/0:2)", "x0:I(0,0:2/0:2)"),
        (
            "x0:I(0,0:2/0:2) | x0:I(0,0:2/0:2,partial)",
            "x0:I(0,0:2/0:2)",
            "x0:I(0,0:2/0:2,partial)",
        ),
        ("x0:I(0,0:2/0:2,partial)", "x0:I(0,0:2/0:2,partial)", "x0:I(0,0:2/0:2)"),
        ("x0:S(0,outer=B) x1:S(0)", "x0:S(0,outer=B) x1:S(0)", "x0:S(0,outer=B) x1:S(0)"),
    ],
)
def test_texts(text: str, forward: str, gradient: str) -> None:
    value = V(text)
    assert value == ValueLayout(Layout.parse(forward), Layout.parse(gradient))
    assert str(value) == text
    assert V(f"{forward} | {gradient}") == value
    assert value.gradient_follows == ("|" not in text)


@pytest.mark.parametrize(
    "text",
    [
        "x0:S(0) | R", "x0:S(0) | x0:S(1)", "x0:S(0) | x0:P", "x0:P | x0:P", "R | x0:S(0)",
        "x0:S(0,outer=2) | x0:S(0)", "x0:P | x0:S(0)", "R | x0:P(max)", "x0:I(0,0:2/0:2) | R",
        "x0:I(0,0:2/0:2,partial) | x0:I(0,0:2/0:2,partial)",
        "x0:I(0,0:2/0:2) | x0:I(0,0:1/1:2)",
        "x0:S(0) x1:S(0) | x1:S(0) x0:S(0)",
    ],
)  # fmt: skip
def test_illegal_pairs(text: str) -> None:
    forward, gradient = (Layout.parse(part) for part in text.split("|"))
    with pytest.raises(InvalidValueError, match=r"legal are|use one order"):
        ValueLayout(forward, gradient)
    with pytest.raises(ParseError):
        V(text)


@pytest.mark.parametrize("text", ["", "|", "R | R | R", "x0:S(0) |", "x0:Q"])
def test_bad_texts(text: str) -> None:
    with pytest.raises(ParseError):
        V(text)


def test_the_order_between_dims_is_free() -> None:
    value = V("x0:S(0) x1:S(1) | x1:S(1) x0:S(0)")
    assert not value.gradient_follows
    assert V(str(value)) == value


def test_following() -> None:
    forward = Layout.parse("x0:S(0) x1:P x2:I(1,0:2/0:2,partial)")
    assert str(following(forward)) == "x0:S(0) x2:I(1,0:2/0:2)"
    assert ValueLayout.following(forward) == V(str(forward))


def test_sizes_go_into_both() -> None:
    entry = ("x0", Shard(0, outer=symbol("B")))
    value = ValueLayout.following(Layout((entry,)))
    assert value.at({"B": 4}) == V("x0:S(0,outer=4)")
