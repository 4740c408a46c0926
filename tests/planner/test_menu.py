"""The menu: meshes, roles, options."""

import pytest

from shardwise.ir.cluster import Cluster
from shardwise.ir.mesh import Mesh
from shardwise.ir.strategy import Recompute, Role
from shardwise.planner import menu
from shardwise.planner.candidates import options

CLUSTER = Cluster.parse("two-nodes h100-sxm node:4@nvlink cluster:2@ib")


def test_meshes_are_all_factorisations_with_the_links_that_they_cross():
    assert [str(mesh) for mesh in menu.meshes(CLUSTER)] == [
        "data=8@ib", "x0=2@nvlink data=4@ib", "x0=4@nvlink data=2@ib", "x0=8@ib",
    ]  # fmt: skip
    assert [str(m) for m in menu.meshes(Cluster.parse("one h100-sxm node:1@nvlink"))] == ["1"]


@pytest.mark.parametrize(("name", "role"), menu.ROLES.items())
def test_the_data_axis_always_splits_the_batch(name, role):
    strategy = menu.strategy(name, Mesh.parse("x0=2@l data=2@l"), Recompute.LAYER)
    assert dict(strategy.roles) == {"x0": role, "data": Role.BATCH}
    assert strategy.recompute is Recompute.LAYER
    assert strategy.executable


def test_without_a_model_axis_there_is_data_only():
    assert menu.implementations(Mesh.parse("data=4@l")) == ("data",)
    assert menu.implementations(Mesh.parse("x0=4@l")) == ("data", "tensor_sequence", "ulysses")
    assert menu.model_size(Mesh.parse("data=4@l")) == 1
    assert menu.model_size(Mesh.parse("x0=4@l data=2@l")) == 4


def test_subsets_are_all_but_the_empty_one():
    found = list(menu.subsets(("a", "b", "c")))
    assert len(found) == len(set(found)) == 7


def test_options_are_the_product():
    found = options(Mesh.parse("x0=2@l data=4@l"), ("data", "ulysses"))
    assert len(found) == len(set(found)) == 2 * 2 * 9
    degrees = {option.implementation: option.batch_degree for option in found}
    assert degrees == {"data": 8, "ulysses": 4}
    assert {option.seats for option in found} == {1, 2, 4, 8, 16, 32, 64, 128, 256}
    assert all(o.documents_per_slot == o.seats * o.batch_degree for o in found)
