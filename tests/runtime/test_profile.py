"""Profiles: what figures become, that prices give the figures back, and a measurement of all."""

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.ir.cluster import Cluster
from shardwise.ir.config_files import load_hardware, load_software
from shardwise.ir.config_write import hardware_toml, software_toml
from shardwise.ir.curve import Constant
from shardwise.ir.errors import InvalidValueError, MismatchError
from shardwise.ir.link import COLLECTIVES
from shardwise.ir.program import Use
from shardwise.ir.span import Span
from shardwise.ir.training import TrainingSpec
from shardwise.planner.time_model import Pricer
from shardwise.planner.traffic import Traffic
from shardwise.runtime import profile_command, profile_samples
from shardwise.runtime.profile_build import (
    Measured,
    hardware_profile,
    seconds_of,
    software_profile,
)
from shardwise.runtime.profile_command import cluster_of_ranks, measure, profile
from shardwise.runtime.profile_families import FAMILIES
from shardwise.runtime.profile_floor import KEY as FLOOR
from shardwise.runtime.profile_floor import SmallDecoder, small_executor
from shardwise.runtime.profile_links import MOVES, link_groups, rings
from shardwise.runtime.profile_samples import (
    Case,
    Figure,
    Group,
    Planned,
    Session,
    Stopwatch,
    at_quantile,
)
from shardwise.runtime.profile_work import PRODUCTS, _linear, product_bytes
from tests.support.planning import machine
from tests.support.training_rig import alone

CPU = torch.device("cpu")
TWO = Cluster.parse("c h machine:2@loopback")
SECONDS = st.floats(1e-6, 1.0)


def figures_of(seconds):
    """Figures of points of every kind, from a function of no argument that draws seconds."""
    flops = [float(one) for one in product_bytes("float32")][:5]
    sizes = (1e4, 1e5, 1e6)
    keys = {"matmul.float32": flops, FLOOR: [1.0]}
    for key in ("attention.d16.float32", "attention.d64.float32", "attention.backward.d64.float32"):
        keys[key] = [3e4, 2e6]
    for key in ("memory", "memory.silu", "memory.silu.backward"):
        keys[key] = sizes
    for kind in ("all_reduce", "all_gather"):
        keys[f"loopback {kind} 2"] = sizes
    return {key: {x: Figure(seconds(), 0.1, 20) for x in xs} for key, xs in keys.items()}


def measured_of(figures, **changes):
    one = Measured(
        "mine", "cpu", TWO, figures, ("float32",), 0.5, 0.0, "2 cores of X", "2.13.0", "2026-11-29",
        10**9, 1e8, None, None,
    )  # fmt: skip
    return replace(one, **changes)


@settings(max_examples=40)
@given(st.data())
def test_prices_give_the_figures_back(data):
    figures = figures_of(lambda: data.draw(SECONDS))
    made = hardware_profile(measured_of(figures))
    best = made.memory_bandwidth.value
    for key, points in figures.items():
        for x, seconds in seconds_of(points, shared=False).items():
            if key.startswith("memory"):
                least = x / best  # a backward may beat the fastest forward, and a share is below 1
                expected = max(seconds, least)
                assert made.memory_s(x, key) == pytest.approx(expected, rel=1e-3)
            elif key.startswith("attention"):
                kind = key.removesuffix(".float32")
                assert made.compute_s(kind, "float32", x) == pytest.approx(seconds, rel=1e-3)
            elif key.startswith("matmul"):
                memory_s = made.memory_s(product_bytes("float32")[x])
                compute_s = made.compute_s("matmul", "float32", x)
                expected = max(seconds - memory_s, seconds / 2)
                assert compute_s == pytest.approx(expected, rel=2e-3)
            elif key.startswith("loopback"):
                kind = key.split(" ")[1]
                span = Span("loopback", 2)
                found = made.link("loopback").seconds(kind, span, x)
                assert found == pytest.approx(seconds, rel=1e-3)
    assert made.curve("attention") == made.curve("attention.d64")
    assert made.curve("attention.backward") == made.curve("attention.backward.d64")


def test_a_written_profile_reads_back(tmp_path):
    values = iter(np.geomspace(1e-5, 1e-3, 99).tolist())
    measured = measured_of(figures_of(lambda: next(values)))
    hardware, software = hardware_profile(measured), software_profile(measured, "torch-mine")
    (tmp_path / "h.toml").write_text(hardware_toml(hardware))
    (tmp_path / "s.toml").write_text(software_toml(software))
    assert load_hardware(tmp_path / "h.toml") == hardware
    assert load_software(tmp_path / "s.toml") == software
    assert software.version_range == "torch>=2.13,<2.14"
    source = hardware.curve("memory.silu").source
    assert source == (
        "measured, memory silu, median of 20 repeats, spread 10 %, 2026-11-29, 2 cores of X, "
        "torch 2.13.0"
    )
    assert not hardware.memory_bytes.is_assumed and hardware.link("loopback").overlap.is_assumed
    shared = replace(measured, quantile=0.2, shared=0.5)
    assert "fastest 20 % of 20 repeats" in hardware_profile(shared).curve("memory").source
    assert "other work had 50 % of a core" in hardware_profile(shared).curve("memory").source


@given(st.dictionaries(st.floats(1, 1e9), SECONDS, min_size=1, max_size=9))
def test_on_a_shared_machine_more_work_bounds_less(points):
    figures = {x: Figure(s, 0.0, 1) for x, s in points.items()}
    for x, s in seconds_of(figures, shared=True).items():
        assert s == min(value for at, value in points.items() if at >= x)


@given(st.lists(SECONDS, min_size=1, max_size=6))
def test_curves_are_the_closest_that_never_fall(seconds):
    figures = {float(i): Figure(s, 0.0, 1) for i, s in enumerate(seconds)}
    found = np.log(list(seconds_of(figures, shared=False).values()))
    assert (np.diff(found) >= -1e-12).all()
    logs, best = np.log(seconds), np.inf
    for cuts in range(2 ** (len(logs) - 1)):  # every way to pool neighbours
        ends = [i + 1 for i in range(len(logs) - 1) if cuts >> i & 1]
        means = [np.full(len(part), part.mean()) for part in np.split(logs, ends)]
        curve = np.concatenate(means)
        if (np.diff(curve) >= -1e-12).all():
            best = min(best, ((curve - logs) ** 2).sum())
    assert ((found - logs) ** 2).sum() == pytest.approx(best, abs=1e-9)


@given(st.lists(SECONDS, min_size=1, max_size=30), st.sampled_from((0.2, 0.5)))
def test_figures_are_quantiles(values, quantile):
    one = Figure.of(values, quantile)
    assert one.seconds == pytest.approx(np.quantile(values, quantile))
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    assert one.spread == pytest.approx((high - low) / middle, abs=1e-9)
    assert one.repeats == len(values) and at_quantile(sorted(values), 1.0) == max(values)


def add_own_samples(context):
    session = Session(context.communicator, CPU, sharing=2)
    assert session.computes == (context.rank % 2 == 0)
    session.samples.seconds["a", 1.0] = [0.1 * (context.rank + 1)] * 3
    if context.rank == 0:
        session.samples.seconds["b", 2.0] = [5.0, 1.0]
    return session.figures(0.5)


def test_the_slowest_rank_counts(simulated_ranks):
    for found in simulated_ranks(3).run(add_own_samples):
        assert found == {
            "a": {1.0: Figure(pytest.approx(0.3), pytest.approx(0.0), 3)},
            "b": {2.0: Figure(pytest.approx(3.0), pytest.approx(2 / 3), 2)},
        }


def test_cases_are_repeated_in_turns_until_one_takes_too_long():
    order = []

    class Clock:
        def seconds(self, run, times=1, before=None, waits=False):
            run()
            return {1: 1e-3, 2: 2e-3, 3: 1.0, 4: 1.0}[order[-1]] * times

    cases = tuple(
        Planned("k", float(i), lambda i=i: Case("k", float(i), lambda: order.append(i), 2))
        for i in (1, 2, 3, 4)
    )
    session = Session(alone(), CPU, passes=2, repeats=3, longest_s=0.5, budget_s=1.2)
    session.stopwatch = Clock()
    titles = []
    session.run([Group("g", cases)], titles.append)
    once = [1, 1, 2, 2, 3, 3, 1, 2, 3, 1, 2, 1, 2]  # pilots, then turns; 4 is never built
    assert order == once * 2 and titles == ["g", "g"]
    assert session.samples.seconds["k", 1.0] == [5e-4] * 6
    assert session.samples.seconds["k", 3.0] == [0.5] * 2


def test_what_comes_before_a_call_is_not_timed(monkeypatch):
    now, order = [0.0], []

    def spend(what, seconds):
        order.append(what)
        now[0] += seconds

    monkeypatch.setattr(profile_samples.time, "thread_time", lambda: now[0])
    watch = Stopwatch(CPU)
    total = watch.seconds(lambda: spend("run", 1.0), 3, lambda: spend("before", 50.0))
    assert order == ["before", "run"] * 3 and total == 3.0


def test_a_slow_moment_of_the_core_does_not_show_in_the_figures():
    session = Session(alone(), CPU)
    work_s, pace = 2e-3, (1.0, 3.0, 1.0, 0.5, 1.0)
    for one in pace:
        session.yardstick.seconds.append(1e-3 * one)
        session.samples.add(Case("k", 1.0, object), work_s * one, 1e-3 * one)
        session.samples.add(Case("waits", 1.0, object), work_s * one)
    figures = session.figures(0.5)
    assert figures["k"][1.0] == Figure(pytest.approx(work_s), pytest.approx(0.0), 5)
    assert figures["waits"][1.0].seconds == work_s and figures["waits"][1.0].spread == 0
    assert session.figures(1.0)["waits"][1.0].seconds == 3 * work_s


@pytest.mark.parametrize("waits", [False, True])
def test_what_waits_for_other_ranks_goes_by_the_clock(waits):
    slept_s = Stopwatch(CPU).seconds(lambda: time.sleep(0.05), 2, waits=waits)
    assert (slept_s >= 0.1) is waits


@pytest.mark.parametrize("name", FAMILIES)
def test_operators_are_what_their_specs_say(name):
    for one in FAMILIES[name]("float32", 1024):
        tensors = one.operands(CPU)
        result = one.run(tensors)
        (spec,) = one.operator.outputs
        assert (tuple(result.shape), str(result.dtype)) == (spec.shape, f"torch.{spec.dtype}")
        inputs = [x for x in tensors if x.requires_grad]
        gradients = torch.autograd.grad(result, inputs, torch.randn_like(result))
        assert [g.shape for g in gradients] == [x.shape for x in inputs]
        written = result.numel() * result.element_size()
        assert one.forward_bytes >= written and one.backward_bytes > 0


def test_products_have_the_flop_of_their_shape():
    for rows, before, after in PRODUCTS:
        one = _linear("float32", rows, before, after)
        assert one.forward_flops == 2 * rows * before * after
        assert one.backward_flops == 2 * one.forward_flops
        moved = 4 * (rows * before + before * after + rows * after)
        assert product_bytes("float32")[float(one.forward_flops)] == one.forward_bytes == moved
    flops = list(product_bytes("bfloat16"))
    assert flops == sorted(set(flops))


CLUSTERS = ["c h machine:2@a", "c h machine:4@a", "c h node:2@a cluster:2@b", "c h node:6@a"]


@pytest.mark.parametrize("text", CLUSTERS)
def test_rings_lie_over_their_link(text):
    cluster = Cluster.parse(text)
    found = list(rings(cluster))
    assert {ring.link for ring in found} == {level.link for level in cluster.levels}
    for ring in found:
        mesh = ring.mesh(cluster.world_size)
        groups = mesh.groups(("x0",))
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.world_size))
        for group in groups:
            assert cluster.span_of(group) == Span(ring.link, ring.size)


def send_all(context, text):
    """Message bytes that were recorded, and that the cases say, by key."""
    session = Session(context.communicator, CPU)
    found = []
    for group in link_groups(session, Cluster.parse(text)):
        for planned in group.cases[:3]:
            case = planned.build()
            with context.communicator.recording() as log:
                case.run()
            found.append((case.key, case.x, [(r.kind, r.message_bytes) for r in log]))
    return found


@pytest.mark.parametrize("text", CLUSTERS[:3])
def test_messages_are_as_long_as_their_cases_say(simulated_ranks, text):
    cluster = Cluster.parse(text)
    kinds = set()
    for answers in simulated_ranks(cluster.world_size).run(send_all, text):
        for key, x, records in answers:
            kind = key.split(" ")[1]
            assert records == [(kind, x)], (key, records)
            kinds.add(kind)
    assert kinds == {*MOVES, "broadcast"}


def test_the_small_decoder_runs_as_torch_runs_it():
    torch.manual_seed(0)
    executor, count = small_executor(CPU)
    ids = torch.arange(12).unsqueeze(0) % 7
    loss, weight = executor.run(0, {"input_ids": ids, "labels": ids})
    torch.manual_seed(0)
    expected = SmallDecoder()(ids, ids)
    assert float(loss.detach() / weight) == pytest.approx(float(expected.detach()), rel=1e-5)
    # prices count the floor as often: at a second each nothing else shows
    cluster, hardware, software = machine(1)
    floor = replace(software, launch_floor_s=Constant(1.0, "s", "a test"))
    pricer = Pricer(cluster, hardware, floor, TrainingSpec())
    traffic = Traffic(executor.buckets[0].local, {}, TrainingSpec())
    priced = sum(
        sum(pricer.calls_s(traffic, unit, {"B": 1, "S": 12})[:2]) for unit in traffic.program.units
    )
    uses = sum(isinstance(step, Use) for step in traffic.program.steps())
    assert count == priced + uses


FEW = ("launch floor", "matmul float32", "attention float32 head size 64", "memory", "memory silu")


def few(group):
    """A handful of groups, and those of links."""
    return (
        group.title in FEW
        or " of " in group.title
        or group.title == "attention.backward float32 head size 64"
    )


def measure_few(context):
    limits = {"longest_s": 0.001, "budget_s": 0.005}
    return measure(
        context.communicator, "mine", "torch-mine", passes=1, repeats=2, keep=few, **limits
    )


def test_two_ranks_measure_a_profile(real_ranks, monkeypatch):
    first, second = real_ranks(2).run(measure_few)
    assert first == second  # every figure is agreed
    hardware, software, pace_s = first
    assert 0 < pace_s < 0.1
    assert hardware.device == software.device == "cpu"
    (link,) = hardware.links
    assert link.name == "loopback"
    assert {(item.kind, item.group_size) for item in link.collectives} == {
        (kind, 2) for kind in COLLECTIVES
    }
    assert 0 < software.launch_floor_s.value < 0.1
    assert hardware.context_bytes.value > 10**7 and hardware.memory_bytes.value > 10**8
    assert hardware.curve("attention.backward.d64") is not hardware.curve("attention.d64")


def test_one_rank_has_no_links_to_measure():
    limits = {"longest_s": 0.001, "budget_s": 0.005}
    hardware, *_ = measure(alone(), "mine", "s", passes=1, repeats=1, keep=few, **limits)
    (link,) = hardware.links
    assert link.collectives == () and hardware.group_bytes.is_assumed
    with pytest.raises(MismatchError, match="has 2 ranks and 1 run"):
        measure(alone(), "mine", "s", cluster=TWO, keep=few)


def test_ranks_of_torchrun_make_a_cluster(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert str(cluster_of_ranks(alone(), CPU, "h")) == "profiled h machine:1@loopback"


def test_a_file_whose_name_is_no_profile_is_refused(tmp_path):
    with pytest.raises(InvalidValueError, match="named after its file"):
        profile(tmp_path / "My Machine.toml")


@pytest.mark.parametrize("place", ["mine.toml/", "/proc/nothing/mine.toml"])
def test_a_file_that_can_not_be_written_is_refused_before_measuring(tmp_path, monkeypatch, place):
    monkeypatch.setattr(profile_command, "connected", lambda _: pytest.fail("measures"))
    output = tmp_path / place
    if place.endswith("/"):
        output.mkdir()
    with pytest.raises(InvalidValueError, match="cannot be written"):
        profile(output)


def test_no_empty_profile_stays_where_measuring_is_broken_off(tmp_path, monkeypatch):
    def breaks(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(profile_command, "connected", breaks)
    with pytest.raises(KeyboardInterrupt):
        profile(tmp_path / "new" / "mine.toml")
    assert list(tmp_path.rglob("*.toml")) == []
