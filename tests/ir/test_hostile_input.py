"""What an attack on values and files found: refused in one line, never a traceback or nonsense."""

import pytest

from shardwise.ir.cluster import MAX_RANKS, Cluster
from shardwise.ir.config_files import load_cluster
from shardwise.ir.errors import FileFormatError, InvalidValueError, ParseError
from shardwise.ir.layout import Layout, Select, Shard
from shardwise.ir.lengths import Lengths
from shardwise.ir.lengths_file import MAX_LINE, read_lengths, write_lengths


@pytest.mark.parametrize(
    "make",
    [
        lambda: Layout([("x0", Shard(0))]),
        lambda: Layout(None),
        lambda: Layout((("x0",),)),
        lambda: Shard(0, sections=[1, 2]),
        lambda: Select(0, [(0, 4)]),
        lambda: Select(0, ((0.0, 4.0),)),
        lambda: Select(0, ((0, 4), (0, True))),
        lambda: Select(0, (5,)),
        lambda: Select(0, ((0, 4), (0, 4)), partial="no"),
    ],
)
def test_parts_of_layouts_have_their_own_types(make) -> None:
    with pytest.raises(InvalidValueError) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_cluster_has_an_end() -> None:
    assert Cluster.parse(f"a b node:8@nv c:{MAX_RANKS // 8}@ib").link_of(1, 8) == "nv"
    with pytest.raises(ParseError, match="at most"):
        Cluster.parse(f"a b node:8@nv c:{MAX_RANKS}@ib")


@pytest.mark.parametrize("text", ["a=" + "[" * 20_000, "size = " + "9" * 5_000, "\ufffe=", "a"])
def test_toml_that_is_none(tmp_path, text) -> None:
    (tmp_path / "c.toml").write_text(text, "utf-8")
    with pytest.raises(FileFormatError) as error:
        load_cluster(tmp_path / "c.toml")
    assert "\n" not in str(error.value) and len(str(error.value)) < 1000


def test_a_path_with_a_null_byte() -> None:
    for read in (load_cluster, read_lengths):
        with pytest.raises(FileFormatError):
            read("a\0b")


def test_a_line_without_end(tmp_path) -> None:
    (tmp_path / "l.csv").write_text("S_low,S_high,documents\n0,4," + "1" * (MAX_LINE + 1))
    with pytest.raises(FileFormatError, match="characters"):
        read_lengths(tmp_path / "l.csv")


def test_folders_on_the_way_are_made(tmp_path) -> None:
    lengths = Lengths.from_samples([3, 5, 9])
    write_lengths(lengths, tmp_path / "a" / "b" / "l.csv")
    assert read_lengths(tmp_path / "a" / "b" / "l.csv") == lengths
    with pytest.raises(FileFormatError, match="cannot be written"):
        write_lengths(lengths, tmp_path / "a" / "b")
