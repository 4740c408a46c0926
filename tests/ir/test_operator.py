"""Operator: fields that emission needs, their checks, text, and rewriting of references."""

from dataclasses import replace

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError, ShardwiseError
from shardwise.ir.expression import symbol
from shardwise.ir.operator import Dtype, Operator, Ref
from shardwise.ir.tensor import TensorSpec

B, S = symbol("B"), symbol("S")
SPEC = TensorSpec((B, S), "float32")
ADD = Operator(
    "add",
    "aten.add.Tensor",
    (Ref("x"), Ref("y", 1)),
    (("alpha", 2),),
    (SPEC,),
    "layers.0",
    "model.py:12",
    B * S,
    12 * B * S,
    sympy.Integer(8),
)
ADD_TEXT = (
    "add = aten.add.Tensor(%x, %y:1, alpha=2) -> float32[B, S] flops={B*S} moved={12*B*S} "
    'saved={8} module=layers.0 source="model.py:12"'
)
TEXTS = st.text(max_size=8)
NAMES = st.one_of(st.sampled_from(["x", "layers.0.weight", "a b"]), st.text(min_size=1, max_size=6))
COSTS = st.sampled_from([sympy.S.Zero, B * S, 2 * B * S**2 + 7, sympy.Integer(3), S * (S + 1) / 2])
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.floats(), TEXTS, st.builds(Ref, NAMES),
    st.just(B * S), st.just(Dtype("bool")),
)  # fmt: skip
ARGUMENTS = st.one_of(LEAVES, st.lists(LEAVES, max_size=3).map(tuple))
KWARGS = st.dictionaries(st.sampled_from(["alpha", "dtype", "None", "_a1"]), ARGUMENTS, max_size=3)
OPERATORS = st.builds(
    Operator,
    NAMES,
    NAMES,
    st.lists(ARGUMENTS, max_size=4).map(tuple),
    KWARGS.map(lambda kwargs: tuple(kwargs.items())),
    st.lists(st.sampled_from([SPEC, TensorSpec((), "int64")]), min_size=1, max_size=3).map(tuple),
    TEXTS,
    TEXTS,
    COSTS,
    COSTS,
    COSTS,
)


@given(OPERATORS)
@settings(deadline=None, max_examples=200)
def test_text_round_trips_on_one_line(operator: Operator) -> None:
    text = str(operator)
    assert text.isascii()
    assert text.isprintable()
    assert Operator.parse(text) == operator
    assert str(Operator.parse(text)) == text


def test_text_of_an_example() -> None:
    assert str(ADD) == ADD_TEXT
    assert Operator.parse(ADD_TEXT) == ADD


def test_zero_costs_and_empty_strings_are_left_out() -> None:
    split = Operator("s", "aten.split.Tensor", (Ref("x"), 2), (), (SPEC, SPEC))
    assert str(split) == "s = aten.split.Tensor(%x, 2) -> float32[B, S], float32[B, S]"
    assert split.flops is sympy.S.Zero


def test_refs_and_arguments_are_in_order_with_repeats() -> None:
    cat = Operator(
        "c",
        "aten.cat.default",
        ((Ref("a"), Ref("b", 2), Ref("a")), 1),
        (("out", Ref("d")),),
        (SPEC,),
    )
    assert cat.refs() == (Ref("a"), Ref("b", 2), Ref("a"), Ref("d"))
    assert list(cat.arguments()) == [Ref("a"), Ref("b", 2), Ref("a"), 1, Ref("d")]


def test_with_refs_rewrites_args_and_kwargs() -> None:
    operator = replace(ADD, kwargs=(("out", (Ref("x"),)),))
    changed = operator.with_refs(lambda ref: Ref("z", ref.index) if ref.name == "x" else ref)
    assert changed.args == (Ref("z"), Ref("y", 1))
    assert changed.kwargs == (("out", (Ref("z"),)),)
    assert replace(changed, args=operator.args, kwargs=operator.kwargs) == operator


def test_call_text_writes_refs_as_told() -> None:
    assert ADD.call_text(lambda ref: f"<{ref.index}>") == "aten.add.Tensor(<0>, <1>, alpha=2)"


def test_nan_arguments_compare_equal() -> None:
    first, second = (replace(ADD, args=(float("nan"),)) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"kind": ""},
        {"kind": None},
        {"args": [Ref("x")]},
        {"args": ([1],)},
        {"kwargs": {"alpha": 1}},
        {"kwargs": ((1, 2),)},
        {"kwargs": (("a b", 2),)},
        {"kwargs": (("é", 2),)},
        {"kwargs": (("a",),)},
        {"kwargs": (("a", 1), ("a", 2))},
        {"kwargs": (("a", [1]),)},
        {"outputs": ()},
        {"outputs": [SPEC]},
        {"outputs": (None,)},
        {"module_path": None},
        {"source": 12},
        {"flops": 3},
        {"flops": sympy.Integer(-1)},
        {"moved_bytes": sympy.oo},
        {"moved_bytes": sympy.nan},
        {"saved_bytes": sympy.Symbol("S")},
        {"saved_bytes": None},
    ],
)
def test_broken_fields_are_refused_on_one_line(change: dict[str, object]) -> None:
    with pytest.raises(InvalidValueError) as caught:
        replace(ADD, **change)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "add",
        "add = ",
        "add = aten.add.Tensor",
        "add = aten.add.Tensor()",
        "add = aten.add.Tensor() -> ",
        "add = aten.add.Tensor() -> float32",
        "add = aten.add.Tensor() -> float32[B],",
        "add = aten.add.Tensor(%x %y) -> float32[B]",
        "add = aten.add.Tensor(a=1, a=2) -> float32[B]",
        "add = aten.add.Tensor() -> float32[B] flops=3",
        "add = aten.add.Tensor() -> float32[B] flops={-1}",
        "add = aten.add.Tensor() -> float32[B] moved={1} flops={1}",
        "add = aten.add.Tensor() -> float32[B] module=",
        "add = aten.add.Tensor() -> float32[B] \n",
        None,
    ],
)
def test_malformed_text_is_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        Operator.parse(text)
    assert "\n" not in str(caught.value)


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_damaged_text_parses_or_is_a_parse_error(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(ADD_TEXT)))
    stop = data.draw(st.integers(start, min(start + 8, len(ADD_TEXT))))
    patch = data.draw(st.text('%(){}[]",=:->. \\aBS019', max_size=6))
    try:
        operator = Operator.parse(ADD_TEXT[:start] + patch + ADD_TEXT[stop:])
    except ShardwiseError as error:
        assert isinstance(error, ParseError)
    else:
        assert Operator.parse(str(operator)) == operator
