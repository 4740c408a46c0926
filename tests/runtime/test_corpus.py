"""Corpora: every form of source, splitting, and one line for what cannot be read."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from shardwise.ir.errors import FileFormatError, InvalidValueError
from shardwise.runtime.corpus import load_corpus, stdlib_files, tokenizer_of


def tokens(source, **options):
    options.setdefault("max_length", 100)
    return [document.tolist() for document in load_corpus(str(source), **options).documents]


def test_text_files_by_glob_in_order_of_names(tmp_path):
    for name, text in (("b.txt", "bé"), ("a.txt", "A"), ("c.md", "no")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert tokens(tmp_path / "*.txt") == [[65], [98, 195, 169]]
    assert tokens(tmp_path / "a.txt") == [[65]]


def test_jsonl(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "ab", "body": "c"}\n\n{"text": "d", "body": "e"}\n')
    assert tokens(path) == [[97, 98], [100]]
    assert tokens(path, field="body") == [[99], [101]]


@pytest.mark.parametrize("line", ["{", "[1]", '{"other": "a"}', '{"text": 3}', "3", '"text"'])
def test_bad_line_of_jsonl_is_named(tmp_path, line):
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "ab"}\n' + line + "\n")
    with pytest.raises(FileFormatError, match=r"d\.jsonl: line 2 .* 'text'.*data\.field") as caught:
        tokens(path)
    assert "\n" not in str(caught.value)


def test_arrays(tmp_path):
    np.save(tmp_path / "one.npy", np.array([5, 6, 7], dtype=np.uint16))
    np.save(tmp_path / "two.npy", np.array([[1, 2], [3, 4]], dtype=np.int32))
    assert tokens(tmp_path / "*.npy") == [[5, 6, 7], [1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("ids", "dtype"),
    [
        ([0, 255], "uint8"),
        ([256], "uint16"),
        ([65536], "int32"),
        ([2**31], "int64"),
        ([-1], "int32"),
    ],
)
def test_ids_are_held_small(tmp_path, ids, dtype):
    np.save(tmp_path / "a.npy", np.array(ids))
    (document,) = load_corpus(str(tmp_path / "a.npy"), max_length=9).documents
    assert document.dtype == dtype and document.tolist() == ids


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.array([0.5]), "float64"),
        (np.zeros((1, 1, 1), dtype=int), "3 dims"),
        (np.array([[1], [2, 3]], dtype=object), "no .npy file of numbers"),
    ],
)
def test_arrays_that_hold_no_tokens(tmp_path, array, problem):
    path = tmp_path / "a.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(FileFormatError, match=problem):
        tokens(path)


def test_damaged_array(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY nothing")
    with pytest.raises(FileFormatError, match=r"a\.npy: no \.npy file"):
        tokens(tmp_path / "a.npy")


def test_function_of_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "corpus_made_here.py").write_text(
        "def documents():\n    yield 'ab'\n    yield [1, 2, 3]\n    yield range(2)\n"
        "def wrong():\n    yield [0.5]\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert tokens("corpus_made_here:documents") == [[97, 98], [1, 2, 3], [0, 1]]
    assert sys.path == before
    with pytest.raises(FileFormatError, match="float64"):
        tokens("corpus_made_here:wrong")


@pytest.mark.parametrize("source", ["no_such_module_here:documents", "json:no_such_function"])
def test_function_that_is_not_there(source):
    with pytest.raises(FileFormatError, match="importable module"):
        tokens(source)


def test_stdlib_is_the_interpreters_own_source():
    files = stdlib_files()
    assert Path(json.__file__) in files and len(files) > 500
    assert files == sorted(files)
    assert not any("site-packages" in path.parts for path in files)


@pytest.mark.parametrize("source", ["none-*.txt", "none.jsonl"])
def test_no_files(tmp_path, source):
    with pytest.raises(FileFormatError, match="no such file; give a path or a glob"):
        tokens(tmp_path / source)


def test_long_documents_are_split_and_empty_ones_left_out(tmp_path):
    for name, text in (("a", "abcdefg"), ("b", ""), ("c", "hi"), ("d", "abcdef")):
        (tmp_path / f"{name}.txt").write_text(text)
    corpus = load_corpus(str(tmp_path / "*.txt"), max_length=3)
    assert ["".join(map(chr, d)) for d in corpus.documents] == [
        "abc", "def", "g", "hi", "abc", "def",
    ]  # fmt: skip
    assert (corpus.split, corpus.empty) == (2, 1)
    assert corpus.lengths().tolist() == [3, 3, 1, 2, 3, 3]
    assert corpus.describe() == (
        "6 documents, 15 tokens, longest 3; 2 longer documents split, 1 empty left out"
    )


def test_empty_corpus(tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(InvalidValueError, match="no document with a token"):
        tokens(tmp_path / "a.txt")


def test_tokenizers():
    assert tokenizer_of("bytes")("é").tolist() == [195, 169]
    with pytest.raises(InvalidValueError, match="use bytes or hf:DIR"):
        tokenizer_of("words")
