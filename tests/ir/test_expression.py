"""Expressions: text round trip, safety of the reader, exact values."""

import math
from fractions import Fraction

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.expression import (
    as_size,
    evaluate,
    evaluate_size,
    format_expression,
    free_names,
    parse_expression,
    symbol,
)

B, S = symbol("B"), symbol("S")
SIZES = {"B": 4, "S": 10}

numbers = st.one_of(
    st.integers(-50, 50).map(sympy.Integer),
    st.fractions(Fraction(-5), Fraction(5), max_denominator=9).map(
        lambda f: sympy.Rational(f.numerator, f.denominator)
    ),
    st.floats(-1e9, 1e9, allow_nan=False).map(sympy.Float),
)
leaves = st.one_of(numbers, st.sampled_from([B, S, symbol("S_src")]))


def _grow(inner: st.SearchStrategy[sympy.Expr]) -> st.SearchStrategy[sympy.Expr]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda p: p[0] + p[1]),
        pairs.map(lambda p: p[0] - p[1]),
        pairs.map(lambda p: p[0] * p[1]),
        st.tuples(inner, st.integers(1, 3)).map(lambda p: p[0] ** p[1]),
        st.tuples(inner, st.integers(1, 9)).map(lambda p: p[0] / p[1]),
        inner.map(sympy.floor),
        inner.map(sympy.ceiling),
        st.tuples(inner, st.integers(1, 9)).map(lambda p: sympy.Mod(p[0], p[1])),
        pairs.map(lambda p: sympy.Max(*p)),
        pairs.map(lambda p: sympy.Min(*p)),
    )


expressions = st.recursive(leaves, _grow, max_leaves=6)


@settings(deadline=None, max_examples=150)
@given(expressions)
def test_text_parses_back(expression: sympy.Expr) -> None:
    text = format_expression(expression)
    assert parse_expression(text) == expression, text


@settings(deadline=None, max_examples=100)
@given(expressions, st.integers(1, 7), st.integers(1, 7))
def test_evaluation_agrees_with_sympy(expression: sympy.Expr, b: int, s: int) -> None:
    value = evaluate(expression, {"B": b, "S": s, "S_src": 3})
    expected = expression.subs({B: b, S: s, symbol("S_src"): 3})
    if not expression.has(sympy.Float):
        assert Fraction(value).limit_denominator(10**6) == Fraction(
            int(expected.p), int(expected.q)
        ).limit_denominator(10**6)
        assert isinstance(value, int) == expected.is_Integer
    elif not expression.has(sympy.floor, sympy.ceiling, sympy.Mod):
        magnitude = max(1.0, abs(float(expected)))
        assert math.isclose(float(value), float(expected), rel_tol=1e-6, abs_tol=1e-6 * magnitude)


@pytest.mark.parametrize(
    ("text", "printed", "value"),
    [
        ("B*S**2/2 + 3*S", "B*S**2/2 + 3*S", 230),
        ("S//2", "floor(S/2)", 5),
        ("S % 4", "Mod(S, 4)", 2),
        ("ceiling(S/8)*8", "8*ceiling(S/8)", 16),
        ("Min(S, 4096)*S", "S*Min(4096, S)", 100),
        ("-(B+1)*3", "-3*B - 3", -15),
        ("B**-1", "1/B", 0.25),
        ("-S/(3*B)", "-S/(3*B)", -10 / 12),
        ("(B+S)**2", "(B + S)**2", 196),
        ("B/(S+1)", "B/(S + 1)", 4 / 11),
        ("0.1*B", "0.1*B", 0.4),
        ("1e-7*B*S", "1e-07*B*S", 4e-6),
        ("B - (S - 1)", "B - S + 1", -5),
        ("2 ** 10", "1024", 1024),
    ],
)
def test_known_texts(text: str, printed: str, value: float) -> None:
    expression = parse_expression(text)
    assert format_expression(expression) == printed
    assert evaluate(expression, SIZES) == pytest.approx(value)
    assert isinstance(evaluate(expression, SIZES), int) == isinstance(value, int)


@pytest.mark.parametrize(
    "text",
    [
        "", "B +", "x.y", "x[0]", "lambda: 1", "B if S else 1", "f(B)", "Max", "Max()",
        "Mod(B)", "Max(B, key=1)", "__import__('os').system('true')", "'text'", "True", "1j",
        "1e999", "B = 1", "B < S", "B and S", "2**B", "2**0.5", "9**9**9", "B**65",
        "((B**9)**9)**9", "1/0", "B//0", "B % 0", "Mod(B, 0)", "0**-1", "B/(S - S)", "1" * 5000,
        "(" * 300, "-" * 5000 + "1", "B+" * 20000 + "B", "S\u00e9", "[B]", "B@S", "~B", "B, S",
        "None", "...", "0x", "zoo()", "9999999999999999**64 * 9999999999999999**64",
    ],
)  # fmt: skip
def test_everything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_expression(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", ["B**65", "((B**9)**9)**9", "2**-65", "((9**64)**64)**64"])
def test_powers_are_refused_before_they_are_taken(text: str) -> None:
    with pytest.raises(ParseError, match="exponents multiply to more than 64"):
        parse_expression(text)


@pytest.mark.parametrize("text", [None, 3, B])
def test_only_text_is_read(text: object) -> None:
    with pytest.raises(ParseError, match="is not text"):
        parse_expression(text)  # type: ignore[arg-type]


def test_long_sums_are_read() -> None:
    text = "+".join(f"{i}*B*S" for i in range(1, 1001))
    assert parse_expression(text) == 500500 * B * S
    assert parse_expression("B" + "-1" * 1000) == B - 1000


def test_symbols_are_positive_integers_made_once() -> None:
    assert symbol("B") is B
    assert B.is_integer and B.is_positive
    assert sympy.Max(1, B) == B


@pytest.mark.parametrize("name", ["", "1B", "a b", "Max", "lambda", "S\u00e9", None])
def test_bad_symbol_names(name: object) -> None:
    with pytest.raises(InvalidValueError, match="symbol"):
        symbol(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "expression",
    [
        sympy.Symbol("B"),
        sympy.sin(B),
        sympy.oo,
        sympy.nan,
        sympy.sqrt(B),
        sympy.pi,
        True,
        "B",
        sympy.Float("0.1", 50),
    ],
)
def test_foreign_expressions_do_not_print(expression: object) -> None:
    with pytest.raises(InvalidValueError):
        format_expression(expression)  # type: ignore[arg-type]


def test_quotients_are_exact() -> None:
    value = evaluate(parse_expression("49/B"), {"B": 49})  # 49 * (1 / 49) is not 1 in floats
    assert value == 1 and isinstance(value, int)


def test_missing_and_bad_sizes_are_named() -> None:
    with pytest.raises(InvalidValueError, match=r"needs a size for S; given: B"):
        evaluate(B * S, {"B": 1})
    for bad in (0, -1, 2.0, True, "4"):
        with pytest.raises(InvalidValueError, match="B="):
            evaluate(B + 1, {"B": bad})  # type: ignore[dict-item]
    with pytest.raises(InvalidValueError, match="divides by zero"):
        evaluate(1 / (B - S), {"B": 3, "S": 3})


def test_sizes() -> None:
    assert as_size(sympy.Integer(3)) == 3 and type(as_size(sympy.Integer(3))) is int
    assert as_size(B) is B
    for bad in (True, 2.0, "B"):
        with pytest.raises(InvalidValueError):
            as_size(bad)  # type: ignore[arg-type]
    assert evaluate_size(S / 2, SIZES) == 5
    assert evaluate_size(7, {}) == 7
    with pytest.raises(InvalidValueError, match="not an integer"):
        evaluate_size(S / 4, SIZES)
    assert free_names(B * S + symbol("A")) == ("A", "B", "S")
    assert free_names(3) == ()
    assert evaluate(2.5, {}) == 2.5
