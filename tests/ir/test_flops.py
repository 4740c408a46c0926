"""FLOPs and moved bytes: closed forms, and torch's own counter where it counts."""

import pytest
import sympy
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from shardwise.ir.argument import Ref
from shardwise.ir.expression import evaluate, symbol
from shardwise.ir.flops import annotated, backward_flops, flops, moved
from shardwise.ir.graph import GraphInput, OperatorGraph, SymbolRange
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import gradient_values
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.trace import trace
from tests.models.hand_written import Maker
from tests.support.traced import traced_model

B, S = symbol("B"), symbol("S")


def counted(kind, args, inputs, output, kwargs=()):
    """(flops, moved bytes) of one operator on inputs given as shapes."""
    specs = tuple(TensorSpec(shape, "float32") for shape in inputs)
    operator = Operator("y", kind, args, tuple(kwargs), (TensorSpec(output, "float32"),))
    return flops(operator, specs), moved(operator, specs)


X, W, V = Ref("x"), Ref("w"), Ref("v")


@pytest.mark.parametrize(
    ("kind", "args", "inputs", "output", "wanted"),
    [
        ("aten.linear.default", (X, W), [(B, S, 32), (48, 32)], (B, S, 48), 2 * B * S * 32 * 48),
        ("aten.addmm.default", (V, X, W), [(48,), (B, 32), (32, 48)], (B, 48), 2 * B * 32 * 48),
        ("aten.mm.default", (X, W), [(S, 32), (32, 48)], (S, 48), 2 * S * 32 * 48),
        ("aten.bmm.default", (X, W), [(B, S, 8), (B, 8, S)], (B, S, S), 16 * B * S**2),
        ("aten.matmul.default", (X, W), [(B, 4, S, 8), (8, 3)], (B, 4, S, 3), 192 * B * S),
        ("aten.baddbmm.default", (V, X, W), [(B, S, S), (B, S, 8), (B, 8, S)], (B, S, S),
         16 * B * S**2),
        ("aten.einsum.default", ("bsd,hd->bsh", (X, W)), [(B, S, 8), (3, 8)], (B, S, 3),
         48 * B * S),
        ("aten.conv1d.default", (X, W, None, (1,), (1,)), [(B, 4, S), (6, 4, 3)], (B, 6, S),
         2 * B * 6 * S * 4 * 3),
        ("aten.embedding.default", (X, W), [(100, 8), (B, S)], (B, S, 8), 0),
        ("aten.gelu.default", (X,), [(B, S, 8)], (B, S, 8), 8 * B * S),
        ("aten.add.Tensor", (X, W), [(B, S, 8), (8,)], (B, S, 8), 8 * B * S),
        ("aten.sum.dim_IntList", (X, (2,)), [(B, S, 8)], (B, S), 8 * B * S),
        ("aten.layer_norm.default", (X, (8,)), [(B, S, 8)], (B, S, 8), 8 * B * S),
        ("aten.cat.default", ((X, W), -1), [(B, S, 8), (B, S, 8)], (B, S, 16), 0),
        ("aten.transpose.int", (X, 0, 1), [(B, S)], (S, B), 0),
    ],
)  # fmt: skip
def test_closed_forms(kind, args, inputs, output, wanted):
    assert sympy.expand(counted(kind, args, inputs, output)[0] - wanted) == 0


def test_attention():
    q, kv = (B, 8, S, 16), (B, 2, S, 16)
    kind = "aten.scaled_dot_product_attention.default"
    full = counted(kind, (X, W, V, None, 0.0, False), [q, kv, kv], q)[0]
    causal = counted(kind, (X, W, V, None, 0.0, True), [q, kv, kv], q)[0]
    assert sympy.expand(full - 4 * B * 8 * S * S * 16) == 0
    assert causal == full / 2
    keys, values = (B, 8, 40, 16), (B, 8, 40, 24)
    cross = counted(kind, (X, W, V), [q, keys, values], (B, 8, S, 24))[0]
    assert sympy.expand(cross - 2 * B * 8 * S * 40 * (16 + 24)) == 0


def test_moved_bytes():
    assert counted("aten.linear.default", (X, W), [(B, S, 8), (4, 8)], (B, S, 4))[1] == (
        4 * 8 * B * S + 4 * 32 + 4 * 4 * B * S
    )
    assert counted("aten.transpose.int", (X, 0, 1), [(B, S)], (S, B))[1] == 0
    ids = TensorSpec((B, S), "int64")
    table = TensorSpec((100_000, 8), "float32")
    lookup = Operator(
        "y", "aten.embedding.default", (W, X), (), (TensorSpec((B, S, 8), "float32"),)
    )
    assert moved(lookup, (table, ids)) == 8 * B * S + 2 * 32 * B * S  # only the rows looked up


def function_flops(function, shape, **buffers):
    """FLOPs of a traced function, and those that torch's counter counts, at B=3, S=16."""
    model = Maker(function, **buffers)
    graph = trace(model, {"x": shape}, dims={"B": (1, 9), "S": (1, 64)}, contract=False).graph
    matrix = [o for o in graph.operators if "elementwise" not in o.kind]
    x = torch.randn(*(int(d) for d in graph.inputs[0].spec.at({"B": 3, "S": 16}).shape))
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model.to("meta")(x.to("meta"))
    return sum(evaluate(o.flops, {"B": 3, "S": 16}) for o in matrix), counter


def _products(self, x):
    y = torch.matmul(x, x.transpose(1, 2))
    return torch.bmm(y, x) @ self.scale.diag()


def _convolutions(self, x):
    y = F.conv1d(x.transpose(1, 2), self.filter, padding=1)
    return F.conv_transpose1d(y, self.filter) * 1.0


def test_torch_counts_the_same_products():
    ours, counter = function_flops(_products, "float32[B, S, 8]")
    matrix = 2 * 3 * (16 * 16 * 8 * 2 + 16 * 8 * 8)
    assert counter.get_total_flops() == matrix
    assert ours == matrix + 8 * 8 + 3 * 0 or ours - matrix <= 64  # diag moves 64 elements


def test_torch_counts_the_same_convolutions():
    ours, counter = function_flops(_convolutions, "float32[B, S, 8]", filter=torch.randn(8, 8, 3))
    assert ours == counter.get_total_flops()


def test_a_decoder_counts_two_flops_a_weight_and_token():
    model, traced = traced_model("llama")
    graph = traced.graph
    matrices = sum(
        module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear)
    )
    linear = sum(
        (o.flops for o in graph.operators if o.kind == "aten.linear.default"), sympy.S.Zero
    )
    assert sympy.expand(linear - 2 * matrices * B * S) == 0
    attention = [o.flops for o in graph.operators if "scaled_dot_product" in o.kind]
    width = model.config.hidden_size
    assert [sympy.expand(f - 2 * B * S**2 * width) for f in attention] == [0, 0]
    assert graph.total_flops().free_symbols == {B, S}


def test_annotated_fills_every_operator_once_more():
    spec = TensorSpec((B, 8), "float32")
    graph = OperatorGraph(
        (GraphInput("x", spec),), (), (),
        (Operator("y", "aten.relu.default", (X,), (), (spec,)),), (Ref("y"),),
        (SymbolRange("B", 1, 9),),
    )  # fmt: skip
    (operator,) = annotated(graph).operators
    assert (operator.flops, operator.moved_bytes) == (8 * B, 64 * B)
    assert annotated(annotated(graph)) == annotated(graph)


def backward(kind, inputs, output, needs, args=None):
    specs = tuple(TensorSpec(shape, "float32") for shape in inputs)
    args = args or tuple(Ref(f"i{place}") for place in range(len(inputs)))
    operator = Operator("y", kind, args, (), (TensorSpec(output, "float32"),))
    return backward_flops(operator, specs, needs)


@pytest.mark.parametrize(
    ("kind", "inputs", "output", "needs", "products"),
    [
        ("aten.linear.default", [(B, S, 8), (4, 8)], (B, S, 4), (True, True), 2),
        ("aten.linear.default", [(B, S, 8), (4, 8), (4,)], (B, S, 4), (False, True, True), 1),
        ("aten.linear.default", [(B, S, 8), (4, 8), (4,)], (B, S, 4), (False, False, True), 0),
        ("aten.addmm.default", [(4,), (S, 8), (8, 4)], (S, 4), (True, True, False), 1),
        ("aten.bmm.default", [(B, S, 8), (B, 8, S)], (B, S, S), (True, True), 2),
        ("aten.gelu.default", [(B, S, 8)], (B, S, 8), (True,), 0),
        ("aten.embedding.default", [(9, 8), (B, S)], (B, S, 8), (True, False), 0),
    ],
)
def test_a_product_has_one_in_the_backward_for_each_trained_factor(
    kind, inputs, output, needs, products
):
    one = backward(kind, inputs, output, [True] * len(inputs)) / 2
    assert sympy.expand(backward(kind, inputs, output, needs) - products * one) == 0


def test_attention_has_five_products_in_the_backward():
    kind = "aten.scaled_dot_product_attention.default"
    q, k, v = (B, 8, S, 16), (B, 2, S, 16), (B, 2, S, 24)
    found = backward(kind, [q, k, v], (B, 8, S, 24), (True, False, False))
    assert sympy.expand(found - 2 * B * 8 * S * S * (3 * 16 + 2 * 24)) == 0
    assert backward(kind, [q, k, v], (B, 8, S, 24), (False,) * 3) == 0
    causal = (Ref("q"), Ref("k"), Ref("v"), None, 0.0, True)
    assert backward(kind, [q, k, v], (B, 8, S, 24), (True,) * 3, causal) == found / 2


def _step(self, x):
    q, k, v = ((x * self.scale).unflatten(-1, (2, 4)).transpose(1, 2) for _ in range(3))
    a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
    c = F.conv1d(F.linear(a, self.matrix).transpose(1, 2), self.filter, padding=1)
    return torch.bmm(c, x @ self.matrix)


def test_torch_counts_the_same_backward():
    """All gradients are wanted but those of x and of `filter`, a buffer. On meta, attention keeps
    its probabilities, so the fused kernel computes its scores once more."""
    model = Maker(_step, filter=torch.randn(8, 8, 3))
    model.matrix = nn.Parameter(torch.randn(8, 8))
    graph = trace(
        model, {"x": "float32[B, S, 8]"}, dims={"B": (1, 9), "S": (1, 64)}, contract=False
    ).graph
    sizes = {"B": 3, "S": 16}
    wanted = gradient_values(graph)
    stated = 0
    for operator in graph.operators:
        refs = operator.refs()
        specs = tuple(graph.spec(ref) for ref in refs)
        needs = [ref.name in wanted for ref in refs]
        stated += evaluate(backward_flops(operator, specs, needs), sizes)
    with torch.device("meta"):
        x = torch.randn(3, 16, 8)
        result = model.to("meta")(x).sum()
        with FlopCounterMode(display=False) as counter:
            result.backward()
    scores = 2 * 3 * 2 * 16 * 16 * 4
    assert stated == counter.get_total_flops() + scores > 5 * scores
