"""Symbols, inputs, parameters, sections and constants: checks and text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.expression import symbol
from shardwise.ir.graph_items import Constant, GraphInput, Parameter, Section, SymbolRange
from shardwise.ir.tensor import TensorSpec

SYMBOLIC = TensorSpec((symbol("B"), 4), "float32")
MATRIX = TensorSpec((64, 96), "float32")
NAMES = st.one_of(st.sampled_from(["w", "layers.0.weight"]), st.text(min_size=1, max_size=6))


@st.composite
def sections(draw: st.DrawFn) -> Parameter:
    source = draw(NAMES)
    start = draw(st.integers(0, 99))
    size = draw(st.integers(1, 9))
    spec = TensorSpec((3, size), "bfloat16")
    aliases = draw(st.lists(NAMES.map(lambda name: name + "#a"), unique=True, max_size=2))
    name = source + "#" + draw(st.text(max_size=3)) + "#"
    section = Section(source, 1, start, start + size)
    return Parameter(name, spec, draw(st.booleans()), tuple(aliases), section)


ITEMS = st.one_of(
    st.builds(SymbolRange, st.sampled_from(["S", "S_src"]), st.integers(1, 9), st.none()),
    st.builds(SymbolRange, st.just("B"), st.integers(1, 9), st.integers(9, 99)),
    st.builds(GraphInput, NAMES, st.sampled_from([SYMBOLIC, MATRIX])),
    st.builds(Section, NAMES, st.integers(0, 3), st.integers(0, 5), st.integers(6, 9)),
    st.builds(Parameter, NAMES, st.just(MATRIX), st.booleans()),
    sections(),
    st.builds(Constant, NAMES, st.just(MATRIX), st.booleans()),
)


@given(ITEMS)
@settings(deadline=None, max_examples=200)
def test_text_round_trips_on_one_line(item: SymbolRange) -> None:
    text = str(item)
    assert text.isascii()
    assert text.isprintable()
    assert type(item).parse(text) == item
    assert str(type(item).parse(text)) == text


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (SymbolRange("S", 2, 4096), "S in 2:4096"),
        (SymbolRange("B", 1, None), "B in 1:"),
        (GraphInput("ids", SYMBOLIC), "ids float32[B, 4]"),
        (Section("qkv", 1, 0, 64), "qkv[1, 0:64]"),
        (Parameter("w", MATRIX), "w float32[64, 96]"),
        (
            Parameter("w#q", MATRIX, False, ("v#q", "a b"), Section("w", 1, 0, 96)),
            'w#q float32[64, 96] frozen alias=v#q alias="a b" section=w[1, 0:96]',
        ),
        (Constant("c", MATRIX), "c float32[64, 96]"),
        (Constant("c", MATRIX, True), "c float32[64, 96] persistent"),
    ],
)
def test_text_of_examples(item: SymbolRange, text: str) -> None:
    assert str(item) == text
    assert type(item).parse(text) == item


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (SymbolRange, ("a b", 1, 2)),
        (SymbolRange, ("", 1, 2)),
        (SymbolRange, (None, 1, 2)),
        (SymbolRange, ("S", 0, 2)),
        (SymbolRange, ("S", 3, 2)),
        (SymbolRange, ("S", 1.0, 2)),
        (SymbolRange, ("S", 1, 2.0)),
        (SymbolRange, ("S", 1, 2**63)),
        (GraphInput, ("", MATRIX)),
        (GraphInput, ("x", "float32[1]")),
        (Section, ("", 0, 0, 1)),
        (Section, ("w", -1, 0, 1)),
        (Section, ("w", 0, -1, 1)),
        (Section, ("w", 0, 1, 1)),
        (Section, ("w", 0, 0, True)),
        (Parameter, ("", MATRIX)),
        (Parameter, ("w", SYMBOLIC)),
        (Parameter, ("w", None)),
        (Parameter, ("w", MATRIX, 1)),
        (Parameter, ("w", MATRIX, True, ["v"])),
        (Parameter, ("w", MATRIX, True, ("",))),
        (Parameter, ("w", MATRIX, True, ("w",))),
        (Parameter, ("w", MATRIX, True, ("v", "v"))),
        (Parameter, ("w#q", MATRIX, True, (), "w[0, 0:64]")),
        (Parameter, ("wq", MATRIX, True, (), Section("w", 0, 0, 64))),
        (Parameter, ("w#q", MATRIX, True, (), Section("w", 0, 0, 63))),
        (Parameter, ("w#q", MATRIX, True, (), Section("w", 1, 0, 64))),
        (Parameter, ("w#q", MATRIX, True, (), Section("w", 2, 0, 64))),
        (Constant, ("", MATRIX)),
        (Constant, ("c", SYMBOLIC)),
        (Constant, ("c", MATRIX, None)),
    ],
)
def test_broken_items_are_refused_on_one_line(make: type, arguments: tuple[object, ...]) -> None:
    with pytest.raises(InvalidValueError) as caught:
        make(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [SymbolRange, GraphInput, Section, Parameter, Constant])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "x ",
        "S in 0:4",
        "S in 4:2",
        "S in :4",
        "S in 1:4 ",
        "x float32[B",
        "w[0, 1:1]",
        "w[0,0:1]",
        "w float32[2] alias=",
        "w float32[B]x",
        "w float32[2] alias=w",
        3,
        None,
        "w float32[2]  frozen",
        "c float32[2] persistent ",
        "w#q float32[2] section=w[0, 0:3]",
    ],
)
def test_malformed_text_is_a_parse_error(make: type[SymbolRange], text: str) -> None:
    with pytest.raises(ParseError) as caught:
        make.parse(text)
    assert "\n" not in str(caught.value)


def test_concrete_shapes_only_for_parameters_and_constants() -> None:
    assert GraphInput.parse("x float32[B]").spec.symbols() == {"B"}
    for make in (Parameter, Constant):
        with pytest.raises(ParseError, match="holds at every size"):
            make.parse("x float32[B]")
