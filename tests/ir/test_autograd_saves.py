"""What a unit keeps: storages once, crossing values by name, copies that are opened again."""

import pytest

from shardwise.ir.autograd_saves import SavesTable
from shardwise.ir.localise import localise
from shardwise.ir.mesh import Mesh
from shardwise.ir.program import Call, made_by
from shardwise.ir.strategy import Recompute
from shardwise.planner.menu import strategy
from shardwise.planner.sizes import number
from tests.support.hand_model import INNER, WIDTH, hand_graph

SIZES = {"B": 4, "S": 16}
ROWS = 64


def table(mesh="1", name="data"):
    graph, units = hand_graph()
    mesh = Mesh.parse(mesh)
    program = localise(graph, units, mesh, [strategy(name, mesh, Recompute.NONE)] * len(units))
    return program, SavesTable(program, lambda _: True)


def test_a_layer_saves_each_storage_once():
    program, saves = table()
    layer = saves.of(program.units[1])
    kept = 8 * ROWS * (2 + 2 * WIDTH + WIDTH + WIDTH + 4 + WIDTH + 2 * INNER)
    assert number(layer.own, SIZES) == kept  # statistics, h and q, k and v, a, lse, x, u and g
    assert {name: number(size, SIZES) for name, size in layer.shared.items()} == {
        "emb": 8 * ROWS * WIDTH
    }
    assert layer.inputs == layer.shared
    assert set(layer.roots) == {"y0"}


def test_weights_that_are_saved_are_opened_again():
    program, saves = table()
    opened = [use.parameter for use in saves.of(program.units[1]).opened]
    names = ["n", "nb", "q", "k", "v", "o", "w1", "w2"]  # biases of products are not saved
    assert opened == [f"layers.0.{name}" for name in names]
    assert saves.of(program.units[0]).opened == ()


def test_recomputation_stops_before_the_product_whose_operands_are_saved_last():
    program, saves = table()
    layer = program.units[1]
    names = [step.operator.name for step in layer.steps if isinstance(step, Call)]
    steps = layer.steps[: saves.of(layer).last + 1]
    run = [step.operator.name for step in steps if isinstance(step, Call)]
    assert run == names[: names.index("d0")]
    assert made_by(layer.steps[-1]) == ("y0",)


@pytest.mark.parametrize("name", ["data", "tensor_sequence", "ulysses"])
def test_two_ranks_keep_between_a_half_and_all(name):
    program, saves = table()
    shared_program, shared = table("x0=2@l", name)
    whole = number(saves.of(program.units[1]).own, SIZES)
    part = number(shared.of(shared_program.units[1]).own, SIZES)
    assert whole / 2 <= part < 0.75 * whole


def test_a_unit_is_followed_once():
    program, saves = table()
    assert saves.of(program.units[1]) is saves.of(program.units[1])
    assert saves.of(program.units[1]).own == saves.of(program.units[2]).own
