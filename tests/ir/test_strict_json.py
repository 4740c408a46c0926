"""Strict JSON: what is refused and where; all other JSON is read as Python reads it."""

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import FileFormatError
from shardwise.ir.strict_json import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_TEXT,
    path_at,
    path_text,
    read_json,
)

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5).filter(str.isprintable),
)
keys = st.text(max_size=4).filter(str.isprintable)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
)


@settings(max_examples=80)
@given(trees, st.sampled_from([None, 2]), st.booleans())
def test_other_json_is_read_as_python_reads_it(
    tree: object, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(tree, indent=indent, ensure_ascii=ascii_only)
    assert read_json(text.encode()) == tree


@settings(max_examples=80)
@given(trees.filter(lambda tree: isinstance(tree, dict | list) and tree), st.data())
def test_a_truncated_file_is_one_line_with_a_path(tree: object, data: st.DataObject) -> None:
    text = json.dumps(tree, indent=1)
    cut = data.draw(st.integers(1, len(text) - 1))
    with pytest.raises(FileFormatError, match=r"^at |empty") as caught:
        read_json(text[:cut].encode())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b" \n\t ", "the file is empty"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ("{}".encode("utf-16"), "byte order mark"),
        (b'{"a": "\xe9"}', "not UTF-8: byte 7 is 0xe9"),
        ("{}".encode("utf-16-le"), "at the top level: the JSON is broken"),
        (b'{"a": [1, {"b": 2', r"^at a\[1\]\.b: the file ends too early .truncated"),
        (b'{"a": [1, {"b": "x', r"^at a\[1\]\.b: the file ends too early .truncated"),
        (b'{"a": [1 2]}', r"^at a\[0\]: the JSON is broken, line 1 column 10"),
        (b'{"a": 1,}', "the JSON is broken"),
        (b"{'a': 1}", "the JSON is broken"),
        (b'{"a": 1} x', "^at the top level: the JSON is broken.*Extra data"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', "^at a: key 'b' is given twice"),
        (b'{"a": 1, "a": 1}', "^at the top level: key 'a' is given twice"),
        (b'{"a": [0, NaN]}', r"^at a\[1\]: NaN is no JSON number"),
        (b'{"a": -Infinity}', "^at a: -Infinity is no JSON number"),
        (b'{"a": 1e999}', "^at a: number '1e999' is too large"),
        (b'{"a": 9223372036854775808}', "^at a: integer '9223372036854775808' is over 64 bits"),
        (b"[-" + b"9" * 10_000 + b"]", r"^at \[0\]: integer '-99999.* is over 64 bits"),
        (b'["' + b"x" * (MAX_TEXT + 1) + b'"]', r"^at \[0\]: a text of 4097 characters"),
        (b'{"' + b"x" * (MAX_TEXT + 1) + b'": 1}', "^at the top level: a text of 4097"),
        (rb'{"a": "x\ny"}', r"^at a: text 'x\\ny' has a character that does not print"),
        (rb'{"a": "\ud800"}', "does not print"),
        (rb'{"a\u0000": 1}', "^at the top level: text .* does not print"),
        (b'{"a b": {"\\"": NaN}}', r'^at \["a b"\]\["\\""\]: NaN'),
        (b'{"\x7f": NaN}', "^at the top level: text .* does not print"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"a":' * 100_000, "nested too deep"),
        (b"[" * 17 + b"]" * 17, "nested over 16 deep"),
    ],
)
def test_what_is_refused_and_where(content: bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as caught:
        read_json(content)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_nesting_up_to_the_limit_is_read() -> None:
    content = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert read_json(content) == json.loads(content)


def test_nesting_is_refused_under_a_higher_recursion_limit_too() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        with pytest.raises(FileFormatError, match="nested over 16 deep"):
            read_json(b"[" * 3000 + b"]" * 3000)
    finally:
        sys.setrecursionlimit(before)


def test_the_size_of_a_file_is_limited() -> None:
    with pytest.raises(FileFormatError, match=f"over the limit of {MAX_BYTES}"):
        read_json(b" " * (MAX_BYTES + 1))


def test_limits_that_just_fit() -> None:
    assert read_json(b"[9223372036854775807]") == [2**63 - 1]
    assert read_json(b"[-9223372036854775808]") == [-(2**63)]
    assert read_json(b'["' + b"x" * MAX_TEXT + b'"]') == ["x" * MAX_TEXT]


@given(st.lists(st.integers(0, 9) | keys.filter(bool), max_size=5))
def test_the_path_at_a_place_is_the_path_to_it(path: list[int | str]) -> None:
    text = "here"
    for part in reversed(path):
        fill = "".join('{"a": [1, "]"]}, ' for _ in range(part)) if part in range(10) else ""
        text = (
            f"[{fill}{text}]"
            if isinstance(part, int)
            else f'{{"z": {{}}, {json.dumps(part)}: {text}}}'
        )
    reached = path_at(text, text.index("here"))
    assert [json.loads(f'"{p}"') if isinstance(p, str) else p for p in reached] == path


def test_paths_as_text() -> None:
    assert path_text(()) == "the top level"
    assert path_text(("buckets", 1, "seats")) == "buckets[1].seats"
    assert path_text((0, "a")) == "[0].a"
    assert path_text(("strategies", "layer.ts")) == 'strategies["layer.ts"]'
    assert path_text((0,) * 99) == "[0]" * 16 + "..."
