"""Units tile the operators; equal layers share a template."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shardwise.ir.argument import Ref
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.graph import GraphInput, OperatorGraph
from shardwise.ir.operator import Operator
from shardwise.ir.template import check_cover
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.trace import trace
from shardwise.ir.units import find_templates, find_units, layer_of
from tests.models import hand_written
from tests.support.traced import DIMS, TEXT, traced_model

SPEC = TensorSpec((4,), "float32")


def graph_of(*paths):
    """A chain of one operator per module path."""
    operators = [
        Operator(f"o{i}", "aten.relu.default", (Ref(f"o{i - 1}" if i else "x"),), (), (SPEC,), path)
        for i, path in enumerate(paths)
    ]
    return OperatorGraph(
        (GraphInput("x", SPEC),), (), (), tuple(operators), (Ref(operators[-1].name),)
    )


def names(*paths):
    graph = graph_of(*paths)
    units = find_units(graph)
    check_cover(graph, units)
    return [f"{unit.name}={unit.operators[0]}:{unit.operators[1]}" for unit in units]


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("model.layers.0.self_attn.q_proj", "model.layers.0"),
        ("layers.11", "layers.11"),
        ("h.3.mlp.experts.2", "h.3"),
        ("3", "3"),
        ("layer1.0.conv1", "layer1.0"),
        ("lm_head", ""),
        ("norm2", ""),
        ("", ""),
    ],
)
def test_layer_of_a_path(path, layer):
    assert layer_of(path) == layer


def test_prologue_layers_and_epilogue():
    assert names("wte", "h.0.a", "h.0", "h.1.a", "h.1", "norm", "") == [
        "embed=0:1", "h.0=1:3", "h.1=3:5", "head=5:7",
    ]  # fmt: skip


def test_what_stands_between_layers_of_a_list_belongs_to_the_one_before():
    assert names("h.0", "", "h.1", "", "h.2") == ["h.0=0:2", "h.1=2:4", "h.2=4:5"]


def test_between_two_lists_is_a_bridge():
    assert names("e.0", "e.1", "norm", "d_in", "d.0", "d.1", "head") == [
        "e.0=0:1", "e.1=1:2", "bridge=2:4", "d.0=4:5", "d.1=5:6", "head=6:7",
    ]  # fmt: skip


def test_no_layers_is_one_unit():
    assert names("a", "b.c", "") == ["model=0:3"]


def test_attributes_with_numbers_are_layers_where_there_are_several():
    assert names("stem", "block1.a", "block1", "block2.a", "fc") == [
        "embed=0:1", "block1=1:3", "block2=3:4", "head=4:5",
    ]  # fmt: skip
    assert names("conv1", "relu") == ["model=0:2"]


def test_a_layer_that_is_run_twice_is_one_stretch():
    """Weights shared between two places of the model cannot be cut apart by path."""
    assert names("h.0", "h.1", "h.0", "h.2") == ["h.0=0:3", "h.2=3:4"]


def test_names_that_are_taken():
    assert names("x", "embed.0", "embed.1") == ["embed=0:1", "embed.0=1:2", "embed.1=2:3"]
    assert names("a.0", "q", "b.0", "r", "c.0") == [
        "a.0=0:1", "bridge=1:2", "b.0=2:3", "bridge_2=3:4", "c.0=4:5",
    ]  # fmt: skip


def test_empty_graph():
    graph = OperatorGraph((GraphInput("x", SPEC),), (), (), (), (Ref("x"),))
    with pytest.raises(InvalidValueError, match="no operators"):
        find_units(graph)


PATHS = ["", "wte", "h.0", "h.0.a", "h.1", "h.1.b", "h.2", "d.0", "d.1", "norm", "block1", "block2"]


@given(st.lists(st.sampled_from(PATHS), min_size=1, max_size=12))
def test_units_always_tile(paths):
    graph = graph_of(*paths)
    units = find_units(graph)
    check_cover(graph, units)
    templates = find_templates(graph, units)
    assert sorted(name for t in templates for name in t.units) == sorted(u.name for u in units)


def runs(traced):
    check_cover(traced.graph, traced.units)
    return ",".join(map(str, traced.fingerprint.units))


def test_layers_of_models_share_templates():
    assert runs(traced_model("llama")[1]) == "embed,model.layers*2,head"
    assert runs(traced_model("gpt2")[1]) == "embed,transformer.h*2,head"
    traced = traced_model("hand-written")[1]
    assert runs(traced) == "embed,blocks*2,head"
    layers = [unit for unit in traced.units if unit.name.startswith("blocks")]
    assert [unit.module_path for unit in layers] == ["blocks.0", "blocks.1"]
    assert {t.name: t.count for t in traced.templates} == {"embed": 1, "blocks": 2, "head": 1}


def test_layers_that_differ_do_not():
    model = hand_written.GPT(3)
    model.blocks[1].down = nn.Linear(4 * hand_written.WIDTH, hand_written.WIDTH, bias=False)
    model.blocks[2].norm1.requires_grad_(False)
    assert runs(trace(model, TEXT, dims=DIMS)) == "embed,blocks,blocks#2,blocks#3,head"


def test_fingerprints_know_the_same_model_again():
    one = traced_model("hand-written")[1].fingerprint
    two = trace(hand_written.GPT(2).double(), TEXT, dims=DIMS, name="hand-written").fingerprint
    assert one == two
    narrow = trace(hand_written.GPT(2), TEXT, dims=DIMS, name="hand-written").fingerprint
    assert one.differences(narrow)
