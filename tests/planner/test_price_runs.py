"""`shardwise price`: rows in, rows with predictions out; what a row cannot do, and bad files."""

import csv
import io
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.cli import main
from shardwise.ir.errors import FileFormatError, ShardwiseError, UnsupportedError
from shardwise.planner.price_command import price_table
from shardwise.planner.price_runs import COLUMNS, GB, GIB, RunPricer, memory_gb
from tests.planner.test_published_row import FULL

PRICER = RunPricer()
SMALL = {
    **FULL, "layers": "8", "hidden": "1024", "heads": "16", "kv_heads": "16", "ffn": "2816",
    "vocab": "32000", "seq_len": "2048", "n_gpus": "8", "tp": "2", "pp": "2", "dp": "2",
    "virtual_stages": "1", "schedule": "1F1B", "global_batch": "32", "grad_accum": "8",
}  # fmt: skip


def priced(**cells):
    return PRICER.price({**SMALL, **cells}).price


def added(**cells):
    return PRICER.added({**SMALL, **cells})


def write(path, rows, columns=None):
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_row_gets_its_price():
    cells, price = added(mem_kind="reserved, GiB"), priced()
    assert list(cells) == list(COLUMNS)
    assert float(cells["predicted_iter_time_s"]) == pytest.approx(price.step_s, rel=1e-5)
    inside = price.reserved_bytes / GIB
    assert float(cells["predicted_peak_mem_gb"]) == pytest.approx(inside, rel=1e-3)
    assert cells["predicted_oom"] == "no"


@pytest.mark.parametrize(
    ("kind", "unit", "context"),
    [
        ("torch peak active, GiB", GIB, False), ("max_memory, GB", GB, False),
        ("GiB", GIB, False), ("not stated, GB", GB, False), ("", GB, True),
        ("allocated", GB, False),
    ],
)  # fmt: skip
def test_memory_is_worded_as_the_row_words_it(kind, unit, context):
    """What an allocator reports has no context and no process groups."""
    price = priced()
    expected = price.peak_bytes - (0 if context else price.context_bytes)
    assert memory_gb(price, kind) == expected / unit


def test_more_than_a_gpu_has_is_out_of_memory():
    cells = added(layers="96", hidden="12288", heads="96", kv_heads="96", ffn="32768")
    assert cells["predicted_oom"] == "yes" and float(cells["predicted_peak_mem_gb"]) > 80


@pytest.mark.parametrize("gpu", ["RTX 9090", "", "TPU v5p", "A100"])
def test_an_unknown_gpu_is_a_note(gpu):
    cells = added(gpu=gpu)
    assert cells["predicted_iter_time_s"] == cells["predicted_oom"] == ""
    assert cells["price_note"].startswith("not priced: gpu")
    with pytest.raises(UnsupportedError):
        priced(gpu=gpu)


def test_a_row_moves_as_physics_says():
    one = priced()
    for changes in (
        {"layers": "9"}, {"seq_len": "4096"}, {"hidden": "2048"}, {"micro_batch": "4",
         "global_batch": "64"}, {"global_batch": "64", "grad_accum": "16"}, {"ffn": "4096"},
        {"gpu": "A100-SXM-80GB"}, {"recompute": "full", "layers": "16"},
    ):  # fmt: skip
        assert priced(**changes).step_s > one.step_s
    for changes in ({"layers": "10"}, {"seq_len": "4096"}, {"hidden": "2048"}, {"vocab": "64000"}):
        assert priced(**changes).peak_bytes > one.peak_bytes
    faster = priced(gpu="B200-SXM")
    assert faster.step_s < one.step_s and faster.rest_bytes == one.rest_bytes
    none = priced(recompute="none")
    assert none.step_s < one.step_s and none.kept_bytes > one.kept_bytes


def test_what_is_not_fused_costs_time():
    """Norms, rotary positions and gates of an eager run are several passes each; hosts that wait
    for every kernel hide no launch."""
    assert priced(other_settings="eager").step_s > priced(other_settings="torch.compile").step_s
    cells = {"glu": "0", "precision": "fp16", "gpu": "A100-SXM-80GB"}
    run = PRICER.price({**SMALL, **cells, "framework": "Megatron-DeepSpeed (BigScience fork)"}).run
    waited, free = (
        PRICER.price_run(replace(run, stack=replace(run.stack, blocking=blocking))).price
        for blocking in (True, False)
    )
    assert run.stack.blocking and waited.step_s > free.step_s


def test_a_slower_network_between_nodes_costs_time():
    spread = {"n_gpus": "32", "dp": "8", "global_batch": "128"}
    times = [
        priced(**spread, inter_link=f"InfiniBand, {rate} Gb/s per node").step_s
        for rate in (100, 400, 3200)
    ]
    assert times[0] > times[1] > times[2]
    noted = added(**spread, inter_link="not stated")["price_note"]
    assert "network" in noted


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(SMALL)),
        st.sampled_from(["", "0", "1", "2", "3", "8", "64", "-1", "x", "none", "yes", "1e9"]),
        max_size=4,
    )
)
def test_no_row_ends_the_run(cells):
    """Priced, or a reason in one line; both never."""
    given_cells = {**SMALL, **cells}
    row = next(PRICER.rows(iter([given_cells])))
    assert list(row) == [*given_cells, *COLUMNS]
    assert {name: row[name] for name in given_cells} == given_cells
    refused = row["price_note"].startswith("not priced: ")
    assert refused == (row["predicted_iter_time_s"] == "") == (row["predicted_oom"] == "")
    assert "\n" not in row["price_note"]
    if not refused:
        assert float(row["predicted_iter_time_s"]) > 0 < float(row["predicted_peak_mem_gb"])


def test_a_table_keeps_its_columns_and_their_order(tmp_path):
    rows = [
        {"run_id": "a", **SMALL, "notes": "one, two\nthree", "iter_time_s": "0.5"},
        {"run_id": "b", **SMALL, "gpu": "none", "notes": 'with "quotes"', "iter_time_s": ""},
        {"run_id": "c", **SMALL, "layers": "", "notes": "", "iter_time_s": "1"},
        {"run_id": "d", **SMALL, "layers": "", "notes": "é", "iter_time_s": "1"},
    ]
    table = price_table(write(tmp_path / "in.csv", rows), tmp_path / "more" / "out.csv")
    found = read(tmp_path / "more" / "out.csv")
    assert [list(row) for row in found] == [[*rows[0], *COLUMNS]] * 4
    assert [{k: row[k] for k in rows[0]} for row in found] == rows
    assert found[0] == {**rows[0], **PRICER.added(rows[0])}
    assert (table.rows, table.priced) == (4, 1)
    assert table.reasons[0] == ("layers is blank and nothing else says it", 2)
    text = str(table)
    assert text.startswith("priced 1 of 4 rows in ") and "3 not priced:" in text
    assert text.count("\n") == 2


def test_a_priced_table_can_be_priced_again(tmp_path):
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    price_table(write(tmp_path / "in.csv", [SMALL]), first)
    price_table(first, second)
    assert read(first) == read(second)


def test_few_columns_are_enough(tmp_path):
    cells = {"layers": "4", "hidden": "512", "seq_len": "512", "global_batch": "8"}
    rows = [{**cells, "gpu": "A100-SXM-80GB"}]
    price_table(write(tmp_path / "in.csv", rows), tmp_path / "out.csv")
    (row,) = read(tmp_path / "out.csv")
    assert float(row["predicted_iter_time_s"]) > 0 and "heads 4 assumed" in row["price_note"]


def test_many_reasons_are_cut(tmp_path):
    rows = [{**SMALL, "gpu": f"part {n}"} for n in range(6)]
    table = price_table(write(tmp_path / "in.csv", rows), tmp_path / "out.csv")
    assert len(str(table).splitlines()) == 5 and "for other reasons" in str(table)


HEAD = "layers,hidden,seq_len\n"
BAD = {
    "empty": (b"", "the file is empty"),
    "only a header": (HEAD.encode(), "without rows"),
    "no layers": (b"hidden,seq_len\n1,2\n", "no column layers"),
    "neither": (b"a;b\n1;2\n", "no column layers and none hidden"),
    "short row": (HEAD.encode() + b"1,2,3\n1,2\n", "in.csv:3: 2 cells, but 3 columns"),
    "long row": (HEAD.encode() + b"1,2,3,4\n", "in.csv:2: 4 cells, but 3 columns"),
    "a column twice": (b"layers,hidden,hidden\n1,2,3\n", "'hidden' stands twice"),
    "not text": (b"\xff\xfe\x00layers", "not text in UTF-8"),
    "open quote": (HEAD.encode() + b'1,2,"3\n', "not CSV"),
    "a JSON file": (b'{"layers": 1}\n', "no column layers"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line(name, tmp_path):
    content, names = BAD[name]
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    with pytest.raises(FileFormatError) as error:
        price_table(path, tmp_path / "out.csv")
    assert names in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out.csv").exists()


def test_other_bad_paths(tmp_path):
    table = write(tmp_path / "in.csv", [SMALL])
    with pytest.raises(FileFormatError, match="cannot be read"):
        price_table(tmp_path / "none.csv", tmp_path / "out.csv")
    with pytest.raises(FileFormatError, match="this is the table that is read"):
        price_table(table, table)
    with pytest.raises(FileFormatError, match="no folder hardware"):
        price_table(table, tmp_path / "out.csv", configs=tmp_path)
    assert read(table) == [SMALL]


def test_other_profiles_may_be_given(tmp_path):
    for name in ("hardware", "software"):
        (tmp_path / "configs" / name).mkdir(parents=True)
    table = write(tmp_path / "in.csv", [SMALL])
    price_table(table, tmp_path / "out.csv", configs=tmp_path / "configs")
    assert "no such profile" in read(tmp_path / "out.csv")[0]["price_note"]


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["shardwise", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def test_the_command(tmp_path, monkeypatch, capsys):
    table = write(tmp_path / "in.csv", [SMALL])
    assert run(monkeypatch, "price", table, "-o", tmp_path / "out.csv") == 0
    printed = capsys.readouterr()
    assert "priced 1 of 1 rows" in printed.out and printed.err == ""
    assert run(monkeypatch, "price", tmp_path / "no.csv", "-o", tmp_path / "out.csv") == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("shardwise: ") and printed.err.count("\n") == 1


def test_rows_are_told_one_by_one():
    told = []
    rows = PRICER.rows(csv.DictReader(io.StringIO("layers,hidden\n1,2\n3,4\n")), told.append)
    assert told == []
    next(rows)
    assert told == [1]
    assert len(list(rows)) == 1 and told == [1, 2]


def test_a_reason_is_an_error_for_callers():
    with pytest.raises(ShardwiseError, match="layers is blank"):
        PRICER.price({})
