"""Constants and curves: text, interpolation, what is refused."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.curve import (
    ENDS,
    UNITS,
    Constant,
    Curve,
    check_float,
    number_text,
    parse_checked,
    scan_number,
)
from shardwise.ir.errors import InvalidValueError, ParseError

SETTINGS = settings(deadline=None, max_examples=100)
SOURCES = st.text(max_size=20).map(
    lambda text: "s" + "".join(mark for mark in text if mark.isprintable())
)
POSITIVE = st.floats(min_value=1e-12, max_value=1e18)


@st.composite
def curves(draw):
    x = sorted(draw(st.sets(POSITIVE, min_size=1, max_size=6)))
    y = draw(st.lists(POSITIVE, min_size=len(x), max_size=len(x)))
    units = draw(st.tuples(st.sampled_from(UNITS), st.sampled_from(UNITS)))
    return Curve(tuple(x), tuple(y), *units, draw(SOURCES), draw(st.sampled_from(ENDS)))


def line(*points, end="clamp"):
    x, y = zip(*points, strict=True)
    return Curve(x, y, "bytes", "s", "made up for a test", end)


@SETTINGS
@given(st.floats(min_value=0, max_value=1e300), st.sampled_from(UNITS), SOURCES)
def test_a_constant_parses_back(value, unit, source) -> None:
    constant = Constant(value, unit, source)
    assert Constant.parse(str(constant)) == constant


@SETTINGS
@given(curves())
def test_a_curve_parses_back(curve) -> None:
    assert Curve.parse(str(curve)) == curve


@SETTINGS
@given(curves())
def test_a_curve_goes_through_its_points(curve) -> None:
    for x, y in zip(curve.x, curve.y, strict=True):
        assert math.isclose(curve.at(x), y, rel_tol=1e-9)


@SETTINGS
@given(curves(), st.floats(min_value=0, max_value=1))
def test_between_two_points_the_value_is_between_theirs(curve, share) -> None:
    for low, high, a, b in zip(curve.x, curve.x[1:], curve.y, curve.y[1:], strict=False):
        value = curve.at(low + share * (high - low))
        assert min(a, b) * (1 - 1e-9) <= value <= max(a, b) * (1 + 1e-9)


def test_between_two_points_the_curve_is_a_power() -> None:
    curve = line((10, 1), (1000, 100))
    assert math.isclose(curve.at(100), 10)
    assert math.isclose(line((1, 4), (100, 1)).at(10), 2)


def test_below_the_first_point_is_the_first_value() -> None:
    assert line((10, 3), (20, 5)).at(0.01) == 3
    assert line((10, 3), (20, 5)).at(9.99) == 3
    assert line((10, 3), (20, 5), end="proportional").at(0.01) == 3


def test_above_the_last_point_the_end_decides() -> None:
    assert line((10, 3), (20, 5)).at(80) == 5
    assert line((10, 3), (20, 5), end="proportional").at(80) == 20


@pytest.mark.parametrize("x", [0, -1, math.nan, math.inf])
def test_a_curve_is_for_positive_x(x) -> None:
    with pytest.raises(InvalidValueError, match="x > 0"):
        line((1, 1)).at(x)


@pytest.mark.parametrize(
    ("value", "unit", "source", "problem"),
    [
        (-1, "s", "x", "not negative"),
        (math.nan, "s", "x", "finite"),
        (math.inf, "s", "x", "finite"),
        (True, "s", "x", "finite"),
        ("1", "s", "x", "finite"),
        (1, "ms", "x", "unit 'ms' is not known"),
        (1, "s", "", "source"),
        (1, "s", "  ", "source"),
        (1, "s", "two\nlines", "source"),
        (1, "s", None, "source"),
    ],
)
def test_a_bad_constant_says_what_is_wrong(value, unit, source, problem) -> None:
    with pytest.raises(InvalidValueError, match=problem) as error:
        Constant(value, unit, source)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("x", "y", "end", "problem"),
    [
        ((), (), "clamp", "one number or more"),
        ((1, 2), (1,), "clamp", "one y for each x"),
        ((2, 1), (1, 1), "clamp", "sort the points"),
        ((1, 1), (1, 1), "clamp", "keep one"),
        ((0, 1), (1, 1), "clamp", "holds 0"),
        ((1, 2), (1, 0), "clamp", "holds 0"),
        ((1, 2), (1, -1), "clamp", "not negative"),
        ((1, 2), (1, math.nan), "clamp", "finite"),
        ([1, 2], (1, 1), "clamp", "give a tuple"),
        ((1, 2), (1, 1), "linear", "clamp, proportional"),
    ],
)
def test_a_bad_curve_says_what_is_wrong(x, y, end, problem) -> None:
    with pytest.raises(InvalidValueError, match=problem) as error:
        Curve(x, y, "bytes", "s", "x", end)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["", "1", "1 s", '1 s ""', '1 ms "x"', '-1 s "x"', '1 s "x" ', '1 s "x', 'nan s "x"', None],
)
def test_a_bad_constant_text_does_not_parse(text) -> None:
    with pytest.raises(ParseError):
        Constant.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        'bytes -> s clamp "x"',
        '1:1 bytes -> s other "x"',
        '2:1 1:1 bytes -> s clamp "x"',
        '1:1 2 bytes -> s clamp "x"',
        '1:1 bytes -> s clamp "x"; more',
        '0:1 bytes -> s clamp "x"',
    ],
)
def test_a_bad_curve_text_does_not_parse(text) -> None:
    with pytest.raises(ParseError):
        Curve.parse(text)


def test_an_assumption_is_known_by_its_source() -> None:
    assert Constant(1, "s", "assumption: a guess").is_assumed
    assert not Constant(1, "s", "data sheet").is_assumed
    assert Curve((1,), (1,), "bytes", "s", "assumption: a guess").is_assumed
    assert not Curve((1,), (1,), "bytes", "s", "measured").is_assumed


def test_values_are_kept_as_floats() -> None:
    assert type(Constant(3, "s", "x").value) is float
    assert str(Constant(-0.0, "s", "x")) == '0 s "x"'
    assert Curve((1, 2), (3, 4), "bytes", "s", "x") == Curve(
        (1.0, 2.0), (3.0, 4.0), "bytes", "s", "x"
    )


@SETTINGS
@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_number_text_reads_back(value) -> None:
    assert float(number_text(value)) == value
    assert parse_checked(number_text(value), "a number", scan_number) == value


def test_check_float_returns_the_number() -> None:
    assert check_float(2, "two") == 2.0
