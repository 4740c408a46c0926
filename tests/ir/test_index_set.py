"""Index sets against Python's sets and sorted lists."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.index_set import IndexSet

numbers = st.sets(st.integers(0, 40), max_size=30)


def of(indices: set[int]) -> IndexSet:
    return IndexSet.from_intervals((i, i + 1) for i in indices)


@settings(max_examples=300)
@given(numbers, numbers)
def test_algebra(a: set[int], b: set[int]) -> None:
    x, y = of(a), of(b)
    assert set(x) == a and list(x) == sorted(a)
    assert x.count() == len(a)
    assert bool(x) == bool(a)
    assert set(x.union(y)) == a | b
    assert set(x.intersection(y)) == a & b
    assert set(x.difference(y)) == a - b
    assert x.issubset(y) == (a <= b)
    assert [i in x for i in range(-1, 45)] == [i in a for i in range(-1, 45)]
    assert np.array_equal(x.to_numpy(), np.array(sorted(a), dtype=np.int64))
    assert x.to_numpy().dtype == np.int64
    assert (x == y) == (a == b)


@settings(max_examples=200)
@given(numbers, st.data())
def test_positions(a: set[int], data: st.DataObject) -> None:
    x, listed = of(a), sorted(a)
    chosen = data.draw(st.sets(st.integers(0, max(0, len(a) - 1)))) if a else set()
    taken = x.take(of(chosen))
    assert list(taken) == [listed[p] for p in sorted(chosen)]
    assert list(x.locate(taken)) == sorted(chosen)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8))
def test_from_intervals_makes_the_one_form(pairs: list[tuple[int, int]]) -> None:
    built = IndexSet.from_intervals(pairs)
    assert set(built) == {i for start, stop in pairs for i in range(start, stop)}
    assert built == of(set(built))
    assert IndexSet.parse(str(built)) == built


def test_known_sets() -> None:
    assert IndexSet.span(2, 5).intervals == ((2, 5),)
    assert IndexSet.span(5, 5) == IndexSet(()) == IndexSet.span(6, 5)
    assert str(IndexSet(((0, 4), (8, 12)))) == "0:4,8:12"
    assert str(IndexSet(())) == "-"
    assert IndexSet(()).to_numpy().shape == (0,)
    large = IndexSet(((0, 10**12), (2 * 10**12, 3 * 10**12)))
    assert large.count() == 2 * 10**12 and 10**12 not in large and 2 * 10**12 in large
    assert large.take(IndexSet.span(10**12 - 1, 10**12 + 1)).intervals == (
        (10**12 - 1, 10**12),
        (2 * 10**12, 2 * 10**12 + 1),
    )


@pytest.mark.parametrize(
    "intervals",
    [((0, 0),), ((3, 2),), ((0, 2), (2, 3)), ((0, 2), (1, 3)), ((4, 5), (0, 1)), ((-1, 2),)],
)
def test_other_forms_are_refused(intervals: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(InvalidValueError, match="from_intervals"):
        IndexSet(intervals)


@pytest.mark.parametrize(
    "text", ["", "0", "0:", "4:0", "0:4,4:5", "0:4,", "a:b", "-1:2", "0:4, 5:6"]
)
def test_bad_texts(text: str) -> None:
    with pytest.raises(ParseError):
        IndexSet.parse(text)


def test_positions_out_of_reach_are_refused() -> None:
    held = IndexSet(((0, 2), (4, 6)))
    with pytest.raises(InvalidValueError, match="reach past the 4"):
        held.take(IndexSet.span(3, 5))
    for foreign in (
        IndexSet.span(1, 3),
        IndexSet.span(0, 6),
        IndexSet.span(7, 8),
        IndexSet.span(2, 4),
    ):
        with pytest.raises(InvalidValueError, match="not inside"):
            held.locate(foreign)
