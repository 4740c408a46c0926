"""A simulated step is the plan's own prices, added up; its trace is well-formed."""

import json
import sys
from functools import lru_cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.cli import main
from shardwise.ir.errors import InvalidValueError, MismatchError, UnsupportedError
from shardwise.ir.global_batch import global_batches
from shardwise.ir.lengths_file import write_lengths
from shardwise.ir.plan import Plan
from shardwise.ir.schedule import ScheduleKind, actions
from shardwise.planner.api import plan as make_plan
from shardwise.planner.chrome_trace import Span, timeline_spans, trace_events, trace_text
from shardwise.planner.score import score_plan
from shardwise.planner.simulate import simulate_step
from shardwise.solvers.event_simulator import simulate
from tests.support.planning import SOME, TRAINING, lengths, machine, traced_hand_model


@lru_cache
def a_plan():
    return make_plan(
        traced_hand_model(), cluster=machine(2), lengths=SOME, tokens_per_step=8192,
        training=TRAINING,
    )  # fmt: skip


def complete(events):
    return [event for event in events if event["ph"] == "X"]


def assert_well_formed(events):
    """Fields of every event, and no two of a track at once."""
    tracks = {}
    for event in events:
        assert {"ph", "name", "pid", "args"} <= set(event)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
        elif event["ph"] == "C":
            assert event["ts"] >= 0 and set(event["args"]) == {"value"}
        else:
            assert event["ph"] == "M"
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(tracks) == named
    for row in tracks.values():
        for before, after in pairwise(row):
            assert before["ts"] + before["dur"] <= after["ts"] * (1 + 1e-12)


@pytest.mark.parametrize("step", [0, 1, 5])
def test_a_step_is_the_prices_of_its_slots_and_the_rest(step):
    plan, seed = a_plan(), 3
    ran = simulate_step(plan, SOME, seed=seed, step=step)
    batch = global_batches(SOME, 8192, count=step + 1, seed=seed)[step][:, 0]
    assert sum(slot.documents for slot in ran.slots) == len(batch)
    assert sum(slot.tokens for slot in ran.slots) == batch.sum()
    prices = {str(bucket.bucket): bucket for bucket in plan.buckets}
    total = peak = idle = padded = 0.0
    for slot in ran.slots:
        bucket = prices[slot.bucket]
        assert slot.length == bucket.bucket.largest()["S"]  # the planner pads to the edge
        assert slot.start_s == pytest.approx(total)
        assert slot.time_s == pytest.approx(bucket.largest_slot_time_s())
        assert slot.seats == bucket.documents_per_slot
        assert slot.peak_bytes_per_rank == pytest.approx(bucket.largest_peak_bytes())
        total += bucket.largest_slot_time_s()
        peak = max(peak, bucket.largest_peak_bytes())
        idle += bucket.largest_slot_time_s() * (slot.seats - slot.documents) / slot.seats
        padded += slot.seats * slot.length
    assert ran.slots_s == pytest.approx(total)
    assert ran.step_s == pytest.approx(total + ran.end_s)
    assert ran.peak_bytes_per_rank == pytest.approx(peak)
    assert ran.idle_seats == pytest.approx(idle / total)
    assert ran.idle_tokens == pytest.approx(1 - batch.sum() / padded)
    assert ran == simulate_step(plan, SOME, seed=seed, step=step)


def test_the_mean_of_many_steps_is_the_score():
    plan = a_plan()
    steps = [simulate_step(plan, SOME, seed=20261130, step=k).step_s for k in range(64)]
    assert sum(steps) / 64 == pytest.approx(score_plan(plan, SOME).mean_s)


def test_the_trace_of_a_step(tmp_path):
    ran = simulate_step(a_plan(), SOME)
    path = tmp_path / "new" / "trace.json"
    ran.save_trace(path)
    events = json.loads(path.read_text())["traceEvents"]
    assert_well_formed(events)
    spans = complete(events)
    assert [span["name"] for span in spans[:-1]] == [f"{s.bucket} at {s.length}" for s in ran.slots]
    assert spans[-1]["name"].startswith("step end")
    assert sum(span["dur"] for span in spans) == pytest.approx(ran.step_s * 1e6)
    assert {span["args"].get("strategies") for span in spans} >= {ran.slots[0].strategies}
    counts = [event["args"]["value"] for event in events if event["ph"] == "C"]
    assert counts == [round(slot.peak_bytes_per_rank) for slot in ran.slots]


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(ScheduleKind), st.integers(1, 4), st.integers(1, 6), st.floats(0, 3),
    st.floats(0.1, 2),
)  # fmt: skip
def test_the_trace_of_a_pipeline(kind, p, m, hop, seconds):
    chunks = 2 if kind.takes_chunks else None
    orders = actions(kind, devices=p, micro_batches=m, chunks_per_device=chunks)
    timeline = simulate(orders, lambda *_: seconds, lambda *_: hop)
    events = trace_events(list(timeline_spans(timeline)))
    assert_well_formed(events)
    computing = [event for event in complete(events) if event["cat"] == "compute"]
    assert len(computing) == sum(map(len, orders))
    for d in range(p):
        busy = sum(event["dur"] for event in computing if event["pid"] == d)
        assert busy == pytest.approx(timeline.busy_s(d) * 1e6)
    arrows = {e["name"]: e["pid"] for e in complete(events) if e["cat"] == "communication"}
    place = {str(one): d for d, order in enumerate(orders) for one in order}
    assert len(arrows) == len(complete(events)) - len(computing) == len(timeline.messages)
    assert all(place[name.split(" to ")[1]] == pid for name, pid in arrows.items())
    ends = max(event["ts"] + event["dur"] for event in computing)
    assert ends == pytest.approx(timeline.makespan_s * 1e6)


def test_overlapping_messages_take_further_lanes():
    spans = [
        Span("r", "communication", name, at, 2.0) for name, at in (("a", 0), ("b", 1), ("c", 2))
    ]
    events = trace_events([*spans, Span("r", "compute", "d", 1.0, 1.0)])
    assert_well_formed(events)
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert names == ["compute", "communication", "communication 2"]
    assert {e["name"]: e["tid"] for e in complete(events)} == {"a": 1, "b": 2, "c": 1, "d": 0}


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_span_has_finite_times(bad):
    for times in ((bad, 1.0), (1.0, bad)):
        with pytest.raises(InvalidValueError, match="span 'a' starts"):
            Span("r", "compute", "a", *times)
    assert json.loads(trace_text([])) == {"traceEvents": [], "displayTimeUnit": "ms"}


def test_what_is_not_simulated():
    plan = a_plan()
    with pytest.raises(MismatchError, match="made for lengths of digest"):
        simulate_step(plan, lengths((4, 64, 60)))
    for step in (-1, 10_000, 1.0):
        with pytest.raises(InvalidValueError, match="step is"):
            simulate_step(plan, SOME, step=step)
    with pytest.raises(InvalidValueError, match="seed"):
        simulate_step(plan, SOME, seed=-1)
    two = Plan.load("examples/plans/llama-3-8b-512-ranks.json")
    if len(two.stages) > 1:
        with pytest.raises(UnsupportedError, match="stages"):
            simulate_step(two, SOME)


def test_the_command(tmp_path, monkeypatch, capsys):
    a_plan().save(tmp_path / "plan.json")
    write_lengths(SOME, tmp_path / "lengths.csv")
    trace = tmp_path / "trace.json"
    words = ["simulate", "plan.json", "--lengths", "lengths.csv", "-o", "trace.json", "--seed", "4"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["shardwise", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert not left.value.code
    said = capsys.readouterr().out
    assert str(simulate_step(a_plan(), SOME, seed=4)) in said
    assert "idle:" in said and "peak:" in said and said.endswith("wrote trace.json\n")
    assert_well_formed(json.loads(trace.read_text())["traceEvents"])
