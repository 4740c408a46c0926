"""`simulate --flags`: a step of another plan on its pipeline, and the trace of it."""

import json
import sys
from itertools import pairwise

import pytest

from shardwise.cli import main
from shardwise.ir.errors import InvalidValueError, ShardwiseError
from shardwise.ir.plan_file import save
from shardwise.planner.chrome_trace import COMPUTE
from shardwise.planner.compare import other_plan
from shardwise.planner.simulate_flags import simulate_flags
from shardwise.planner.uniform_price import price_uniform
from tests.planner.test_compare import CLUSTER, MODEL, ours


def simulated(flags, length=512, count=6):
    flags = f"mbs=2 micro_batches={count} {flags}"
    other = other_plan(ours(), model=MODEL, cluster=CLUSTER, flags=flags)
    return other, simulate_flags(other, length)


@pytest.mark.parametrize(
    "flags",
    [
        "pp=2",
        "pp=4",
        "tp=2 pp=2",
        "dp=4",
        "pp=2 vpp=2 schedule=interleaved_1f1b",
        "pp=2 schedule=gpipe",
    ],
)
def test_the_trace_ends_when_the_price_says(flags):
    other, ran = simulated(flags)
    price = price_uniform(other.shape, ran.plan, other.pricer)
    assert ran.timeline.makespan_s == pytest.approx(price.pipeline_s, rel=1e-9)
    spans = list(ran.spans())
    assert max(one.end_s for one in spans) == pytest.approx(price.step_s, rel=1e-9)
    assert len({one.process for one in spans}) == ran.plan.pipeline
    rows = {}
    for one in spans:
        if one.lane == COMPUTE:
            rows.setdefault(one.process, []).append(one)
    for row in rows.values():  # F and B of each micro-batch and part, then the optimizer
        assert len(row) == 2 * ran.plan.micro_batches * ran.plan.chunks + 1
        ordered = sorted(row, key=lambda one: one.start_s)
        assert all(a.end_s <= b.start_s + 1e-12 for a, b in pairwise(ordered))


def test_one_device_is_never_idle_and_a_pipeline_is():
    assert simulated("dp=4")[1].timeline.idle_share == pytest.approx(0, abs=1e-9)
    shares = [simulated("pp=4", count=m)[1].timeline.idle_share for m in (4, 8, 32)]
    assert shares == sorted(shares, reverse=True) and shares[0] > 3 / 7 - 0.05


def test_backwards_of_weights_are_spans_of_their_own():
    ran = simulated("pp=2 schedule=zb_h1")[1]
    assert {action.kind.value for order in ran.timeline.orders for action in order} == {*"FBW"}
    assert ran.timeline.period_s == pytest.approx(ran.price.pipeline_s, rel=0.01)


def test_what_can_not_be_drawn_is_refused_with_the_reason():
    with pytest.raises(InvalidValueError, match="state no sequence length; give --length"):
        simulated("pp=2", None)
    with pytest.raises(InvalidValueError, match="--length is 0"):
        simulated("pp=2", 0)
    with pytest.raises(InvalidValueError, match=r"400,000 actions.*fewer micro-batches"):
        simulated("pp=2", count=100000)
    with pytest.raises(ShardwiseError, match="a part would have no layer"):
        simulated("pp=4 vpp=4 schedule=interleaved_1f1b")
    assert simulated("pp=2 length=256", None)[1].plan.sequence_length == 256


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["shardwise", "simulate", *map(str, arguments)])
    main()


def test_the_command_prints_the_step_and_writes_its_trace(monkeypatch, capsys, tmp_path):
    plan, trace = tmp_path / "plan.json", tmp_path / "new" / "trace.json"
    save(ours(), plan)
    options = ("--model", MODEL, "--cluster", CLUSTER, "-o", trace)
    flags = "pp=2 mbs=2 micro_batches=6"
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, plan, "--flags", flags, "--length", 512, *options)
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "6 micro-batches of 2 x 512 tokens" in printed and f"wrote {trace}" in printed
    events = json.loads(trace.read_text())["traceEvents"]
    names = {one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names == {"stage 0 (ranks 0-1)", "stage 1 (ranks 2-3)"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give --lengths"),
        (("--length", "5"), "go with --flags"),
        (("--flags", "pp=2"), "--flags needs --model"),
        (("--flags", "pp=2", "--seed", "1"), "leave them out with --flags"),
        (("--flags", "pp=2", "--lengths", "x.csv"), "leave them out with --flags"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    monkeypatch, capsys, tmp_path, arguments, text
):
    plan = tmp_path / "plan.json"
    save(ours(), plan)
    with pytest.raises(SystemExit):
        run(monkeypatch, plan, *arguments, "-o", tmp_path / "t.json")
    error = capsys.readouterr().err
    assert text in " ".join(error.split()) and not (tmp_path / "t.json").exists()
