"""Files of lengths: CSV histograms and lists, and errors that name the line and the remedy."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import FileFormatError
from shardwise.ir.length_law import length_law
from shardwise.ir.lengths import Lengths
from shardwise.ir.lengths_file import lengths_csv, read_lengths, read_samples, write_lengths

CONFIGS = Path(__file__).parents[2] / "configs" / "lengths"
HEADER = "S_low,S_high,documents,S_tokens"


def written(tmp_path, text, name="lengths.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@st.composite
def histograms(draw):
    dims = draw(st.sampled_from([("S",), ("S_src", "S_tgt")]))
    row = st.lists(st.integers(0, 500), min_size=len(dims), max_size=len(dims))
    rows = [*draw(st.lists(row, max_size=20)), [3] * len(dims)]
    source = draw(st.sampled_from(["", "a, b # c", "caf\u00e9"]))
    return Lengths.from_samples(np.array(rows), dims=dims, source=source)


@settings(deadline=None, max_examples=50)
@given(lengths=histograms())
def test_a_written_histogram_reads_back(tmp_path_factory, lengths) -> None:
    path = tmp_path_factory.mktemp("lengths") / "lengths.csv"
    write_lengths(lengths, path)
    assert read_lengths(path) == lengths


def test_the_form(tmp_path) -> None:
    text = f"# source: made up\n{HEADER}\n0,0,12,0\n0,512,100,20000\n512,1024,0.5,400.25\n"
    lengths = read_lengths(written(tmp_path, text))
    assert str(lengths) == 'S empty=12 "made up" (0,512]:100:20000 (512,1024]:0.5:400.25'
    assert lengths_csv(lengths) == text


def test_two_dims(tmp_path) -> None:
    text = (
        "S_src_low,S_src_high,S_tgt_low,S_tgt_high,documents,S_src_tokens,S_tgt_tokens\n"
        "0,0,0,0,2,0,0\n0,512,0,128,100,20000,5000\n0,512,128,256,10,2000,2000\n"
    )
    lengths = read_lengths(written(tmp_path, text))
    assert lengths.dims == ("S_src", "S_tgt")
    assert lengths.tokens == (22000, 7000)
    assert lengths_csv(lengths) == text


def test_columns_in_any_order_comments_blank_lines_and_a_mark_of_order(tmp_path) -> None:
    text = "\ufeffdocuments, S_high ,S_low\n\n  # a comment\n4,8,0\n"
    lengths = read_lengths(written(tmp_path, text))
    assert lengths.bins[0].high == (8,)
    assert lengths.source == ""


def test_blank_tokens_mean_log_uniform(tmp_path) -> None:
    text = f"{HEADER}\n0,4096,65.7,\n4096,8192,14.5,90000\n"
    lengths = read_lengths(written(tmp_path, text))
    assert lengths.bins[0].tokens == (65.7 * length_law(0, 4096).mean,)
    assert abs(lengths.bins[0].law(0).exponent) < 1e-6
    assert lengths.bins[1].tokens == (90000.0,)


@pytest.mark.parametrize(
    ("rows", "line", "problem"),
    [
        (["0,8,-3,4"], 2, "documents is '-3'; give a finite number of at least 0"),
        (["0,8,nan,4"], 2, "documents is 'nan'"),
        (["0,8,inf,4"], 2, "documents is 'inf'"),
        (["0,8,,4"], 2, "documents is ''"),
        (["0,8,many,4"], 2, "documents is 'many'"),
        (["0,8,1,4", "-8,9,1,4"], 3, "S_low is '-8', below 0; lengths are 0 or more"),
        (["0,8,1,4", "8,inf,1,9"], 3, "S_high is 'inf', not finite; give the longest length"),
        (["0,8,1,4", "8,,1,9"], 3, "S_high is '', not finite; give the longest length"),
        (["0,8.5,1,4"], 2, "S_high is '8.5'; give a whole number"),
        (["0,1e3,1,4"], 2, "S_high is '1e3'; give a whole number"),
        (["0,nan,1,4"], 2, "S_high is 'nan'; give a whole number"),
        (["0,9999999999999,1,4"], 2, "give a whole number of tokens up to"),
        (["8,8,1,8"], 2, "S_low 8 is not below S_high 8; swap or correct"),
        (["9,8,1,8"], 2, "S_low 9 is not below S_high 8"),
        (["0,8,10,9"], 2, "9 tokens in 10 documents of lengths 1 to 8, which hold 10 to 80"),
        (["0,8,10,81"], 2, "81 tokens in 10 documents"),
        (["0,8,1,-4"], 2, "S_tokens is '-4'; give a finite number"),
        (["0,8,1,nan"], 2, "S_tokens is 'nan'"),
        (["0,0,3,4"], 2, "empty documents hold no tokens; set their tokens to 0"),
        (
            ["0,8,1,4", "# note", "7,9,1,9"],
            4,
            r"\(7,9\] overlaps \(0,8\] of line 2; give disjoint",
        ),
        (["8,9,1,9", "", "0,8,1,4"], 4, r"\(0,8\] is below \(8,9\] of line 2; give disjoint"),
        (["0,8,1"], 2, "3 cells, the header has 4; complete it"),
        (["0,8,1,4,5"], 2, "5 cells, the header has 4"),
    ],
)
def test_a_bad_row_names_the_file_the_line_and_the_remedy(tmp_path, rows, line, problem) -> None:
    path = written(tmp_path, "\n".join([HEADER, *rows]) + "\n")
    with pytest.raises(FileFormatError, match=problem) as error:
        read_lengths(path)
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("low,high,documents,tokens", "is not like 'S_low,S_high,documents,S_tokens'"),
        ("S_low,documents,S_tokens", "lacks S_high; add the column"),
        ("S_low,S_high,S_tokens", "lacks documents"),
        ("S_low,S_high,documents,S_token", "the header has 'S_token'; the columns are S_low"),
        ("S_low,S_low,S_high,documents", "dims|twice"),
        ("S_low,S_high,documents,documents", "a column twice"),
        ("1_low,1_high,documents", "is not like"),
    ],
)
def test_a_bad_header_is_explained(tmp_path, header, problem) -> None:
    with pytest.raises(FileFormatError, match=problem) as error:
        read_lengths(written(tmp_path, f"# x\n{header}\n0,8,1,4\n"))
    assert ":2: " in str(error.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the file is empty; give a header"),
        ("# only a comment\n", "the file is empty"),
        (f"{HEADER}\n", "no bin has documents: an empty corpus"),
        (f"{HEADER}\n0,8,0,0\n", "no bin has documents"),
        (f"{HEADER}\n0,0,12,0\n", "no bin has documents"),
    ],
)
def test_an_empty_corpus_is_refused(tmp_path, text, problem) -> None:
    path = written(tmp_path, text)
    for read in (read_lengths,):
        with pytest.raises(FileFormatError, match=problem) as error:
            read(path)
        assert str(error.value).startswith(f"{path}: ")


def test_unreadable_files_are_named(tmp_path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing.csv", tmp_path / "binary.csv", tmp_path):
        for read in (read_lengths, read_samples):
            with pytest.raises(FileFormatError, match="cannot be read") as error:
                read(path)
            assert str(path) in str(error.value)
            assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.csv")), ids=lambda path: path.stem)
def test_the_files_that_are_shipped(path) -> None:
    lengths = read_lengths(path)
    assert lengths.dims == ("S",)
    assert lengths.source
    assert lengths.bins[-1].documents > 0
    assert 400 < lengths.mean_tokens < 30_000
    assert Lengths.parse(str(lengths)) == lengths


def test_wikipedia_has_the_published_mean_and_shares() -> None:
    lengths = read_lengths(CONFIGS / "wikipedia.csv")
    assert abs(lengths.mean_tokens - 1013.6) < 0.1
    median = lengths.percentiles("S", (50,))[0].length
    assert 250 < median < 450  # 347 published; the bin is (0, 512]
    assert lengths.largest() == {"S": 1823777}


def test_at_least_six_files_are_shipped() -> None:
    names = {path.stem for path in CONFIGS.glob("*.csv")}
    assert names >= {"wikipedia", "github-code", "grch38", "prolong", "chat", "sft"}


def test_lists_of_real_documents(tmp_path) -> None:
    path = written(tmp_path, "# a corpus\n3\n0\n\n 512 \n", "lengths.txt")
    assert read_samples(path).tolist() == [[3], [0], [512]]
    pairs = written(tmp_path, "S_tgt,S_src\n1,2\n3 , 4\n5 6\n", "pairs.csv")
    assert read_samples(pairs, ("S_src", "S_tgt")).tolist() == [[2, 1], [4, 3], [6, 5]]
    np.save(tmp_path / "lengths.npy", np.array([3, 4], dtype=np.int32))
    assert read_samples(tmp_path / "lengths.npy").tolist() == [[3], [4]]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no document; give one length per line"),
        ("S\n", "no document"),
        ("3\n-4\n", ":2: S is '-4', below 0"),
        ("3\n4,5\n", ":2: 2 lengths; give one for each of S"),
        ("3\nx\n", ":2: S is 'x'; give a whole number"),
        ("3\n4.0\n", ":2: S is '4.0'"),
        ("3\nS\n", ":2: S is 'S'"),
    ],
)
def test_bad_lists_name_the_line(tmp_path, text, problem) -> None:
    with pytest.raises(FileFormatError, match=problem):
        read_samples(written(tmp_path, text, "lengths.txt"))


def test_bad_arrays_are_named(tmp_path) -> None:
    path = tmp_path / "lengths.npy"
    for array in (np.array([-1]), np.array([0.5]), np.zeros((2, 2), dtype=int), np.array([{}])):
        np.save(path, array, allow_pickle=True)
        with pytest.raises(FileFormatError) as error:
            read_samples(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
    path.write_text("not an array")
    with pytest.raises(FileFormatError):
        read_samples(path)
