"""Fused weights become sections; the graph computes the same and gradients reach the fused
weight."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from shardwise.ir.passes_sections import SplitFused
from shardwise.ir.trace import trace
from shardwise.runtime.interpreter import interpret
from tests.support.traced import traced_model, values_of


class Fused(nn.Module):
    """One linear of width 12 from 8, and a function of its result."""

    def __init__(self, use, bias=True, tied=False):
        super().__init__()
        self.layer, self.use = nn.Linear(8, 12, bias=bias), use
        if tied:
            self.other = nn.Linear(8, 12)
            self.other.weight = self.layer.weight

    def forward(self, x):
        return self.use(self, self.layer(x)).square().mean()


class Conv1D(nn.Module):
    """GPT-2's linear: addmm with the weight the other way round."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 12)), nn.Parameter(torch.randn(12))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, 8), self.weight).view(*x.shape[:2], 12)


def traced_of(use, **options):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Fused(use, **options).double()
    if options.get("bias") == "conv":
        model.layer = Conv1D().double()
    inputs = {"x": "float64[B, S, 8]"}
    return model, trace(model, inputs, dims={"B": (1, 9), "S": (1, 64)})


def chunk(self, y):
    gate, up = y.chunk(2, -1)
    return F.silu(gate) * up


def split(self, y):
    a, b, c = y.split([6, 4, 2], dim=2)
    return torch.cat([c, b, a], -1)


def slices(self, y):
    return y[..., :5] * y[..., 7:] + y[..., 5:7].sum(-1, keepdim=True) + y[..., :5]


def views(self, y):
    a, b = y.reshape(-1, 12).split(6, dim=-1)
    return a * b


def attention(self, y):
    q, k, v = y.split(4, dim=-1)
    q, k, v = (part.unflatten(-1, (2, 2)).transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(k * 2, q + 1, v)


SECTIONS = {
    chunk: {"0": (0, 6), "1": (6, 12)},
    split: {"0": (0, 6), "1": (6, 10), "2": (10, 12)},
    slices: {"0": (0, 5), "1": (5, 7), "2": (7, 12)},
    views: {"0": (0, 6), "1": (6, 12)},
    attention: {"k": (0, 4), "q": (4, 8), "v": (8, 12)},  # by argument, not by place
}


@pytest.mark.parametrize("bias", [True, False, "conv"])
@pytest.mark.parametrize("use", SECTIONS, ids=lambda use: use.__name__)
def test_sections(use, bias):
    model, traced = traced_of(use, bias=bias)
    graph = traced.graph
    stated = {
        p.name.partition("#")[2]: (p.section.start, p.section.stop)
        for p in graph.parameters
        if p.name.startswith("layer.weight")
    }
    assert stated == SECTIONS[use]
    assert {p.section.dim for p in graph.parameters} <= {0, 1}
    assert not {"aten.split.Tensor", "aten.chunk.default"} & {o.kind for o in graph.operators}
    products = [
        o for o in graph.operators if o.kind in ("aten.linear.default", "aten.addmm.default")
    ]
    assert len(products) == len(stated)
    batch = {"x": torch.randn(2, 5, 8).double()}
    total, weight = interpret(graph, values_of(model, traced, batch))
    parameters = list(model.parameters())
    ours = torch.autograd.grad(total / weight, parameters)
    theirs = torch.autograd.grad(model(**batch), parameters)
    torch.testing.assert_close(total / weight, model(**batch), rtol=1e-13, atol=1e-13)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def read_whole(self, y):
    return y.chunk(2, -1)[0] + y.sum(-1, keepdim=True)


def overlapping(self, y):
    return y[..., :7] * y[..., 5:]


def not_all(self, y):
    return y[..., :5] * y[..., 5:10]


def one_piece(self, y):
    return y[..., :12] * 2


def along_another_dim(self, y):
    a, b = y.transpose(1, 2).chunk(2, 1)
    return a * b


def regrouped(self, y):
    a, b = y.unflatten(-1, (3, 4)).chunk(2, -1)
    return a * b


def strided(self, y):
    return y[..., ::2] * y[..., 1::2]


@pytest.mark.parametrize(
    "use", [read_whole, overlapping, not_all, one_piece, along_another_dim, regrouped, strided],
    ids=lambda use: use.__name__,
)  # fmt: skip
def test_other_readers_leave_it_fused(use):
    inputs = {"x": "float64[B, S, 8]"}
    model = Fused(use).double()
    graph = trace(model, inputs, dims={"B": (1, 9), "S": (2, 64)}).graph
    assert {p.name for p in graph.parameters} == {"layer.weight", "layer.bias"}
    assert SplitFused().apply(graph) is graph


def test_tied_and_shared_weights_stay_fused():
    def twice(self, y):
        return chunk(self, y) + chunk(self, self.layer(y[..., :8]))

    for use, options in ((chunk, {"tied": True}), (twice, {})):
        model = Fused(use, **options).double()
        graph = trace(model, {"x": "float64[B, S, 8]"}, dims={"B": (1, 9), "S": (1, 64)}).graph
        assert "layer.weight" in {p.name for p in graph.parameters}


def test_models_name_query_key_and_value():
    for name, path in (("gpt2", "transformer.h.1.attn.c_attn"), ("hand-written", "blocks.1.qkv")):
        parameters = {p.name: p for p in traced_model(name)[1].graph.parameters}
        for number, letter in enumerate("qkv"):
            for kind in ("weight", "bias"):
                section = parameters[f"{path}.{kind}#{letter}"].section
                assert section.source == f"{path}.{kind}"
                assert (section.start, section.stop) == (32 * number, 32 * number + 32)


def test_frozen_sections_stay_frozen():
    model = Fused(chunk).double()
    model.layer.weight.requires_grad_(False)
    graph = trace(model, {"x": "float64[B, S, 8]"}, dims={"B": (1, 9), "S": (1, 64)}).graph
    assert {p.name: p.trainable for p in graph.parameters} == {
        "layer.weight#0": False, "layer.weight#1": False,
        "layer.bias#0": True, "layer.bias#1": True,
    }  # fmt: skip
