"""Units that are priced once for all that are like them."""

from dataclasses import replace

import pytest

from shardwise.ir.mesh import Mesh
from shardwise.ir.strategy import Recompute
from shardwise.planner import menu
from shardwise.planner.candidates import ActivationTable, MeshPrograms, Option, SchemeTable
from shardwise.planner.scheme import SCHEMES
from shardwise.planner.time_model import Pricer
from tests.support.planning import TRAINING, machine, traced_hand_model

MESH = Mesh.parse("x0=2@loopback data=1@loopback")


@pytest.mark.parametrize("frozen", ["layers.0.*", "layers.2.*"])
@pytest.mark.parametrize("name", menu.implementations(MESH))
def test_layers_that_train_are_not_priced_as_frozen_ones(frozen, name):
    """Whichever of the layers comes first."""
    globs = (*(f"layers.{i}.*" for i in range(3) if f"layers.{i}.*" != frozen), "table")
    training = replace(TRAINING, trainable=globs)
    programs = MeshPrograms.of(traced_hand_model(3), MESH, training)
    cluster, hardware, software = machine(2)
    pricer = Pricer(cluster, hardware, software, training)
    table = SchemeTable(ActivationTable(programs, pricer, training), SCHEMES[0], (name,), 0)
    option = Option(name, Recompute.NONE, 4, 1)
    traffic, sizes = table.traffics[name], {"B": 4, "S": 64}
    each = sum(
        pricer.activations_s(traffic, unit, sizes, recompute=False)
        + pricer.weights_s(traffic, unit, recompute=False)
        for unit in traffic.program.units
    )
    assert table.price(option, 64).time_s == pytest.approx(each)
    assert len(programs.groups[name]) == 4  # embedding, layers that train, the frozen one, head


def test_layers_with_other_options_of_an_operator_are_apart():
    traced = traced_hand_model(3)
    operators = [
        replace(one, kwargs=(("approximate", "tanh"),)) if one.name == "g1" else one
        for one in traced.graph.operators
    ]
    other = replace(traced, graph=replace(traced.graph, operators=tuple(operators)))
    assert MeshPrograms.of(traced, MESH, TRAINING).like["data"] == (0, 1, 1, 1, 4)
    assert MeshPrograms.of(other, MESH, TRAINING).like["data"] == (0, 1, 2, 1, 4)
