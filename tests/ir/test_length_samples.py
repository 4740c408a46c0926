"""Arrays of document lengths and edges over them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.length_samples import check_edges, check_samples, geometric_edges


def test_one_dim_may_be_flat() -> None:
    found = check_samples([3, 0, 5], ("S",))
    assert found.dtype == np.int64
    assert found.tolist() == [[3], [0], [5]]
    assert check_samples(np.array([[3, 4]], dtype=np.uint8), ("a", "b")).tolist() == [[3, 4]]


@pytest.mark.parametrize(
    ("samples", "dims", "problem"),
    [
        ([], ("S",), "no document lengths"),
        ([[]], ("S",), "shape"),
        ([1, 2], ("a", "b"), "shape"),
        ([[1, 2]], ("S",), "one column|a column"),
        ([1.5], ("S",), "convert them to whole numbers"),
        ([True], ("S",), "convert them to whole numbers"),
        (["a"], ("S",), "convert them to whole numbers"),
        ([1, -2], ("S",), "document 1 has S = -2"),
        ([[1, 2], [3, -4]], ("a", "b"), "document 1 has b = -4"),
        ([2**41], ("S",), "document 0"),
    ],
)
def test_bad_samples_say_what_is_wrong(samples, dims, problem) -> None:
    with pytest.raises(InvalidValueError, match=problem) as error:
        check_samples(samples, dims)
    assert "\n" not in str(error.value)


def test_edges_hold_every_length() -> None:
    lengths = np.array([1, 5, 9])
    assert check_edges([0, 9], lengths, "S").tolist() == [0, 9]
    for edges in ([1, 9], [0, 8]):
        with pytest.raises(InvalidValueError, match="outside the edges"):
            check_edges(edges, lengths, "S")


@pytest.mark.parametrize(
    "edges", [[], [0], [0, 0], [9, 0], [-1, 9], [0, 9.0], [0, 2**41], [0, True]]
)
def test_bad_edges_are_refused(edges) -> None:
    with pytest.raises(InvalidValueError, match="ascending whole numbers"):
        check_edges(edges, np.array([1]), "S")


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 2**40), st.integers(1, 8))
def test_geometric_edges_ascend_from_0_to_the_largest(largest, per_octave) -> None:
    edges = geometric_edges(largest, per_octave)
    assert edges[0] == 0
    assert edges[-1] == largest
    assert list(edges) == sorted(set(edges))
    powers = {2**power for power in range(40) if 2**power < largest}
    assert powers <= set(edges)
    assert len(edges) <= 2 + per_octave * 41


def test_geometric_edges_need_a_length() -> None:
    assert geometric_edges(1) == (0, 1)
    assert geometric_edges(8, 1) == (0, 1, 2, 4, 8)
    for bad in ((0, 4), (8, 0)):
        with pytest.raises(InvalidValueError):
            geometric_edges(*bad)
