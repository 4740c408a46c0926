"""A hand-written decoder, as a module and as the OperatorGraph that a trace of it would give.

Small enough to check by eye, and with the operators that matter: a tied table, grouped-query
attention, an MLP with biases, a normalisation, summed cross-entropy with ignored targets.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from shardwise.ir.expression import symbol
from shardwise.ir.graph import GraphInput, OperatorGraph, Parameter, SymbolRange
from shardwise.ir.operator import Operator, Ref
from shardwise.ir.template import Unit
from shardwise.ir.tensor import TensorSpec

WIDTH, HEADS, HEAD, INNER, VOCABULARY = 32, 4, 8, 64, 48


class HandModel(nn.Module):
    def __init__(self, layers=2, kv_heads=2, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.layers, self.kv_heads = layers, kv_heads
        for name, shape in parameter_shapes(layers, kv_heads).items():
            value = torch.randn(shape, generator=generator, dtype=torch.float64) * 0.2
            self.register_parameter(name.replace(".", "_"), nn.Parameter(value))

    def weight(self, name):
        return getattr(self, name.replace(".", "_"))

    def forward(self, ids, labels):
        """ids, labels [B, S] -> (loss_sum, weight)."""
        x = F.embedding(ids, self.weight("table"))
        batch, length = ids.shape
        for i in range(self.layers):
            w = {k: self.weight(f"layers.{i}.{k}") for k in layer_shapes(self.kv_heads)}
            h = F.layer_norm(x, (WIDTH,), w["n"], w["nb"])
            q, k, v = (
                F.linear(h, w[name]).reshape(batch, length, -1, HEAD).transpose(1, 2)
                for name in ("q", "k", "v")
            )
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            a = a.transpose(1, 2).reshape(batch, length, WIDTH)
            x = x + F.linear(a, w["o"])
            x = x + F.linear(F.gelu(F.linear(x, w["w1"], w["b1"])), w["w2"], w["b2"])
        logits = F.linear(x, self.weight("table")).reshape(-1, VOCABULARY)
        target = labels.reshape(-1)
        return F.cross_entropy(logits, target, reduction="sum"), (target != -100).sum()


def layer_shapes(kv_heads):
    return {
        "n": (WIDTH,), "nb": (WIDTH,), "q": (HEADS * HEAD, WIDTH), "k": (kv_heads * HEAD, WIDTH),
        "v": (kv_heads * HEAD, WIDTH), "o": (WIDTH, HEADS * HEAD), "w1": (INNER, WIDTH),
        "b1": (INNER,), "w2": (WIDTH, INNER), "b2": (WIDTH,),
    }  # fmt: skip


def parameter_shapes(layers, kv_heads):
    shapes = {"table": (VOCABULARY, WIDTH)}
    for i in range(layers):
        shapes |= {f"layers.{i}.{k}": shape for k, shape in layer_shapes(kv_heads).items()}
    return shapes


TENSOR_DIM = {"table": 0, "q": 0, "k": 0, "v": 0, "o": 1, "w1": 0, "b1": 0, "w2": 1}
"""The dim of each parameter that tensor parallelism shards."""


def hand_graph(layers=2, kv_heads=2, dtype="float64"):
    """(graph, units) of HandModel."""
    b, s = symbol("B"), symbol("S")
    operators: list[Operator] = []

    def spec(*shape, kind=dtype):
        return TensorSpec(shape, kind)

    def add(name, kind, args, out, module="", **kwargs):
        args = tuple(Ref(a) if isinstance(a, str) else a for a in args)
        operators.append(
            Operator(name, f"aten.{kind}", args, tuple(kwargs.items()), (out,), module)
        )
        return name

    x = add("emb", "embedding.default", ("table", "ids"), spec(b, s, WIDTH))
    units = [("embed", 0, "")]
    for i in range(layers):
        units.append((f"layers.{i}", len(operators), f"layers.{i}"))
        module, at = f"layers.{i}", f"layers.{i}."
        h = add(f"h{i}", "layer_norm.default", (x, (WIDTH,), at + "n", at + "nb"),
                spec(b, s, WIDTH), module)  # fmt: skip
        heads = []
        for name, count in (("q", HEADS), ("k", kv_heads), ("v", kv_heads)):
            y = add(
                f"{name}{i}", "linear.default", (h, at + name), spec(b, s, count * HEAD), module
            )
            y = add(f"{name}v{i}", "view.default", (y, (b, s, count, HEAD)),
                    spec(b, s, count, HEAD), module)  # fmt: skip
            heads.append(
                add(f"{name}t{i}", "transpose.int", (y, 1, 2), spec(b, count, s, HEAD), module)
            )
        a = add(f"a{i}", "scaled_dot_product_attention.default", (*heads, None, 0.0, True),
                spec(b, HEADS, s, HEAD), module, enable_gqa=True)  # fmt: skip
        a = add(f"at{i}", "transpose.int", (a, 1, 2), spec(b, s, HEADS, HEAD), module)
        a = add(f"ar{i}", "reshape.default", (a, (b, s, WIDTH)), spec(b, s, WIDTH), module)
        o = add(f"o{i}", "linear.default", (a, at + "o"), spec(b, s, WIDTH), module)
        x = add(f"x{i}", "add.Tensor", (x, o), spec(b, s, WIDTH), module)
        y = add(f"u{i}", "linear.default", (x, at + "w1", at + "b1"), spec(b, s, INNER), module)
        y = add(f"g{i}", "gelu.default", (y,), spec(b, s, INNER), module)
        y = add(f"d{i}", "linear.default", (y, at + "w2", at + "b2"), spec(b, s, WIDTH), module)
        x = add(f"y{i}", "add.Tensor", (x, y), spec(b, s, WIDTH), module)
    units.append(("head", len(operators), ""))
    logits = add("logits", "linear.default", (x, "table"), spec(b, s, VOCABULARY))
    rows = add("rows", "reshape.default", (logits, (b * s, VOCABULARY)), spec(b * s, VOCABULARY))
    flat = add("flat", "reshape.default", ("labels", (b * s,)), spec(b * s, kind="int64"))
    loss = add("loss", "cross_entropy_loss.default", (rows, flat, None, 2, -100), spec())
    valid = add("valid", "ne.Scalar", (flat, -100), spec(b * s, kind="bool"))
    count = add("count", "sum.default", (valid,), spec(kind="int64"))
    ends = [start for _, start, _ in units[1:]] + [len(operators)]
    graph = OperatorGraph(
        (
            GraphInput("ids", spec(b, s, kind="int64")),
            GraphInput("labels", spec(b, s, kind="int64")),
        ),
        tuple(
            Parameter(n, spec(*shape)) for n, shape in parameter_shapes(layers, kv_heads).items()
        ),
        (),
        tuple(operators),
        (Ref(loss), Ref(count)),
        (SymbolRange("B", 1, None), SymbolRange("S", 1, None)),
    )
    made = [Unit(n, (start, end), m) for (n, start, m), end in zip(units, ends, strict=True)]
    return graph, tuple(made)
