"""The record of a collective: its text, and what it may hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError, ParseError
from shardwise.runtime.collective_call import KINDS, CollectiveRecord


@given(
    kind=st.sampled_from(KINDS[:-1]),
    group=st.lists(st.integers(0, 99), min_size=2, max_size=6, unique=True).map(tuple),
    message_bytes=st.integers(0, 2**50),
    dtype=st.sampled_from(["float32", "float8_e4m3fn", "bool"]),
)
def test_a_record_prints_and_parses_back(kind, group, message_bytes, dtype):
    record = CollectiveRecord(kind, group, message_bytes, dtype)
    assert CollectiveRecord.parse(str(record)) == record


@pytest.mark.parametrize("text", ["", "all_reduce", "all_reduce 0,1 x float32", "a 0, 4 b", "a b"])
def test_other_text_is_no_record(text):
    with pytest.raises(ParseError, match="expected"):
        CollectiveRecord.parse(text)


@pytest.mark.parametrize("text", ["barrier 0,1 0 bool", "send 0,1 4 bool", "all_reduce 0 4 bool"])
def test_what_is_never_recorded_is_no_record(text):
    with pytest.raises(InvalidValueError):
        CollectiveRecord.parse(text)
