"""Arguments: legal leaves and their canonical form, text, and references."""

import math

import numpy
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.argument import (
    MAX_DEPTH,
    MAX_INTEGER,
    Argument,
    Dtype,
    Ref,
    argument_text,
    check_argument,
    leaves,
    map_refs,
    scan_argument,
    scan_call,
    scan_ref,
)
from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.expression import symbol
from shardwise.ir.scanner import Scanner

B, S = symbol("B"), symbol("S")
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(1 - MAX_INTEGER, MAX_INTEGER - 1),
    st.floats(),
    st.text(max_size=10),
    st.sampled_from([B, B * S, 2 * S + 1, sympy.Mod(S, 8), 0.5 * S, B / S]),
    st.sampled_from([Dtype(name) for name in DTYPE_BYTES]),
    st.builds(Ref, st.text(min_size=1, max_size=5), st.integers(0, 9)),
)
ARGUMENTS = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=8)


def read(text: str) -> Argument:
    scanner = Scanner(text, "an argument")
    argument = scan_argument(scanner)
    scanner.end()
    return argument


def types(argument: object) -> object:
    return [types(x) for x in argument] if isinstance(argument, tuple) else type(argument)


@given(ARGUMENTS)
@settings(deadline=None, max_examples=300)
def test_text_round_trips_with_types(argument: Argument) -> None:
    argument = check_argument(argument, "x")
    text = argument_text(argument)
    again = check_argument(read(text), "x")
    assert again == argument
    assert types(again) == types(argument)
    assert argument_text(again) == text
    assert text.isascii()
    assert text.isprintable()


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        (None, "None"),
        (True, "True"),
        (-3, "-3"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (1e-5, "1e-05"),
        (1e22, "1e+22"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        ("inf", '"inf"'),
        ("float32", '"float32"'),
        ("torch.strided", '"torch.strided"'),
        (Dtype("float32"), "float32"),
        (2 * B * S, "{2*B*S}"),
        (Ref("a.b"), "%a.b"),
        (Ref("a b", 2), '%"a b":2'),
        ((), "()"),
        ((1,), "(1,)"),
        ((1, (None, 2.5), ()), "(1, (None, 2.5), ())"),
    ],
)
def test_text_of_each_leaf(argument: Argument, text: str) -> None:
    assert argument_text(argument) == text
    again = read(text)
    assert again == argument or text == "nan"
    assert types(again) == types(argument)
    assert math.copysign(1, read("-0.0")) == -1  # type: ignore[arg-type]


def test_numbers_of_sympy_become_python_numbers() -> None:
    checked = check_argument((sympy.Integer(3), sympy.Float(0.5), B - B), "x")
    assert checked == (3, 0.5, 0)
    assert types(checked) == [int, float, int]


def test_nan_is_one_object() -> None:
    assert check_argument((float("nan"), 1), "x") == check_argument((float("nan"), 1), "y")


@pytest.mark.parametrize(
    "argument",
    [
        [1, 2],
        {"a": 1},
        1j,
        numpy.float64(1),
        numpy.int64(1),
        MAX_INTEGER,
        -MAX_INTEGER,
        sympy.Symbol("S"),
        sympy.Rational(1, 2),
        sympy.oo,
        sympy.Function("f")(S),
        type("Text", (str,), {})("x"),
        object(),
        slice(1),
    ],
)
def test_other_types_are_refused_with_the_place(argument: object) -> None:
    with pytest.raises(InvalidValueError):
        check_argument((1, argument), "operator 'x'")
    if not isinstance(argument, sympy.Expr):
        with pytest.raises(InvalidValueError, match=r"^operator 'x' has the argument"):
            check_argument((1, argument), "operator 'x'")


def test_depth_is_bounded() -> None:
    deep: Argument = 1
    for _ in range(MAX_DEPTH):
        deep = (deep,)
    assert read(argument_text(check_argument(deep, "x"))) == deep
    with pytest.raises(InvalidValueError, match=f"{MAX_DEPTH} deep"):
        check_argument((deep,), "x")
    with pytest.raises(ParseError, match=rf"at most {MAX_DEPTH} deep"):
        read("(" + argument_text(deep) + ",)")
    with pytest.raises(ParseError):
        read("(" * 100_000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "%",
        "% a",
        "%a:0",
        "%a:-1",
        "%a:x",
        "tru",
        "float33",
        "1x",
        "1.2.3",
        "--1",
        "0x10",
        "1e",
        "{",
        "{B",
        "{B +}",
        "{}",
        "{__import__}()",
        "(1)",
        "(1",
        "(1,2)",
        "(,)",
        "(1, )",
        '"a',
        "infx",
        str(MAX_INTEGER),
        "9" * 5000,
        "nane",
        "Nonex",
    ],
)
def test_malformed_arguments_are_parse_errors(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        read(text)
    assert "\n" not in str(caught.value)


def test_calls_have_positional_then_keyword_arguments() -> None:
    assert scan_call(Scanner("()", "")) == ((), ())
    assert scan_call(Scanner("(%x, None, None=2, b=(1,))", "")) == (
        (Ref("x"), None),
        (("None", 2), ("b", (1,))),
    )
    for text in ["(a=1, 2)", "(1 2)", "(1,2)", "(", "(a=)", "(1, )"]:
        with pytest.raises(ParseError):
            scan_call(Scanner(text, ""))


def test_leaves_and_map_refs_reach_every_depth() -> None:
    argument = (Ref("a"), (1, (Ref("b", 1), "%c")), ())
    assert list(leaves(argument)) == [Ref("a"), 1, Ref("b", 1), "%c"]
    renamed = map_refs(argument, lambda ref: Ref(ref.name * 2, ref.index))
    assert renamed == (Ref("aa"), (1, (Ref("bb", 1), "%c")), ())
    assert map_refs(argument, lambda ref: ref.index) == (0, (1, (1, "%c")), ())


@given(st.builds(Ref, st.text(min_size=1), st.integers(0, 10**9)))
@settings(deadline=None)
def test_refs_round_trip(ref: Ref) -> None:
    assert Ref.parse(str(ref)) == ref
    assert scan_ref(Scanner(str(ref), "")) == ref


def test_refs_and_dtypes_check_themselves() -> None:
    for name, index in [("", 0), (3, 0), ("a", -1), ("a", True), ("a", MAX_INTEGER)]:
        with pytest.raises(InvalidValueError):
            Ref(name, index)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError):
        Dtype("float33")
    assert Dtype.parse("int8") == Dtype("int8")
    for text in ["float33", "", 3]:
        with pytest.raises(ParseError, match="float64"):
            Dtype.parse(text)  # type: ignore[arg-type]
    with pytest.raises(ParseError):
        Ref.parse("%a b")
