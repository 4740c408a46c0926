"""Coverage: counts by hand, a rule taken away, and what whole models split when they are placed."""

import pytest
import torch
from torch import nn

from shardwise.ir.argument import Ref
from shardwise.ir.coverage import coverage, is_factory
from shardwise.ir.expression import evaluate, symbol
from shardwise.ir.flops import annotated
from shardwise.ir.graph import GraphInput, OperatorGraph, SymbolRange
from shardwise.ir.localise import localise
from shardwise.ir.mesh import Mesh
from shardwise.ir.operator import Operator
from shardwise.ir.program import Call
from shardwise.ir.rules import RULES
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.trace import trace
from tests.support.rig import strategy
from tests.support.traced import MODELS, traced_encoder_decoder, traced_model

B, S = symbol("B"), symbol("S")
MESH = Mesh.parse("x0=2@l")
SIZES = {"B": 2, "S": 64}


def graph_of(*operators, low=1, high=128):
    """Operators on x [B, S, 8]; the last one is the output."""
    return annotated(
        OperatorGraph(
            inputs=(GraphInput("x", TensorSpec((B, S, 8), "float32")),),
            parameters=(),
            constants=(),
            operators=operators,
            outputs=(Ref(operators[-1].name),),
            symbols=(SymbolRange("B", low, 64), SymbolRange("S", 1, high)),
        )
    )


def one(name, kind, *args, out=(B, S, 8), path="layers.0", source="model.py:7"):
    return Operator(name, kind, args, (), (TensorSpec(out, "float32"),), path, source)


GELU = one("g", "aten.gelu.default", Ref("x"))


def test_by_hand():
    """Two operators of one kind without a rule, one that computes, one factory."""
    places = one("p", "aten.arange.default", S, out=(S,))
    graph = graph_of(
        places,
        GELU,
        one("h", "aten.renorm.default", Ref("g"), 2, 0, 1.0, path="layers.0.norm"),
        one("i", "aten.renorm.default", Ref("h"), 2, 0, 1.0, path="layers.1.norm"),
    )
    found = coverage(graph)
    assert (found.calls, found.covered_calls) == (3, 1)
    assert dict(found.sizes) == {"B": 1, "S": 128}
    assert (found.flops_global, found.covered_flops_global) == (3 * 1024, 1024)
    assert found.flops_share == pytest.approx(1 / 3) and found.call_share == pytest.approx(1 / 3)
    (missing,) = found.uncovered
    assert (missing.kind, missing.count, missing.has_rule) == ("aten.renorm.default", 2, False)
    assert (missing.module_path, missing.source) == ("layers.0.norm", "model.py:7")
    assert missing.flops_global == 2048
    assert str(found).splitlines() == [
        "coverage: rules can shard 33.333 % of the FLOPs and 1 of 3 operators; the others run "
        "whole on every rank:",
        "  66.667 % of FLOPs  2 x aten.renorm.default (no rule): layers.0.norm, model.py:7",
    ]


def test_one_line_when_all_is_covered():
    found = coverage(graph_of(GELU))
    assert str(found) == "coverage: rules can shard all of 1 operators"
    assert found.flops_share == found.call_share == 1.0


def test_less_than_all_never_prints_as_all():
    operators = [
        one(f"g{i}", "aten.gelu.default", Ref("x" if i == 0 else f"g{i - 1}")) for i in range(40)
    ]
    last = one("z", "aten.renorm.default", Ref("g39"), 2, 0, 1.0)
    big = graph_of(*operators, last, high=None)
    assert "97.561 %" in str(coverage(big)) and dict(coverage(big).sizes)["S"] == 1024
    none = one("z", "aten.bincount.default", Ref("x"), out=(1,))
    assert "100.000 %" not in str(coverage(graph_of(*operators, none)))


def test_only_the_worst_are_printed():
    operators = [
        one(f"h{i}", "aten.renorm.default", Ref("x"), 2, 0, 1.0, source=f"model.py:{i}")
        for i in range(8)
    ]
    lines = str(coverage(graph_of(*operators))).splitlines()
    assert len(lines) == 7 and lines[-1] == "  and 3 more places"


def test_the_largest_work_comes_first():
    small = one("s", "aten.renorm.default", Ref("x"), 2, 0, 1.0, source="small.py:1")
    large = one("l", "aten.cdist.default", Ref("x"), Ref("x"), out=(B, S, S), source="large.py:1")
    places = [item.source for item in coverage(graph_of(small, large)).uncovered]
    assert places == ["large.py:1", "small.py:1"]
    assert [u.source for u in coverage(graph_of(small, large), {"S": 4}).uncovered] == places[::-1]


def test_a_rule_that_keeps_its_operator_whole_is_told_apart():
    """A mean cannot be cut: means of parts are no mean of the whole where parts differ."""
    operator = Operator(
        "m", "aten.mse_loss.default", (Ref("x"), Ref("x"), 1), (), (TensorSpec((), "float32"),)
    )
    (found,) = coverage(graph_of(operator)).uncovered
    assert found.has_rule and "kept whole by its rule" in str(found)


def test_nothing_to_cut_is_no_gap():
    total = one("s", "aten.sum.default", Ref("x"), out=())
    graph = graph_of(total, one("d", "aten.neg.default", Ref("s"), out=()))
    assert coverage(graph).uncovered == ()


def test_factories():
    assert is_factory(one("p", "aten.arange.default", S, out=(S,)))
    assert is_factory(one("p", "aten.zeros_like.default", Ref("x")))
    assert is_factory(one("p", "aten.new_full.default", Ref("x"), (S,), 1.0, out=(S,)))
    assert not is_factory(GELU)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_what_a_placed_model_splits_is_covered(name):
    """`localise` under every strategy is the judge: no operator that it splits is called a gap."""
    _, traced = traced_model(name)
    check(traced)


def test_an_encoder_decoder_is_covered():
    """Its tables of relative positions, 1 % of the work here, are made whole on every rank."""
    sizes = {"B": 2, "S_src": 64, "S_tgt": 64}
    check(traced_encoder_decoder()[1], sizes=sizes, split_share=0.98)


def check(traced, sizes=SIZES, split_share=0.995):
    graph = traced.graph
    split = set()
    for name in ("data", "tensor_sequence", "ulysses"):
        strategies = [strategy(name, MESH)] * len(traced.units)
        local = localise(graph, traced.units, MESH, strategies)
        calls = [step for step in local.steps() if isinstance(step, Call)]
        split |= {call.operator.name for call in calls if call.parts > 1}
    found = traced.coverage(sizes)
    counted = [operator for operator in graph.operators if not is_factory(operator)]
    gaps = {(item.kind, item.source) for item in found.uncovered}
    assert {(graph.operator(n).kind, graph.operator(n).source) for n in split}.isdisjoint(gaps)
    assert found.calls == len(counted)
    assert found.calls - found.covered_calls == sum(item.count for item in found.uncovered)
    total = sum(evaluate(operator.flops, sizes) for operator in counted)
    assert found.flops_global == pytest.approx(total)
    done = sum(evaluate(o.flops, sizes) for o in counted if o.name in split)
    assert done >= split_share * total and found.flops_share >= done / total
    assert found.call_share >= 0.95


def test_a_rule_that_is_gone_is_missed(monkeypatch):
    _, traced = traced_model("llama")
    linears = [o for o in traced.graph.operators if o.kind == "aten.linear.default"]
    before = traced.coverage(SIZES)
    assert before.uncovered == ()
    monkeypatch.delitem(RULES, "aten.linear.default")
    after = traced.coverage(SIZES)
    lost = sum(evaluate(operator.flops, SIZES) for operator in linears)
    assert after.flops_share == pytest.approx(1 - lost / before.flops_global)
    assert after.calls - after.covered_calls == len(linears)
    assert {item.kind for item in after.uncovered} == {"aten.linear.default"}
    assert {item.source.split(":")[0] for item in after.uncovered} == {"modeling_llama.py"}


class Sorts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x):
        return torch.renorm(self.up(x), 2, 0, 1.0).square().mean()


def test_a_traced_gap_names_module_and_line():
    traced = trace(Sorts(), {"x": "float32[B, 8]"}, dims={"B": (2, 64)})
    (found,) = traced.coverage().uncovered
    assert found.kind == "aten.renorm.default" and found.source.startswith("test_coverage.py:")
