"""Micro-batches through a pipeline: closed forms, and the steady state against simulating all."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.schedule import ScheduleKind
from shardwise.planner import uniform_pipeline
from shardwise.planner.stage_layers import stage_layers
from shardwise.planner.uniform_pipeline import Pipeline
from shardwise.planner.uniform_units import PartCost, PartCosts
from tests.support.uniform import GPT, plan, pricer

FREE = PartCost(0.0, 0.0, 0.0, 0.0, 0.0)
LAYER = PartCost(1.0, 2.0, 0.5, 10.0, 3.0)
EQUAL = PartCosts(FREE, LAYER, FREE)
REAL = PartCosts(PartCost(0.1, 0.2, 1.0, 2.0, 1.0), LAYER, PartCost(1.5, 3.0, 0.5, 7.0, 20.0))


def run(text, layers, costs=EQUAL, *, steady=None, monkeypatch=None, extra=(0.0, 0.0)):
    """The pipeline of `text` with messages that take no time."""
    made = plan(text)
    one = pricer(made.world_size)
    parts = stage_layers(layers, made.pipeline, made.chunks, made.schedule)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardwise.ir.hardware.HardwareProfile.collective_s", lambda *_: 0.0)
        if steady is not None:
            patch.setattr(uniform_pipeline, "_STEADY", steady)
        shape = replace(GPT, layers=layers)
        return Pipeline.of(made, one, shape, parts, costs, [extra] * len(parts)).run()


@given(
    st.integers(1, 40),
    st.integers(2, 8),
    st.sampled_from(["1f1b", "gpipe", "zb_h1", "zb_h2", "zb_v vpp=2", "interleaved_1f1b vpp=2"]),
)
def test_one_device_runs_them_one_after_the_other(count, layers, schedule):
    ran = run(f"pp=1 micro_batches={count} schedule={schedule}", layers, REAL)
    assert ran.time_s == pytest.approx(count * (3 * layers + 0.3 + 4.5))
    assert ran.last_backward_s == pytest.approx(2 * layers + 3.2)
    assert ran.activation_bytes == pytest.approx((10 * layers + 9 + 20,))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 8), st.integers(1, 3), st.integers(1, 80))
def test_1f1b_of_equal_parts(devices, each, count):
    """(m + p - 1)(F + B); the first device keeps min(p, m) micro-batches (Narayanan et al. 2021,
    arXiv:2104.04473, 2.2.1)."""
    ran = run(f"pp={devices} micro_batches={count}", devices * each)
    assert ran.time_s == pytest.approx((count + devices - 1) * 3 * each)
    kept = [10 * each * min(devices - place, count) + 3 for place in range(devices)]
    assert list(ran.activation_bytes) == pytest.approx(kept)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(2, 4), st.integers(1, 6))
def test_interleaved_bubble_is_smaller_by_the_chunks(devices, chunks, rounds):
    """(m + (p - 1) / v)(F + B) of the whole device (2.2.2 there)."""
    count, layers = devices * rounds, devices * chunks
    text = f"pp={devices} chunks={chunks} schedule=interleaved_1f1b micro_batches={count}"
    ran = run(text, layers)
    assert ran.time_s == pytest.approx((count + (devices - 1) / chunks) * 3 * chunks)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 6), st.integers(2, 4))
def test_interleaved_memory_of_the_first_device(devices, chunks):
    """L (1 + (p - 1) / (p v)) layers of activations (Korthikanti et al. 2022, section 4.2.3)."""
    layers = devices * chunks
    text = f"pp={devices} chunks={chunks} schedule=interleaved_1f1b micro_batches={4 * devices}"
    ran = run(text, layers)
    expected = 10 * layers * (1 + (devices - 1) / (devices * chunks)) + 3
    assert ran.activation_bytes[0] == pytest.approx(expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 8), st.integers(0, 20), st.integers(1, 150), st.sampled_from([EQUAL, REAL]))
def test_steady_state_is_all_of_them_simulated_1f1b(devices, more, count, costs):
    text, layers = f"pp={devices} micro_batches={count}", devices + more
    short, whole = run(text, layers, costs), run(text, layers, costs, steady=10**9)
    assert short.time_s == pytest.approx(whole.time_s, rel=1e-9)
    assert short.activation_bytes == pytest.approx(whole.activation_bytes)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 5), st.integers(2, 4), st.integers(1, 2), st.integers(1, 25))
def test_steady_state_is_all_of_them_simulated_interleaved(devices, chunks, each, rounds):
    text = f"pp={devices} chunks={chunks} schedule=interleaved_1f1b"
    text += f" micro_batches={devices * rounds}"
    layers = devices * chunks * each
    short, whole = run(text, layers, REAL), run(text, layers, REAL, steady=10**9)
    assert short.time_s == pytest.approx(whole.time_s, rel=1e-9)
    assert short.activation_bytes == pytest.approx(whole.activation_bytes)


@pytest.mark.parametrize(("devices", "chunks", "layers"), [(4, 4, 22), (4, 2, 11), (3, 3, 13)])
def test_steady_state_of_unequal_parts_interleaved(devices, chunks, layers):
    """There the busiest device waits a little in every round: within 1 %."""
    text = f"pp={devices} chunks={chunks} schedule=interleaved_1f1b micro_batches={24 * devices}"
    short, whole = run(text, layers, REAL), run(text, layers, REAL, steady=10**9)
    assert short.time_s == pytest.approx(whole.time_s, rel=0.01)


def test_gpipe_keeps_every_micro_batch():
    for count in (1, 4, 40):
        ran = run(f"pp=2 schedule=gpipe micro_batches={count}", 4)
        assert ran.time_s == pytest.approx((count + 1) * 6)
        assert ran.activation_bytes == pytest.approx((20 * count + 3, 20 * count + 3))


@pytest.mark.parametrize("kind", ["zb_h1", "zb_h2", "zb_v"])
def test_zero_bubble_kinds_take_less_time_than_1f1b(kind):
    """And at least the work of a device; zb_h2 has next to no bubble."""
    chunks = 2 if kind == "zb_v" else 1
    plain = run("pp=4 micro_batches=16", 8)
    ran = run(f"pp=4 schedule={kind} chunks={chunks} micro_batches=16", 8)
    work = 16 * 2 * 3
    assert work - 1e-9 <= ran.time_s < plain.time_s
    if kind != "zb_h1":
        assert ran.time_s == pytest.approx(work)


def test_zero_bubble_memory_is_in_order():
    """Qi et al. 2024: ZB-H1 keeps what 1F1B keeps (and a little for W), ZB-H2 about twice."""
    peaks = {
        kind: max(run(f"pp=4 schedule={kind} micro_batches=16", 8).activation_bytes)
        for kind in ("1f1b", "zb_h1", "zb_h2")
    }
    assert peaks["1f1b"] <= peaks["zb_h1"] <= 1.25 * peaks["1f1b"]
    assert 1.5 * peaks["1f1b"] <= peaks["zb_h2"] <= 2.25 * peaks["1f1b"]


@pytest.mark.parametrize("kind", ["zb_h1", "zb_h2", "zb_v"])
@pytest.mark.parametrize("count", [20, 37])
def test_steady_state_of_zero_bubble_kinds(kind, count):
    """Their orders are searched for, so that more micro-batches may get another one: within 1 % of
    simulating all of them."""
    chunks = 2 if kind == "zb_v" else 1
    text = f"pp=4 schedule={kind} chunks={chunks} micro_batches={count}"
    short, whole = run(text, 22, REAL), run(text, 22, REAL, steady=10**9)
    assert short.time_s == pytest.approx(whole.time_s, rel=0.01)


def test_messages_between_devices_cost_time():
    with_hops = plan("pp=4 micro_batches=8")
    one = pricer(4)
    parts = stage_layers(8, 4, 1, ScheduleKind.ONE_F_ONE_B)
    shape = replace(GPT, layers=8)
    none = [(0.0, 0.0)] * 4
    costs = PartCosts(FREE, replace(LAYER, forward_s=1e-3, backward_s=2e-3), FREE)
    real = Pipeline.of(with_hops, one, shape, parts, costs, none).run()
    free = (8 + 3) * 2 * 3e-3
    assert free < real.time_s < 1.1 * free


def test_what_weights_add_is_added_to_every_micro_batch():
    ran = run("pp=1 micro_batches=5", 2, extra=(0.5, 0.25))
    assert ran.time_s == pytest.approx(5 * (6 + 0.75))


def test_a_pipeline_of_too_many_actions_is_refused():
    with pytest.raises(InvalidValueError, match=r"2,304,000 actions.*at most 2,000,000"):
        run("pp=8 micro_batches=100 vpp=4000 schedule=interleaved_1f1b", 32000)
