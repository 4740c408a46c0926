"""Strategy: roles and layouts agree, text round-trips."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError, ShardwiseError
from shardwise.ir.strategy import Recompute, Role, Strategy
from shardwise.ir.value_layout import ValueLayout

TEXT = (
    "tensor_sequence x0=tensor data=batch recompute=layer in=[data:S(0) x0:S(1); R | x0:P] "
    "out=[data:S(0) x0:S(1)] splits_backward not_executable"
)
STRATEGY = Strategy(
    "tensor_sequence",
    (("x0", Role.TENSOR), ("data", Role.BATCH)),
    (ValueLayout.parse("data:S(0) x0:S(1)"), ValueLayout.parse("R | x0:P")),
    (ValueLayout.parse("data:S(0) x0:S(1)"),),
    Recompute.LAYER,
    splits_backward=True,
    executable=False,
)
LAYOUTS = [
    "R",
    "R | x0:P",
    "x0:P",
    "x0:P(max)",
    "x0:S(1)",
    "x0:S(0,outer=3) data:S(0)",
    "data:S(2,sections=64/32/32) | x0:P data:S(2,sections=64/32/32)",
    "x0:I(0,0:64/0:64/64:128/64:128)",
]
VALUES = st.lists(st.sampled_from([ValueLayout.parse(text) for text in LAYOUTS]), max_size=3)
STRATEGIES = st.builds(
    Strategy,
    st.sampled_from(["data", "ring", "metp_2"]),
    st.permutations([("x0", Role.SEQUENCE), ("data", Role.BATCH), ("x1", Role.REPLICATE)]).map(
        tuple
    ),
    VALUES.map(tuple),
    VALUES.map(tuple),
    recompute=st.sampled_from(Recompute),
    splits_backward=st.booleans(),
    executable=st.booleans(),
)


@given(STRATEGIES)
@settings(deadline=None)
def test_text_round_trips(strategy: Strategy) -> None:
    assert Strategy.parse(str(strategy)) == strategy
    assert str(Strategy.parse(str(strategy))) == str(strategy)
    assert hash(Strategy.parse(str(strategy))) == hash(strategy)


def test_text_of_examples() -> None:
    assert str(STRATEGY) == TEXT
    assert Strategy.parse(TEXT) == STRATEGY
    assert str(Strategy("replicate", (), (), ())) == "replicate in=[] out=[]"
    assert Strategy.parse("replicate in=[] out=[]") == Strategy("replicate", (), (), ())


def test_roles_of_axes() -> None:
    assert STRATEGY.role("x0") is Role.TENSOR
    assert STRATEGY.role("x7") is Role.REPLICATE
    two = replace(STRATEGY, roles=(*STRATEGY.roles, ("x1", Role.TENSOR)))
    assert two.axes(Role.TENSOR) == ("x0", "x1")
    assert two.axes(Role.EXPERT) == ()


def test_every_role_and_recompute_has_its_name_as_text() -> None:
    assert list(Role) == ["batch", "sequence", "tensor", "expert", "replicate"]
    assert list(Recompute) == ["none", "attention", "region", "layer"]
    for role in Role:
        assert Strategy.parse(f"a x0={role} in=[] out=[]").role("x0") is role
    for recompute in Recompute:
        text = f"a recompute={recompute} in=[] out=[]"
        assert Strategy.parse(text).recompute is recompute


@pytest.mark.parametrize(
    "change",
    [
        {"implementation": ""},
        {"implementation": "Ring"},
        {"implementation": None},
        {"roles": [("x0", Role.TENSOR)]},
        {"roles": (("x0", "tensor"), ("data", Role.BATCH))},
        {"roles": (("x0",), ("data", Role.BATCH))},
        {"roles": (*STRATEGY.roles, ("x0", Role.BATCH))},
        {"roles": (*STRATEGY.roles, ("in", Role.BATCH))},
        {"roles": (*STRATEGY.roles, ("X", Role.BATCH))},
        {"roles": (*STRATEGY.roles, (1, Role.BATCH))},
        {"roles": STRATEGY.roles[:1]},
        {"roles": STRATEGY.roles[1:]},
        {"roles": (STRATEGY.roles[1], ("x0", Role.REPLICATE))},
        {"inputs": list(STRATEGY.inputs)},
        {"inputs": ("R",)},
        {"inputs": (ValueLayout.parse("R | x1:P"),)},
        {"outputs": (ValueLayout.parse("x1:P"),)},
        {"outputs": None},
        {"recompute": "layer"},
        {"recompute": None},
        {"splits_backward": 1},
        {"executable": None},
    ],
)
def test_broken_strategies_are_refused_on_one_line(change: dict[str, object]) -> None:
    with pytest.raises(InvalidValueError) as caught:
        replace(STRATEGY, **change)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_layouts_need_an_axis_with_a_role() -> None:
    with pytest.raises(InvalidValueError, match="axis x0 has no role"):
        Strategy("a", (), (ValueLayout.parse("R | x0:P"),), ())
    replicated = Strategy("a", (), (ValueLayout.parse("R"),), ())
    assert replicated.inputs[0].gradient_follows


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ring",
        "ring in=[]",
        "ring out=[]",
        "ring in=[] out=[",
        "ring in=[] out=[] ",
        "ring in=[] out=[] executable",
        "ring in=[] out=[] not_executable splits_backward",
        "ring x0=tensr in=[] out=[]",
        "ring x0= in=[] out=[]",
        "ring recompute=all in=[] out=[]",
        "ring recompute=layer x0=tensor in=[] out=[]",
        "ring in=[x0:S(1)] out=[]",
        "ring x0=tensor in=[x0:S(1);R] out=[]",
        "ring x0=tensor in=[x0:Q(1)] out=[]",
        "ring x0=tensor x0=batch in=[] out=[]",
        "Ring in=[] out=[]",
        None,
    ],
)
def test_malformed_text_is_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        Strategy.parse(text)
    assert "\n" not in str(caught.value)


@given(st.integers(0, len(TEXT)), st.integers(0, 6), st.text("x0data=:;[]()SRP| 1,", max_size=4))
@settings(deadline=None, max_examples=200)
def test_damaged_text_parses_or_is_a_parse_error(start: int, length: int, patch: str) -> None:
    try:
        strategy = Strategy.parse(TEXT[:start] + patch + TEXT[start + length :])
    except ShardwiseError as error:
        assert isinstance(error, ParseError)
    else:
        assert Strategy.parse(str(strategy)) == strategy
