"""Names and strings of any content survive; what does not parse is a one-line ParseError."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.scanner import Scanner, check_name, made, quote_name, quote_string, shown

ANY_TEXT = st.text(st.characters(), max_size=20)


@given(ANY_TEXT)
@example("\x7f\x80\u2028\ud800\0")
@settings(deadline=None)
def test_strings_and_names_round_trip_as_printable_ascii(text: str) -> None:
    for quote, read in ((quote_string, Scanner.string), (quote_name, Scanner.name)):
        if quote is quote_name and not text:
            continue
        quoted = quote(text)
        assert re.fullmatch(r"[ -~]+", quoted)
        scanner = Scanner(quoted + ",", "")
        assert read(scanner) == text
        scanner.expect(",")
        scanner.end()


@pytest.mark.parametrize("name", ["layers.0.weight", "0.bias", "c_attn.weight#q", "_x"])
def test_usual_names_stay_bare(name: str) -> None:
    assert quote_name(name) == name


@pytest.mark.parametrize(
    "name", ["a b", "", ".a", "#a", "a:1", "a-b", 'a"', "é", "a,b", "@1", "%a"]
)
def test_other_names_are_quoted(name: str) -> None:
    assert quote_name(name).startswith('"')


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (Scanner.name, ""),
        (Scanner.name, '""'),
        (Scanner.name, "-x"),
        (Scanner.string, '"open'),
        (Scanner.string, '"bad \\x escape"'),
        (Scanner.string, '"new\nline"'),
        (Scanner.integer, "x"),
        (Scanner.integer, "1" * 25),
        (Scanner.end, "rest"),
    ],
)
def test_errors_say_where_and_what(read: object, text: str) -> None:
    with pytest.raises(ParseError, match=r"at column 1, .*expected .*; the form is F") as caught:
        read(Scanner(text, "F"))  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_take_and_match_move_only_on_success() -> None:
    scanner = Scanner("ab", "F")
    assert not scanner.take("b")
    assert scanner.match(re.compile("b")) is None
    assert scanner.position == 0
    assert scanner.take("a")
    assert scanner.match(re.compile("b")) == "b"
    scanner.end()
    with pytest.raises(ParseError, match="at column 3, '', expected 'c'"):
        scanner.expect("c")


def test_names_are_separated_by_commas() -> None:
    scanner = Scanner('a,"b,c",0 rest', "F")
    assert scanner.names() == ("a", "b,c", "0")
    assert scanner.take(" rest")
    with pytest.raises(ParseError, match="at column 3"):
        Scanner("a,", "F").names()


def test_only_text_is_scanned() -> None:
    with pytest.raises(ParseError, match="cannot parse 3: expected a str like F"):
        Scanner(3, "F")


def test_shown_is_one_short_line() -> None:
    assert shown("a\nb") == "'a\\nb'"
    assert shown(["x" * 500]).endswith("...")
    assert len(shown("x" * 500)) == 80
    assert "\n" not in shown(re.compile("a\nb"))


@pytest.mark.parametrize("name", ["", None, 3, type("S", (str,), {})("x")])
def test_names_are_non_empty_str(name: object) -> None:
    with pytest.raises(InvalidValueError, match=r"a unit is named .*non-empty str"):
        check_name(name, "a unit")


def test_made_turns_invalid_into_parse_errors() -> None:
    def make(value: int) -> int:
        if value:
            raise InvalidValueError("no good")
        return value

    assert made("text", make, 0) == 0
    with pytest.raises(ParseError, match="cannot parse 'text': no good"):
        made("text", make, 1)
