"""Name patterns against the names they list, and parameter choices: text, legality."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.layout import Layout
from shardwise.ir.name_pattern import MAX_NAMES, NamePattern, first_overlap
from shardwise.ir.parameter_choice import Lifetime, ParameterChoice

# A small alphabet and small numbers, so that patterns often share names.
words = st.sampled_from(["a", "b", ".w", ".", "a.0.w", "a1.w", "a.05.", "x#q", "é"])
ranges = st.tuples(st.integers(0, 3), st.integers(1, 3)).map(lambda r: (r[0], r[0] + r[1]))


@st.composite
def patterns(draw: st.DrawFn) -> NamePattern:
    texts, intervals = [draw(words | st.just(""))], []
    for _ in range(draw(st.integers(0, 2))):
        if texts[-1][-1:].isdigit() or (intervals and not texts[-1]):
            texts[-1] += "."
        intervals.append(draw(ranges))
        texts.append(draw(words | st.just("")))
        if texts[-1][:1].isdigit():
            texts[-1] = "." + texts[-1]
    if not intervals and not texts[0]:
        texts = ["a"]
    return NamePattern(tuple(texts), tuple(intervals))


@given(patterns())
def test_pattern_text_round_trips(pattern: NamePattern) -> None:
    assert NamePattern.parse(str(pattern)) == pattern


@given(patterns(), patterns())
def test_a_pattern_matches_the_names_it_lists(pattern: NamePattern, other: NamePattern) -> None:
    names = list(pattern.names())
    assert len(names) == len(set(names)) == pattern.count
    assert all(map(pattern.matches, names))
    assert all(other.matches(name) == (name in set(other.names())) for name in names)


@settings(max_examples=100)
@given(st.lists(patterns(), max_size=5))
def test_overlap_is_a_shared_name(group: list[NamePattern]) -> None:
    listed = [set(pattern.names()) for pattern in group]
    sharing = {
        pair
        for pair in itertools.combinations(range(len(group)), 2)
        if listed[pair[0]] & listed[pair[1]]
    }
    found = first_overlap(group)
    assert (found in sharing) if sharing else (found is None)


def test_numbers_keep_their_spelling() -> None:
    layers = NamePattern.parse("layers.{0:12}.w")
    assert layers.matches("layers.11.w")
    for name in ("layers.12.w", "layers.05.w", "layers.x.w", "layers.1.w2", "", "layers..w"):
        assert not layers.matches(name)
    assert [*NamePattern.parse("{0:2}.{1:3}").names()] == ["0.1", "0.2", "1.1", "1.2"]
    literal = [NamePattern.parse(text) for text in ("layers.05.w", "layers.5.w")]
    assert first_overlap(literal) is None
    assert first_overlap([*literal, layers]) == (1, 2)
    assert first_overlap([NamePattern.parse("layers.٣.w"), layers]) is None


def test_many_patterns_are_compared_quickly() -> None:
    many = [NamePattern.parse(f"a.{i}.b.{j}.w") for i in range(30) for j in range(200)]
    assert first_overlap(many) is None
    assert first_overlap([*many, NamePattern.parse("a.{29:31}.b.7.w")]) == (29 * 200 + 7, 6000)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "not empty"),
        ("a{", "braces"),
        ("{a}", "braces"),
        ("{01:2}", "braces"),
        ("{0:0}", "braces"),
        ("{2:2}", "is empty"),
        ("{5:2}", "is empty"),
        ("{0:2}{0:2}", "beside a digit or a range"),
        ("{0:2}{2:4}", "beside a digit or a range"),
        ("1{0:2}", "beside a digit or a range"),
        ("{0:2}0", "beside a digit or a range"),
        ("a\n", "printable"),
        (f"{{0:{MAX_NAMES + 1}}}", "at most"),
        ("{0:2000}.{0:2000}", "at most"),
        ("{0:99999999999}", "braces"),
        (7, "give a str"),
    ],
)
def test_broken_patterns(text: str, rule: str) -> None:
    with pytest.raises(ParseError, match=rule) as caught:
        NamePattern.parse(text)
    assert "\n" not in str(caught.value)


def test_patterns_that_no_text_stands_for() -> None:
    for literals, intervals in ((("a",), ((0, 1),)), (("a", ""), ((10**11, 10**11 + 1),))):
        with pytest.raises(InvalidValueError):
            NamePattern(literals, intervals)


LAYOUTS = ("R", "x0:S(0)", "x0:S(1) data:S(0)", "data:S(0,outer=3)", "x0:I(0,0:8/0:8)")
layouts = st.sampled_from((*LAYOUTS, "data:S(0,sections=64/32/32)")).map(Layout.parse)
choices = st.builds(
    ParameterChoice,
    patterns().map(str)
    | st.text(st.characters(categories=["L", "Zs"]), min_size=1).filter(str.isprintable),
    layouts,
    layouts,
    st.sampled_from(Lifetime),
)


@given(choices)
def test_choice_text_round_trips(choice: ParameterChoice) -> None:
    assert ParameterChoice.parse(str(choice)) == choice


def test_choice_text() -> None:
    text = "layers.{0:4}.w master=[x0:S(0)] accumulator=[R] lifetime=micro_batch"
    choice = ParameterChoice.parse(text)
    assert str(choice) == text
    assert choice.names.count == 4
    quoted = text.replace("layers.{0:4}.w", '"my layer.w"')
    assert ParameterChoice.parse(quoted).pattern == "my layer.w"


R = Layout()


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((3, R, R, Lifetime.STEP), "give a str"),
        (("{2:1}", R, R, Lifetime.STEP), "is empty"),
        (("w", "R", R, Lifetime.STEP), "is no Layout"),
        (("w", Layout.parse("data:P"), R, Lifetime.STEP), "master 'data:P' is Partial"),
        (("w", R, Layout.parse("data:P"), Lifetime.STEP), "accumulator 'data:P' is Partial"),
        (("w", R, Layout.parse("x0:I(0,0:8/0:8,partial)"), Lifetime.STEP), "is Partial"),
        (("w", R, R, "step"), "use, micro_batch, step"),
    ],
)
def test_illegal_choices(arguments, rule: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidValueError, match=rule) as caught:
        ParameterChoice(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "w",
        None,
        "w master=[R] accumulator=[R] lifetime=never",
        "w master=[R] accumulator=[R] lifetime=step ",
        "w master=[R] accumulator=[R]",
        "w master=[] accumulator=[R] lifetime=step",
        "w master=[R] lifetime=step",
        "w master=[data:P] accumulator=[R] lifetime=step",
    ],
)
def test_broken_choice_texts(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        ParameterChoice.parse(text)
    assert "\n" not in str(caught.value)
