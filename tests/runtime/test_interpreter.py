"""The reference interpreter: values by name, sizes from inputs, clear refusals."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from shardwise.ir.argument import Ref
from shardwise.ir.errors import InvalidValueError, UnsupportedError
from shardwise.ir.graph import OperatorGraph
from shardwise.runtime.interpreter import interpret, module_values

GRAPH = OperatorGraph.parse(
    """graph 1
symbol B in 1:9
symbol S in 1:9
input x float32[B, S, 4]
input y float32[B, 4]
parameter w#a float32[3, 4] section=w[0, 0:3]
parameter w#b float32[2, 4] section=w[0, 3:5]
constant table float32[4]
operator a = aten.linear.default(%x, %w#a) -> float32[B, S, 3]
operator b = aten.linear.default(%y, %w#b) -> float32[B, 2]
operator parts = aten.split.Tensor(%x, 2, -1) -> float32[B, S, 2], float32[B, S, 2]
operator sum = aten.add.Tensor(%parts, %parts:1, alpha=2) -> float32[B, S, 2]
operator count = aten.full.default((), {B*S + 1}, dtype=int64) -> int64[]
operator cut = aten.slice.Tensor(%x, 1, 0, {S - 1}) -> float32[B, S - 1, 4]
operator scaled = aten.mul.Tensor(%cut, %table) -> float32[B, S - 1, 4]
operator same = aten.clone.default(%scaled, memory_format="torch.contiguous_format") -> \
float32[B, S - 1, 4]
output %a
output %b
output %sum
output %count
output %same
output %parts:1"""
)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 4))
        self.register_buffer("table", torch.arange(4.0))


def given(rows=2, length=3):
    return {"x": torch.randn(rows, length, 4), "y": torch.randn(rows, 4)}


def test_values_sections_sizes_and_several_outputs():
    model, inputs = Model(), given()
    values = module_values(model, GRAPH)
    a, b, total, count, same, second = interpret(GRAPH, {**values, **inputs})
    x, y = inputs.values()
    assert torch.equal(a, x @ model.w[:3].T) and torch.equal(b, y @ model.w[3:].T)
    assert torch.equal(total, x[..., :2] + 2 * x[..., 2:])
    assert (count.item(), count.dtype) == (7, torch.int64)
    assert torch.equal(same, x[:, :2] * model.table) and torch.equal(second, x[..., 2:])
    (gradient,) = torch.autograd.grad(a.sum() + b.sum(), model.w)
    assert gradient.shape == (5, 4) and bool((gradient != 0).all())


def test_constants_of_the_trace_are_given_apart():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(5, 4))

    with pytest.raises(InvalidValueError, match="the model has no table"):
        module_values(Bare(), GRAPH)
    values = module_values(Bare(), GRAPH, {"table": torch.ones(4)})
    assert set(values) == {"w#a", "w#b", "table"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": None}, "no values for y"),
        ({"y": torch.zeros(3, 4)}, r"y has shape \(3, 4\).*B = 2"),
        ({"y": torch.zeros(2, 5)}, "that size = 4"),
        ({"x": torch.zeros(2, 4)}, "x has shape"),
    ],
)
def test_wrong_inputs(change, message):
    values = {**module_values(Model(), GRAPH), **given(), **change}
    values = {name: value for name, value in values.items() if value is not None}
    with pytest.raises(InvalidValueError, match=message):
        interpret(GRAPH, values)


def test_an_operator_that_torch_lacks():
    text = str(GRAPH).replace("aten.clone.default", "aten.no_such_thing.default")
    with pytest.raises(UnsupportedError, match="no_such_thing"):
        interpret(OperatorGraph.parse(text), {**module_values(Model(), GRAPH), **given()})


def test_around_sees_every_operator_once_and_in_order():
    seen = []

    @contextmanager
    def around(operator):
        seen.append(operator.name)
        yield

    interpret(GRAPH, {**module_values(Model(), GRAPH), **given()}, around=around)
    assert seen == [operator.name for operator in GRAPH.operators]


def test_an_input_may_be_an_output():
    graph = OperatorGraph(GRAPH.inputs, (), (), (), (Ref("y"), Ref("x")), GRAPH.symbols)
    inputs = given()
    y, x = interpret(graph, inputs)
    assert y is inputs["y"] and x is inputs["x"]
