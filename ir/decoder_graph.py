"""The operator graph of a DecoderShape: embedding, one layer in three units, head.

    embed   token and position tables, dropout
    qkv     first norm; queries, keys and values; rotary positions
    core    attention itself, a unit of its own so that it alone can be recomputed
    mlp     output projection, residual sum, second norm, feed-forward part, residual sum
    head    last norm, output layer, loss in float32

Source of the form: Korthikanti et al. 2022, figure 2 (GPT), Touvron et al. 2023 (Llama). Queries,
keys and values are one product where they are cut together, as Megatron lays them out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import sympy

from shardwise.ir.argument import Argument, Dtype, Ref
from shardwise.ir.decoder import AttentionKernel, DecoderShape
from shardwise.ir.expression import symbol
from shardwise.ir.flops import annotated
from shardwise.ir.graph import GraphInput, OperatorGraph, Parameter, SymbolRange
from shardwise.ir.operator import Operator
from shardwise.ir.template import Unit
from shardwise.ir.tensor import TensorSpec

UNITS: Final = ("embed", "qkv", "core", "mlp", "head")
LAYER: Final = ("qkv", "core", "mlp")
"""Units that occur once a layer."""
_SUM: Final = 2
_B, _S = symbol("B"), symbol("S")


@lru_cache(maxsize=256)
def decoder_graph(shape: DecoderShape, dtype: str) -> tuple[OperatorGraph, tuple[Unit, ...]]:
    """Graph with one layer, and its units in the order of UNITS, in a compute dtype."""
    return _Builder(shape, dtype).build()


@dataclass
class _Builder:
    """Adds operators one after the other."""

    shape: DecoderShape
    dtype: str
    parameters: dict[str, Parameter] = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    module_path: str = ""

    def build(self) -> tuple[OperatorGraph, tuple[Unit, ...]]:
        ids = TensorSpec((_B, _S), "int64")
        inputs = tuple(GraphInput(name, ids) for name in ("input_ids", "labels", "position_ids"))
        self.specs |= {item.name: item.spec for item in inputs}
        starts = [0]
        x = self._embed()
        starts.append(len(self.operators))
        self.module_path = "layer"
        q, k, v = self._qkv(x)
        starts.append(len(self.operators))
        context = self._core(q, k, v)
        starts.append(len(self.operators))
        x = self._mlp(x, context)
        starts.append(len(self.operators))
        self.module_path = ""
        loss, weight = self._head(x)
        starts.append(len(self.operators))
        graph = OperatorGraph(
            inputs,
            tuple(self.parameters.values()),
            (),
            tuple(self.operators),
            (Ref(loss), Ref(weight)),
            (SymbolRange("B", 1, None), SymbolRange("S", 1, None)),
        )
        units = tuple(
            Unit(name, (starts[i], starts[i + 1]), "layer" if name in LAYER else "")
            for i, name in enumerate(UNITS)
        )
        return annotated(graph), units

    def _op(
        self, name: str, kind: str, args: Sequence[Argument], *outputs: TensorSpec, **kw: Argument
    ) -> str:
        self.operators.append(
            Operator(
                name, f"aten.{kind}", tuple(args), tuple(kw.items()), outputs, self.module_path
            )
        )
        self.specs[name] = outputs[0]
        return name

    def _like(self, name: str, kind: str, *sources: str) -> str:
        return self._op(name, kind, [Ref(source) for source in sources], self.specs[sources[0]])

    def _parameter(self, name: str, *shape: int) -> Ref:
        if name not in self.parameters:
            self.parameters[name] = Parameter(name, TensorSpec(shape, self.dtype))
            self.specs[name] = self.parameters[name].spec
        return Ref(name)

    def _linear(self, name: str, x: str, width: int) -> str:
        *lead, inner = self.specs[x].shape
        assert isinstance(inner, int)
        args = [Ref(x), self._parameter(f"{name}.weight", width, inner)]
        if self.shape.bias:
            args.append(self._parameter(f"{name}.bias", width))
        return self._op(name, "linear.default", args, TensorSpec((*lead, width), self.dtype))

    def _norm(self, name: str, x: str) -> str:
        hidden = self.shape.hidden
        weight = self._parameter(f"{name}.weight", hidden)
        if self.shape.rms_norm and self.shape.composed:
            return self._composed_norm(name, x, weight)
        if self.shape.rms_norm:
            return self._op(
                name, "rms_norm.default", [Ref(x), (hidden,), weight, 1e-5], self.specs[x]
            )
        bias = self._parameter(f"{name}.bias", hidden)
        args = [Ref(x), (hidden,), weight, bias, 1e-5]
        return self._op(name, "layer_norm.default", args, self.specs[x])

    def _composed_norm(self, name: str, x: str, weight: Ref) -> str:
        """RMSNorm as ATen composes it (aten/src/ATen/native/layer_norm.cpp, rms_norm): in float32,
        rounded at the end."""
        wide = self._cast(f"{name}_wide", x, "float32")
        squares = self._op(f"{name}_squares", "pow.Tensor_Scalar", [Ref(wide), 2], self.specs[wide])
        row = TensorSpec((*self.specs[x].shape[:-1], 1), "float32")
        self._op(f"{name}_mean", "mean.dim", [Ref(squares), (-1,), True], row)
        self._op(f"{name}_scale", "rsqrt.default", [Ref(f"{name}_mean")], row)
        scaled = self._like(f"{name}_scaled", "mul.Tensor", wide, f"{name}_scale")
        args: list[Argument] = [Ref(scaled), weight]
        weighted = self._op(f"{name}_weighted", "mul.Tensor", args, self.specs[wide])
        return self._cast(name, weighted, self.dtype)

    def _cast(self, name: str, x: str, dtype: str) -> str:
        spec = TensorSpec(self.specs[x].shape, dtype)
        return self._op(name, "to.dtype", [Ref(x), Dtype(dtype)], spec)

    def _dropout(self, name: str, x: str) -> str:
        """Its cost: a mask of one byte for each element is made and kept."""
        if not self.shape.dropout:
            return x
        spec = self.specs[x]
        mask = TensorSpec(spec.shape, "bool")
        return self._op(name, "native_dropout.default", [Ref(x), 0.0, True], spec, mask)

    def _view(self, name: str, x: str, *shape: int | sympy.Expr) -> str:
        spec = TensorSpec(shape, self.specs[x].dtype)
        return self._op(name, "reshape.default", [Ref(x), shape], spec)

    def _swap(self, name: str, x: str, first: int, second: int) -> str:
        sizes = list(self.specs[x].shape)
        sizes[first], sizes[second] = sizes[second], sizes[first]
        spec = TensorSpec(tuple(sizes), self.specs[x].dtype)
        return self._op(name, "transpose.int", [Ref(x), first, second], spec)

    def _embed(self) -> str:
        shape = self.shape
        hidden = TensorSpec((_B, _S, shape.hidden), self.dtype)
        table = self._parameter("wte.weight", shape.vocabulary, shape.hidden)
        x = self._op("wte", "embedding.default", [table, Ref("input_ids")], hidden)
        if shape.positions:
            table = self._parameter("wpe.weight", shape.positions, shape.hidden)
            place = self._op("wpe", "embedding.default", [table, Ref("position_ids")], hidden)
            x = self._like("positioned", "add.Tensor", x, place)
        return self._dropout("embed_dropout", x)

    def _qkv(self, x: str) -> tuple[str, str, str]:
        shape = self.shape
        x = self._norm("norm1", x)
        group = shape.heads // shape.kv_heads
        size = shape.head_size
        joined = self._linear("qkv", x, (shape.heads + 2 * shape.kv_heads) * size)
        grouped = self._view("qkv_heads", joined, _B, _S, shape.kv_heads, group + 2, size)
        pieces = [
            TensorSpec((_B, _S, shape.kv_heads, count, size), self.dtype) for count in (group, 1, 1)
        ]
        self._op("qkv_split", "split_with_sizes.default", [Ref(grouped), (group, 1, 1), 3], *pieces)
        heads = []
        for index, (name, count) in enumerate(
            (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads))
        ):
            spec = TensorSpec((_B, _S, count, size), self.dtype)
            args: list[Argument] = [Ref("qkv_split", index), spec.shape]
            value = self._op(f"{name}_heads", "reshape.default", args, spec)
            if shape.rotary and name != "v":
                value = self._rotate(name, value)
            heads.append(value)
        return heads[0], heads[1], heads[2]

    def _rotate(self, name: str, x: str) -> str:
        """Rotary positions as one fused pass over the heads, or in float32 between two casts."""
        composed = self.shape.composed
        dtype = "float32" if composed else self.dtype
        angle = TensorSpec((_S, 1, self.shape.head_size), dtype)
        args: list[Argument] = [angle.shape, 1.0]
        if "angles" not in self.specs:
            self._op("angles", "full.default", args, angle, dtype=Dtype(dtype))
        if not composed:
            return self._like(f"{name}_rotated", "mul.Tensor", x, "angles")
        wide = self._cast(f"{name}_wide", x, dtype)
        turned = self._like(f"{name}_turned", "mul.Tensor", wide, "angles")
        return self._cast(f"{name}_rotated", turned, self.dtype)

    def _core(self, q: str, k: str, v: str) -> str:
        shape = self.shape
        q, k, v = (self._swap(f"{x}_swapped", x, 1, 2) for x in (q, k, v))
        if shape.attention is not AttentionKernel.UNFUSED:
            args: list[Argument] = [Ref(q), Ref(k), Ref(v), None, 0.0, True]
            spec = self.specs[q]
            kernel = str(shape.attention)
            named = {} if shape.attention is AttentionKernel.FLASH else {"kernel": kernel}
            name = self._op(
                "attention", "scaled_dot_product_attention.default", args, spec, enable_gqa=True,
                **named,
            )  # fmt: skip
        else:
            keys = self._swap("k_turned", self._repeat("k", k), 2, 3)
            scores = TensorSpec((_B, shape.heads, _S, _S), self.dtype)
            self._op("scores", "matmul.default", [Ref(q), Ref(keys)], scores)
            self._op("probabilities", "softmax.int", [Ref("scores"), -1], scores)
            dropped = self._dropout("attention_dropout", "probabilities")
            values = self._repeat("v", v)
            name = self._op(
                "attention", "matmul.default", [Ref(dropped), Ref(values)], self.specs[q]
            )
        turned = self._swap("context", name, 1, 2)
        return self._view("context_rows", turned, _B, _S, shape.hidden)

    def _repeat(self, name: str, x: str) -> str:
        """Heads of keys and values once for each query head."""
        shape = self.shape
        group = shape.heads // shape.kv_heads
        if group == 1:
            return x
        wide = TensorSpec((_B, shape.kv_heads, group, _S, shape.head_size), self.dtype)
        one = self._view(f"{name}_one", x, _B, shape.kv_heads, 1, _S, shape.head_size)
        many = self._op(f"{name}_many", "expand.default", [Ref(one), wide.shape], wide)
        return self._view(f"{name}_repeated", many, _B, shape.heads, _S, shape.head_size)

    def _mlp(self, x: str, context: str) -> str:
        shape = self.shape
        out = self._dropout("out_dropout", self._linear("out", context, shape.hidden))
        x = self._like("residual1", "add.Tensor", x, out)
        normed = self._norm("norm2", x)
        up = self._linear("up", normed, shape.ffn)
        if shape.gated and shape.fused_gate:
            inner = self._like("gated", "mul.Tensor", self._linear("gate", normed, shape.ffn), up)
        elif shape.gated:
            gate = self._like("act", "silu.default", self._linear("gate", normed, shape.ffn))
            inner = self._like("gated", "mul.Tensor", gate, up)
        else:
            inner = self._like("act", "gelu.default", up)
        down = self._dropout("down_dropout", self._linear("down", inner, shape.hidden))
        return self._like("residual2", "add.Tensor", x, down)

    def _head(self, x: str) -> tuple[str, str]:
        shape = self.shape
        x = self._norm("last_norm", x)
        name = "wte.weight" if shape.tied else "lm_head.weight"
        table = self._parameter(name, shape.vocabulary, shape.hidden)
        logits = TensorSpec((_B, _S, shape.vocabulary), self.dtype)
        self._op("logits", "linear.default", [Ref(x), table], logits)
        rows = self._view("rows", "logits", _B * _S, shape.vocabulary)
        if not shape.fused_loss:
            wide = TensorSpec((_B * _S, shape.vocabulary), "float32")
            rows = self._op("wide", "to.dtype", [Ref(rows), Dtype("float32")], wide)
        targets = self._view("targets", "labels", _B * _S)
        args: list[Argument] = [Ref(rows), Ref(targets), None, _SUM, -100]
        loss = self._op("loss", "cross_entropy_loss.default", args, TensorSpec((), "float32"))
        self._op("counted", "ne.Scalar", [Ref(targets), -100], TensorSpec((_B * _S,), "bool"))
        weight = self._op("weight", "sum.default", [Ref("counted")], TensorSpec((), "int64"))
        return loss, weight
