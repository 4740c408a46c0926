"""Numbers that no value may hold: of another type, too many to list, too long to print."""

import math
from dataclasses import replace

import numpy as np
import pytest

from shardwise.ir.errors import FileFormatError, InvalidValueError
from shardwise.ir.index_set import IndexSet
from shardwise.ir.layout import Layout, Select, Shard
from shardwise.ir.lengths_file import read_lengths, read_samples
from shardwise.ir.mesh import Mesh, MeshAxis
from shardwise.ir.placement import MAX_SECTIONS, kept_count, positions
from shardwise.ir.plan import Plan
from shardwise.ir.prices import Prices
from shardwise.ir.scanner import shown
from tests.support.plans import GOLDEN

MESH = Mesh.parse("x0=2@l data=2@l")
NOT_INTS = (True, 1.0, "1", None, np.int64(1), math.nan, 10**5000)


def refused(make, *arguments, **keywords):
    """The one short line that says no."""
    with pytest.raises(InvalidValueError) as error:
        make(*arguments, **keywords)
    line = str(error.value)
    assert "\n" not in line and len(line) < 500
    return line


@pytest.mark.parametrize("value", NOT_INTS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize(
    "make",
    [
        lambda n: MESH.rank({"x0": n, "data": 0}),
        lambda n: MESH.coordinates(n),
        lambda n: MESH.coordinate_tuple(n),
        lambda n: MESH.group(("x0",), n),
        lambda n: Mesh.parse("stage=2@l x0=2@l").stage_ranks(n),
        lambda n: MESH.stage_ranks(n),
        lambda n: MeshAxis("x0", n, "l"),
        lambda n: Layout.parse("x0:S(0)").local_shape((4,), MESH, n),
        lambda n: Layout.parse("x0:S(0)").index_sets((4,), MESH, n),
        lambda n: Shard(n),
        lambda n: Select(n, ((0, 1),)),
        lambda n: Shard(0, sections=(4, n)),
    ],
)
def test_ranks_coordinates_and_dims_are_ints(make, value) -> None:
    refused(make, value)


@pytest.mark.parametrize("size", [True, 4.0, "4", None, -1, np.int64(4)])
@pytest.mark.parametrize("text", ["R", "x0:S(0)", "x0:P"])
def test_sizes_of_tensors_are_ints(text, size) -> None:
    layout = Layout.parse(text)
    refused(layout.local_shape, (size, 8), MESH, 0)
    refused(layout.largest_local_shape, (size, 8), MESH)
    refused(layout.index_sets, (size, 8), MESH, 0)
    refused(layout.check, (size, 8), MESH)


@pytest.mark.parametrize("coordinates", [None, 3, (0, 1), {"x0": 0}, {"x0": 0, "data": 0, "y": 0}])
def test_coordinates_name_the_axes(coordinates) -> None:
    assert "data" in refused(MESH.rank, coordinates)


def test_many_sections_have_a_size_at_once_and_no_list() -> None:
    many = Layout((("x0", Shard(0, outer=10**9)),))
    assert many.local_shape((2 * 10**9,), MESH, 0) == (10**9,)
    assert many.largest_local_shape((3 * 10**9,), MESH) == (2 * 10**9,)
    assert str(MAX_SECTIONS) in refused(many.index_sets, (2 * 10**9,), MESH, 0)
    assert "divides" in refused(many.local_shape, (12,), MESH, 0)
    refused(Shard, 0, outer=10**18)
    refused(Shard, 0, outer=10**5000)
    rows = 4096
    per_document = Layout((("x0", Shard(0, outer=rows)),)).index_sets((rows * 4,), MESH, 1)
    assert len(per_document[0].intervals) == rows


@pytest.mark.parametrize("outer", [1, 2, 3, 5])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_counts_at_once_are_those_of_the_lists(outer, ranks) -> None:
    for section in range(9):
        cut = Shard(0, outer=outer)
        for at in range(ranks):
            size = outer * section
            assert kept_count(cut, size, at, ranks) == positions(cut, size, at, ranks).count()


def test_what_was_given_is_cut() -> None:
    assert shown("x" * 10**6) == "'" + "x" * 76 + "..."
    assert len(shown("é" * 10**6)) == 80
    assert shown(10**5000) == "a value of type int that is too long to print"
    assert shown((1, 10**5000)) == "a value of type tuple that is too long to print"
    assert shown([1] * 10**5) == "[1, 1, 1, " + "1, " * 22 + "1..."
    nested: object = 0
    for _ in range(10**4):
        nested = [nested]
    assert len(shown(nested)) <= 80


@pytest.mark.parametrize(
    "make",
    [
        lambda: Layout(tuple((f"x{i}", Shard(0)) for i in range(500)) * 2),
        lambda: Mesh(tuple(MeshAxis(f"x{i}", 1, "l") for i in range(500)) * 2),
        lambda: Mesh(tuple(MeshAxis(f"x{i}", 1, "l") for i in range(500))).axis("y" * 9999),
        lambda: Shard(0, sections=(1,) * 9999).section_sizes(3),
        lambda: Select(0, tuple((i, i + 1) for i in range(1, 9999))),
        lambda: IndexSet(tuple((i, i + 1) for i in range(9999))),
        lambda: Mesh(()).rank({"x" * 9999: 1}),
        lambda: Layout.parse("x0:S(7)").local_shape((4,) * 5, MESH, 0),
        lambda: Layout.parse("x0:S(0)").local_shape((-1,) * 9999, MESH, 0),
    ],
)
def test_long_values_make_short_lines(make) -> None:
    refused(make)


@pytest.mark.parametrize("text", ["1_0", "\u0661\u0662", "1e999", "nan", "0x10", "1 0", "\uff11"])
@pytest.mark.parametrize("column", range(4))
def test_numbers_of_length_files_are_plain(tmp_path, text, column) -> None:
    cells = ["0", "64", "5", "160"]
    cells[column] = text
    path = tmp_path / "l.csv"
    path.write_text("S_low,S_high,documents,S_tokens\n" + ",".join(cells) + "\n", "utf-8")
    with pytest.raises(FileFormatError, match=r"l\.csv:2: "):
        read_lengths(path)
    if "e" not in text and " " not in text:
        path.write_text(f"5\n{text}\n", "utf-8")
        with pytest.raises(FileFormatError, match=r"l\.csv:2: "):
            read_samples(path)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_plans_have_prices_and_parameters(golden) -> None:
    plan = Plan.load(golden)
    bucket = plan.buckets[0]
    free = Prices(())
    assert "must be finite and > 0" in refused(replace, bucket, time=free)
    assert "must be finite and > 0" in refused(replace, bucket, peak=free)
    model = replace(plan.model, parameter_count=0)
    assert "at model.parameter_count: 0" in refused(replace, plan, model=model)
