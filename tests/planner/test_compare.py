"""`explain --flags`: another plan's prices beside ours, from the same functions."""

import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from shardwise.cli import main
from shardwise.ir.config_files import load_machine
from shardwise.ir.errors import InvalidValueError, MismatchError, UnsupportedError
from shardwise.ir.plan_file import load, save
from shardwise.ir.plan_text import COLUMNS, seconds, size
from shardwise.planner.compare import compare
from shardwise.planner.decoder_config import decoder_of_config
from shardwise.planner.time_model import Pricer
from shardwise.planner.uniform_plan import UniformPlan
from shardwise.planner.uniform_price import price_uniform

CLUSTER = Path("configs/clusters/local-4.toml")
CONFIG = "configs/models/tiny-llama.json"
MODEL = f"hf:{CONFIG}"


@lru_cache
def ours():
    """A plan for four ranks of the cluster of the tests."""
    plan = load("examples/plans/four-ranks.json")
    cluster, hardware, software = load_machine(CLUSTER)
    model = replace(plan.model, parameter_count=decoder_of_config(CONFIG).parameters)
    priced_for = replace(
        plan.priced_for,
        cluster=cluster.limited(plan.priced_for.cluster.memory_limit_bytes),
        hardware_digest=hardware.digest(),
        software_digest=software.digest(),
    )
    return replace(plan, model=model, priced_for=priced_for)


def beside(flags, **changes):
    options = {"model": MODEL, "cluster": CLUSTER, "flags": flags, **changes}
    return compare(changes.pop("plan", ours()), **{k: options[k] for k in options if k != "plan"})


def test_every_padded_length_has_a_row():
    made = beside("tp=2 zero=1 micro_batches=8 length=4096")
    lengths = [dict(shape.sizes)["S"] for bucket in ours().buckets for shape in bucket.padded]
    assert [int(row[1]) for row in made.rows] == [*lengths, 4096]
    assert made.rows[-1][0] == "as they state it"
    assert [row[-1] for row in made.rows[:-1]].count("over 4096") == sum(x > 4096 for x in lengths)


def test_prices_are_those_of_the_tables():
    """Ours as the plan has it, theirs as price_uniform has it."""
    cluster, hardware, software = load_machine(CLUSTER)
    pricer = Pricer(
        cluster.limited(ours().priced_for.memory_limit_bytes_per_rank), hardware, software,
        ours().training,
    )  # fmt: skip
    made = beside("tp=2 dp=2 zero=1 mbs=2 micro_batches=8")
    bucket = ours().buckets[0]
    shape = bucket.padded[0]
    mine = bucket.price_of(bucket.time, shape) / bucket.documents_per_slot
    length = dict(shape.sizes)["S"]
    text = f"tp=2 dp=2 zero=1 mbs=2 micro_batches=8 length={length}"
    price = price_uniform(decoder_of_config(CONFIG), UniformPlan.parse(text), pricer)
    one = price.pipeline_s / (2 * 2 * 8)
    assert made.rows[0][2:7] == (
        seconds(mine), seconds(one), f"{one / mine:.3g}", seconds(price.step_s),
        size(price.peak_bytes),
    )  # fmt: skip
    assert made.rows[0][7] == ("yes" if price.fits else "no")


def test_micro_batches_that_are_not_stated_fill_the_step_of_the_plan():
    made = beside("tp=2")
    tokens = ours().priced_for.tokens_per_step
    assert any(f"{tokens:,}" in note for note in made.notes)
    length = int(made.rows[0][1])
    count = max(1, round(tokens / (2 * length)))
    assert made.rows[0] == beside(f"tp=2 micro_batches={count}").rows[0]


def test_a_plan_that_does_not_fit_says_so():
    small = replace(ours().priced_for, memory_limit_bytes_per_rank=400_000_000)
    rows = beside("dp=4 mbs=64", plan=replace(ours(), priced_for=small)).rows
    assert rows[-1][-1] == "no"
    assert beside("tp=4 sp").rows[0][-1] == "yes"


def test_text_is_a_table_with_what_is_not_modelled():
    text = str(beside("tp=4 sequence_parallel"))
    lines = text.splitlines()
    assert lines[0] == "their plan (uniform): tp=4 sp"
    assert lines[2].split()[:3] == ["bucket", "length", "ours/doc"]
    assert max(map(len, lines)) <= COLUMNS
    assert "Not modelled" in text and text == text.strip()
    assert any(
        "does not divide 2 heads of keys and values" in note for note in beside("tp=4").notes
    )
    assert not any("does not divide" in note for note in beside("tp=2").notes)


def test_float8_and_other_profiles_are_noted(tmp_path):
    stale = replace(ours().priced_for, hardware_digest="0" * 64)
    made = beside("tp=2", plan=replace(ours(), priced_for=stale))
    assert any("plan again" in note for note in made.notes)
    other = replace(ours().model, parameter_count=ours().model.parameter_count + 64)
    made = beside("tp=2", plan=replace(ours(), model=other))
    assert any("parameters" in note for note in made.notes)
    assert not any("parameters" in note for note in beside("tp=2").notes)


@pytest.mark.parametrize(
    ("changes", "kind", "names"),
    [
        ({"model": "tests:model"}, UnsupportedError, "hf:config.json"),
        ({"model": "hf:"}, UnsupportedError, "hf:config.json"),
        ({"model": "hf:configs/models/llama-3-8b.json"}, MismatchError, "8,030,261,248"),
        ({"cluster": Path("configs/clusters/local-2.toml")}, MismatchError, "local-2"),
        ({"flags": "tp=3"}, MismatchError, "tp=3"),
        ({"flags": "pp=4 chunks=4 schedule=interleaved_1f1b"}, InvalidValueError, "lower pp"),
        ({"flags": "--micro-batch-size 1 --bf16"}, MismatchError, "bfloat16"),
        ({"flags": None}, InvalidValueError, "--flags"),
        ({"flags_file": Path("x.sh")}, InvalidValueError, "--flags-file"),
    ],
)
def test_wrong_requests_are_one_line(changes, kind, names):
    options = {"flags": "tp=2", **changes}
    with pytest.raises(kind, match=names) as error:
        beside(options.pop("flags"), **options)
    assert "\n" not in str(error.value)


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["shardwise", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


def test_the_command(tmp_path, monkeypatch, capsys):
    save(ours(), tmp_path / "plan.json")
    (tmp_path / "run.sh").write_text(
        "torchrun train.py --tensor-model-parallel-size 2 --micro-batch-size 1\n"
    )
    command = ["explain", tmp_path / "plan.json", "--model", MODEL, "--cluster", CLUSTER]
    assert run(monkeypatch, *command, "--flags-file", tmp_path / "run.sh") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("their plan (megatron): tp=2 dp=2") and printed.err == ""
    assert run(monkeypatch, *command, "--flags", "--micro-batch-size 1") == 0
    assert capsys.readouterr().out.startswith("their plan (megatron): dp=4")
    for wrong in (
        ["explain", tmp_path / "plan.json", "--flags", "tp=2"],
        ["explain", tmp_path / "plan.json", "--model", MODEL],
        [*command, "--flags", "tp=2", "--flags-file", tmp_path / "run.sh"],
    ):
        assert run(monkeypatch, *wrong) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("shardwise: ") and printed.err.count("\n") == 1
