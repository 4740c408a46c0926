"""Seconds against closed forms, and their limits."""

from collections import Counter
from dataclasses import replace

import pytest

from shardwise.ir.config_files import load_machine
from shardwise.ir.decoder import DecoderShape
from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Call
from shardwise.ir.rest import WHOLE
from shardwise.ir.strategy import Recompute
from shardwise.ir.training import TrainingSpec
from shardwise.planner import menu
from shardwise.planner.candidates import ActivationTable, MeshPrograms, Option, SchemeTable
from shardwise.planner.scheme import SCHEMES
from shardwise.planner.time_model import OPTIMIZER_PASSES, Pricer
from shardwise.planner.traffic import Message
from shardwise.planner.uniform_units import local_decoder
from tests.support.hand_model import HEAD, HEADS, INNER, VOCABULARY, WIDTH
from tests.support.planning import TRAINING, machine, traced_hand_model

BY_NAME = {scheme.name: scheme for scheme in SCHEMES}
SIZES = {"B": 4, "S": 64}


def pricer(ranks=2, *, shared=False, **changes):
    cluster, hardware, software = machine(ranks)
    cluster = replace(cluster, ranks_per_device=2) if shared else cluster
    return Pricer(cluster, replace(hardware, **changes), software, TRAINING)


def tables(mesh, scheme, names, one=None):
    programs = MeshPrograms.of(traced_hand_model(), Mesh.parse(mesh), TRAINING)
    activations = ActivationTable(programs, one or pricer(programs.mesh.world_size), TRAINING)
    return SchemeTable(activations, BY_NAME[scheme], names, 0)


def calls(table, name):
    return [s for s in table.traffics[name].program.steps() if isinstance(s, Call)]


def priced(one, table, name, call, sizes):
    return one._call_s(call, table.traffics[name].needs(call), sizes, table.traffics[name].mesh)


def test_a_product_costs_its_flop_and_its_bytes_forward_and_twice_backward():
    table = tables("1", "DDP", ("data",))
    one = pricer(1)
    call = next(c for c in calls(table, "data") if c.operator.name == "u0")
    forward, backward = priced(one, table, "data", call, SIZES)
    rows = SIZES["B"] * SIZES["S"]
    flops = 2 * rows * WIDTH * INNER
    moved = 8 * (rows * WIDTH + WIDTH * INNER + INNER + rows * INNER)
    expected = one.hardware.compute_s("matmul", "float64", flops) + one.hardware.memory_s(moved)
    expected /= one.software.efficiency.value
    floor = one.software.launch_floor_s.value
    assert forward == pytest.approx(max(expected, floor))
    assert backward == 2 * forward


def test_a_cut_product_moves_what_its_rank_holds():
    """The activation of a product that is cut by columns is whole on every rank."""
    one = pricer(2)
    table = tables("x0=2@loopback", "DDP", ("tensor_sequence",), one)
    call = next(c for c in calls(table, "tensor_sequence") if c.operator.name == "u0")
    sizes = {"B": 4, "S": 2048}
    rows = sizes["B"] * sizes["S"]
    flops = 2 * rows * WIDTH * INNER / 2
    moved = 8 * (rows * WIDTH + WIDTH * INNER / 2 + INNER / 2 + rows * INNER / 2)
    expected = one.hardware.compute_s("matmul", "float64", flops) + one.hardware.memory_s(moved)
    expected /= one.software.efficiency.value
    assert priced(one, table, "tensor_sequence", call, sizes)[0] == pytest.approx(expected)


def test_attention_does_five_products_backward_for_two_forward():
    table = tables("1", "DDP", ("data",))
    one = pricer(1)
    call = next(c for c in calls(table, "data") if c.operator.name == "a0")
    sizes = {"B": 4, "S": 4096}
    forward, backward = priced(one, table, "data", call, sizes)
    flops = 2 * sizes["B"] * HEADS * sizes["S"] ** 2 * HEAD  # causal: half of four
    share = one.software.efficiency.value
    roofline = one.hardware.roofline_s
    assert forward == pytest.approx(roofline("attention", "float64", flops, 0) / share, rel=0.01)
    work = 2.5 * flops
    assert backward == pytest.approx(roofline("attention", "float64", work, 0) / share, rel=0.01)


def test_work_that_ranks_share_is_divided_and_the_floor_stays():
    one = pricer(2)
    table = tables("x0=2@loopback", "DDP", ("data", "tensor_sequence"), one)
    call = next(c for c in calls(table, "tensor_sequence") if c.operator.name == "u0")
    assert call.parts == 2
    tiny = priced(one, table, "tensor_sequence", call, {"B": 2, "S": 2})[0]
    assert tiny == one.software.launch_floor_s.value


def test_one_rank_sends_nothing():
    for scheme in SCHEMES:
        table = tables("1", scheme.name, ("data",))
        traffic = table.traffics["data"]
        assert traffic.slot(SIZES, [False] * 4) == Counter()
        assert traffic.slot(SIZES, [False, True, True, False]) == Counter()
        assert traffic.step_copies() == traffic.step_end() == Counter()


def test_all_that_is_sent_is_priced_by_the_curve_of_its_kind():
    one = pricer(2)
    table = tables("x0=2@loopback", "DDP", ("tensor_sequence",), one)
    message = Message("all_gather", ("x0",), 123456)
    expected = one.hardware.collective_s("all_gather", one.cluster.span_of((0, 1)), 123456)
    assert one.messages_s(Counter({message: 3}), table.traffics["tensor_sequence"]) == (
        pytest.approx(3 * expected)
    )


@pytest.mark.parametrize("name", ["tensor_sequence", "ulysses"])
def test_with_free_messages_ranks_only_share_work(name, monkeypatch):
    """Infinite bandwidth: a slot on two ranks takes between half of one rank's and all of it."""
    monkeypatch.setattr("shardwise.ir.hardware.HardwareProfile.collective_s", lambda *_: 0.0)
    option = Option(name, Recompute.NONE, 8, 1)
    alone = Option("data", Recompute.NONE, 8, 1)
    shared = tables("x0=2@loopback", "DDP", (name,)).activations.time_s(option, 2048)
    whole = tables("1", "DDP", ("data",)).activations.time_s(alone, 2048)
    assert whole / 2 <= shared < 0.75 * whole


def test_recomputation_costs_one_forward_of_the_layers():
    table = tables("1", "DDP", ("data",))
    activations, one = table.activations, pricer(1)
    kept = activations.time_s(Option("data", Recompute.NONE, 4, 1), 64)
    again = activations.time_s(Option("data", Recompute.LAYER, 4, 1), 64)
    traffic = table.traffics["data"]
    layers = [u for u in traffic.program.units if u.name.startswith("layers")]
    forward = sum(one.calls_s(traffic, unit, SIZES)[2] for unit in layers)
    assert again - kept == pytest.approx(forward)
    whole = sum(one.calls_s(traffic, unit, SIZES)[0] for unit in layers)
    assert 0.5 * whole < forward <= whole


def test_longer_and_more_is_slower():
    table = tables("x0=2@loopback", "ZeRO-3", ("data", "tensor_sequence", "ulysses"))
    for name in table.implementations:
        for recompute in menu.RECOMPUTES:
            times = [table.price(Option(name, recompute, 2, 2), s).time_s for s in (64, 256, 1024)]
            assert times == sorted(times)
            seats = [table.price(Option(name, recompute, n, 2), 64).time_s for n in (1, 4, 16)]
            assert seats == sorted(seats)


def test_the_optimizer_moves_weights_and_states():
    one = pricer(1)
    table = tables("1", "DDP", ("data",), one)
    states = TRAINING.optimizer_kind.state_tensors
    floor = one.software.launch_floor_s.value * OPTIMIZER_PASSES * (1 + states)
    expected = 0.0
    for parameter in traced_hand_model().graph.parameters:
        elements = 1
        for length in parameter.spec.shape:
            elements *= int(length)
        moved = OPTIMIZER_PASSES * 8 * elements * (1 + states)
        expected += max(one.hardware.memory_s(moved), floor)
    assert table.fixed_s == pytest.approx(expected)


def test_reductions_wait_for_the_step_where_the_scheme_lets_them():
    ddp = tables("data=2@loopback", "DDP", ("data",))
    zero = tables("data=2@loopback", "ZeRO-2", ("data",))
    kinds = {m.kind for m in ddp.traffics["data"].step_end()}
    assert kinds == {"all_reduce"}
    assert ddp.traffics["data"].weights(ddp.traffics["data"].program.units[1], recompute=False) == (
        Counter()
    )
    sent = zero.traffics["data"].weights(zero.traffics["data"].program.units[1], recompute=False)
    assert {m.kind for m in sent} == {"reduce_scatter"}
    assert zero.parameters["layers.0.nb"].stored != WHOLE


def test_kinds_count_every_parameter():
    table = tables("x0=2@loopback data=2@loopback", "ZeRO-3", ("data", "ulysses"), pricer(4))
    kinds = table.activations.programs.kinds
    graph = traced_hand_model().graph
    assert sum(kinds.counts.values()) == len(graph.parameters)
    assert set(table.parameters) == {p.name for p in graph.parameters}
    assert kinds.first["layers.1.q"] == "layers.0.q"
    assert kinds.first["layers.0.o"] != "layers.0.q"


def test_a_large_machine_has_links_of_both_kinds():
    cluster, hardware, _ = load_machine("configs/clusters/h100-8x8.toml")
    inside = hardware.collective_s("all_gather", cluster.span_of(range(8)), 2**26)
    across = hardware.collective_s("all_gather", cluster.span_of(range(0, 64, 8)), 2**26)
    assert inside < across
    assert VOCABULARY == 48


def test_a_price_that_is_kept_is_that_of_every_call_like_it():
    """The products before and after attention have equal shapes here, and are cut by columns and by
    rows: other rounds of tiles."""
    cluster, hardware, software = load_machine("configs/clusters/h100-8x8.toml")
    training = TrainingSpec("adamw", "float32", "bfloat16", "float32", "float32")
    one = Pricer(cluster, hardware, software, training)
    shape = DecoderShape(2, 5120, 40, 40, 5120, False, 1024, bias=False)
    traffic, _ = local_decoder(shape, training, 8, False, "nvlink")
    sizes, found = {"B": 1, "S": 3000}, {}
    for call in (step for step in traffic.program.steps() if isinstance(step, Call)):
        found[call.operator.name] = one._call_s(call, traffic.needs(call), sizes, traffic.mesh)
        fresh = one._operators.seconds(call, traffic.needs(call), sizes, traffic.mesh)
        assert found[call.operator.name] == fresh, call.operator.name
    assert found["out"] != found["up"]


def test_ranks_that_share_a_device_take_turns_at_all_that_they_compute():
    """Calls, additions to accumulators and the optimizer of a rank that exchanges nothing."""
    alone, sharing = (
        tables("1", "DDP", ("data",), pricer(2, shared=shared)) for shared in (False, True)
    )
    option = Option("data", Recompute.NONE, 4, 1)
    for length in (16, 1024):
        assert sharing.price(option, length).time_s == pytest.approx(
            2 * alone.price(option, length).time_s
        )
    assert sharing.fixed_s == pytest.approx(2 * alone.fixed_s) and alone.fixed_s > 0
