"""Spans of groups: text and checks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.span import Span

LINKS = st.sampled_from(["nvlink", "ib", "loopback", "rail-2"])


@st.composite
def spans(draw):
    shared = draw(st.integers(1, 3))
    span = None
    size = 1
    for _ in range(draw(st.integers(0, 3))):
        size += draw(st.integers(1, 9))
        span = Span(draw(LINKS), size, span, shared)
    return span or Span("", 1, None, shared)


@settings(deadline=None, max_examples=100)
@given(spans())
def test_a_span_parses_back(span) -> None:
    assert Span.parse(str(span)) == span


def test_texts() -> None:
    inner = Span("nvlink", 8)
    assert str(Span("ib", 64, inner)) == "64@ib/8@nvlink"
    assert str(Span("loopback", 4, None, 2)) == "4@loopback shared=2"
    assert str(Span("", 1)) == "1"


def test_members_inside() -> None:
    assert Span("ib", 64, Span("nvlink", 8)).members_inside == 8
    assert Span("ib", 8).members_inside == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("ib", 0), "at least 1"),
        (("ib", 2.0), "at least 1"),
        (("", 2), "link"),
        (("IB", 2), "link"),
        (("ib", 1), "one rank"),
        (("ib", 8, Span("nvlink", 8)), "fewer than all"),
        (("ib", 8, Span("", 1)), "more than one"),
        (("ib", 8, None, 0), "at least 1"),
        (("ib", 8, Span("nvlink", 2), 2), "use one number"),
    ],
)
def test_a_bad_span_says_what_is_wrong(arguments, problem) -> None:
    with pytest.raises(InvalidValueError, match=problem):
        Span(*arguments)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "1@ib",
        "8",
        "8@",
        "8@ib/8@nvlink",
        "8@ib shared=0",
        "08@ib",
        "8@ib shared=1",
        "8@ib ",
    ],
)
def test_a_bad_text_does_not_parse(text) -> None:
    with pytest.raises(ParseError):
        Span.parse(text)
