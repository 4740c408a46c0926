"""Placements: what they keep, their text, what they refuse."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.ir.expression import symbol
from shardwise.ir.placement import (
    Partial,
    Placement,
    Replicate,
    Select,
    Shard,
    parse_placement,
    placement_at,
    positions,
)


@settings(max_examples=100)
@given(st.integers(0, 30), st.integers(1, 8))
def test_plain_shards_are_torchs_chunks(size: int, ranks: int) -> None:
    chunks = list(torch.arange(size).chunk(ranks)) if size else []
    for rank in range(ranks):
        expected = chunks[rank].tolist() if rank < len(chunks) else []
        assert list(positions(Shard(0), size, rank, ranks)) == expected


def test_sections_are_each_cut() -> None:
    equal = [list(positions(Shard(0, outer=3), 12, rank, 2)) for rank in range(2)]
    assert equal == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]
    unequal = [list(positions(Shard(0, sections=(4, 2, 1)), 7, rank, 2)) for rank in range(2)]
    assert unequal == [[0, 1, 4, 6], [2, 3, 5]]
    parts = np.split(np.arange(7), [4, 6])
    assert unequal[0] == [i for p in parts for i in p[: -(-len(p) // 2)]]


def test_select_keeps_its_interval() -> None:
    select = Select(0, ((0, 64), (0, 64), (64, 128), (64, 128)))
    assert select.size == 128
    assert [str(positions(select, 128, rank, 4)) for rank in range(4)] == [
        "0:64", "0:64", "64:128", "64:128",
    ]  # fmt: skip
    for size, ranks in [(127, 4), (128, 3)]:
        with pytest.raises(InvalidValueError, match="is for 4 ranks and a local dim of 128"):
            positions(select, size, 0, ranks)


@pytest.mark.parametrize(
    ("placement", "text"),
    [
        (Replicate(), "R"),
        (Partial(), "P"),
        (Partial("max"), "P(max)"),
        (Partial("min"), "P(min)"),
        (Shard(1), "S(1)"),
        (Shard(1, outer=1), "S(1)"),
        (Shard(0, outer=3), "S(0,outer=3)"),
        (Shard(0, outer=symbol("B")), "S(0,outer=B)"),
        (Shard(0, outer=3 * symbol("B") + 1), "S(0,outer=3*B+1)"),
        (Shard(2, sections=(64, 32, 32)), "S(2,sections=64/32/32)"),
        (Select(0, ((0, 64), (0, 64), (64, 128))), "I(0,0:64/0:64/64:128)"),
        (Select(1, ((0, 2), (1, 3)), partial=True), "I(1,0:2/1:3,partial)"),
    ],
)
def test_texts(placement: Placement, text: str) -> None:
    assert str(placement) == text
    assert parse_placement(text) == placement


@pytest.mark.parametrize(
    "text",
    [
        "", "X", "P(sum)", "P(avg)", "S", "S()", "S(-1)", "S(0,outer=0)", "S(0,outer=)",
        "S(0,outer=B.x)", "S(0,sections=)", "S(0,sections=4)", "S(0,sections=4/0)", "I(0,)",
        "S(0,outer=2,sections=2/2)", "I(0,0:0)", "I(0,1:2)", "I(0,0:1/2:3)", "I(0,0:2,partly)",
        "S(0) ", "S(99999)", "S(0,)",
    ],
)  # fmt: skip
def test_bad_texts(text: str) -> None:
    with pytest.raises(ParseError):
        parse_placement(text)


def test_symbolic_outer() -> None:
    batch = Shard(0, outer=symbol("B"))
    with pytest.raises(InvalidValueError, match=r"at\(\)"):
        positions(batch, 8, 0, 2)
    assert placement_at(batch, {"B": 4}) == Shard(0, outer=4)
    assert placement_at(Shard(0, outer=symbol("B")), {"B": 1}) == Shard(0)
    assert placement_at(Partial(), {"B": 1}) == Partial()
    with pytest.raises(InvalidValueError, match="needs a size for B"):
        placement_at(batch, {"S": 4})


def test_refused_values() -> None:
    with pytest.raises(InvalidValueError, match="use one of sum, max, min"):
        Partial("avg")
    with pytest.raises(InvalidValueError, match="use 1 to"):
        Shard(0, outer=0)
    with pytest.raises(InvalidValueError, match="give one of the two"):
        Shard(0, outer=2, sections=(1, 1))
    for sections in [(4,), (4, 0), (4, 2.0)]:
        with pytest.raises(InvalidValueError, match="two or more"):
            Shard(0, sections=sections)  # type: ignore[arg-type]
    for dim in (-1, 1.0, True):
        with pytest.raises(InvalidValueError, match="has dim"):
            Shard(dim)  # type: ignore[arg-type]
        with pytest.raises(InvalidValueError, match="has dim"):
            Select(dim, ((0, 1),))  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="non-empty"):
        Select(0, ())
    with pytest.raises(InvalidValueError, match="without gaps"):
        Select(0, ((0, 1), (2, 3)))
    with pytest.raises(InvalidValueError, match="add up"):
        positions(Shard(0, sections=(2, 3)), 6, 0, 2)
    with pytest.raises(InvalidValueError, match="that 3 divides, not 8"):
        positions(Shard(0, outer=3), 8, 0, 2)
