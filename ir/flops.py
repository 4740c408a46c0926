"""FLOPs and moved bytes of every operator, as expressions in the sizes: the one table.

A multiplication and an addition count as two. Products count exactly (2 m n k), attention its two
products (halved where causal, cut to the band of a window), convolutions their multiply-adds;
everything else counts one per element of its output, reductions and normalisations one per element
of their input, and what only moves or views data counts none. Softmax inside attention and inside
losses, and biases, are not counted, as is usual (PaLM, appendix B). The backward counts its
products alone: one for each factor that needs a gradient, and five where attention has two.
Moved bytes are what an operator reads plus what it writes once, with no cache; views move none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import sympy

from shardwise.ir.expression import Size
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import argument
from shardwise.ir.tensor import TensorSpec

Specs = tuple[TensorSpec, ...]
"""Specs of the tensors that an operator reads, in the order of `Operator.refs()`."""

VIEWS: Final = frozenset({
    "aten.reshape.default", "aten.transpose.int", "aten.permute.default", "aten.expand.default",
    "aten.unsqueeze.default", "aten.slice.Tensor", "aten.select.int", "aten.split.Tensor",
    "aten.split_with_sizes.default", "aten.chunk.default", "aten.unbind.int",
    "aten.narrow.int", "aten.detach.default", "aten.alias.default", "aten.view.default",
    "aten.t.default", "aten.squeeze.dim", "aten.squeeze.default", "aten._unsafe_view.default",
    "aten.diagonal.default", "aten.unfold.default", "aten.flatten.using_ints",
    "aten.unflatten.int", "aten.movedim.int",
})  # fmt: skip
"""Kinds that give another view of their input (reshape: where strides allow it)."""
_MOVES: Final = frozenset({
    "cat", "stack", "pad", "index", "gather", "embedding", "index_select", "clone", "copy",
    "contiguous", "to", "roll", "flip", "slice_scatter", "select_scatter", "repeat", "tile",
    "repeat_interleave", "full", "zeros", "ones", "arange", "new_zeros", "new_ones", "new_full",
    "zeros_like", "ones_like", "full_like", "empty", "scatter", "index_put", "tril", "triu",
    "masked_fill", "where", "constant_pad_nd", "scalar_tensor", "new_empty", "empty_like",
    "index_copy",
})  # fmt: skip
"""Names of operators that move data without arithmetic."""
_LINEAR_MAPS: Final = frozenset({
    "add", "sub", "neg", "to", "_to_copy", "type_as", "native_dropout", "dropout", "sum", "mean",
    "cross_entropy_loss", "embedding", "nll_loss", "nll_loss_nd", *_MOVES,
})  # fmt: skip
"""Names of operators whose gradient needs no operand: it moves as many bytes as the forward."""
_OF_INPUT: Final = frozenset({
    "sum", "mean", "amax", "amin", "max", "min", "var", "std", "prod", "any", "all", "argmax",
    "argmin", "layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "softmax",
    "log_softmax", "logsumexp", "cumsum", "cumprod", "cross_entropy_loss", "nll_loss",
    "nll_loss_nd", "mse_loss", "l1_loss", "sort", "topk", "linalg_vector_norm", "norm",
    "avg_pool2d", "max_pool2d", "adaptive_avg_pool2d", "adaptive_avg_pool1d", "histc", "bincount",
    "scatter_add", "index_add", "binary_cross_entropy_with_logits", "smooth_l1_loss",
})  # fmt: skip
"""Names of operators whose work follows from what they read."""

Count = Callable[[Operator, Specs], sympy.Expr]
ATTENTION: Final = "aten.scaled_dot_product_attention.default"
"""The kind of fused attention."""
LINEAR: Final = "aten.linear.default"
"""The kind of a product with a weight."""


def annotated(graph: OperatorGraph) -> OperatorGraph:
    """The graph with FLOPs and moved bytes of every operator filled in (saved bytes unchanged)."""
    operators = []
    for operator in graph.operators:
        specs = tuple(graph.spec(ref) for ref in operator.refs())
        operators.append(
            replace(operator, flops=flops(operator, specs), moved_bytes=moved(operator, specs))
        )
    return replace(graph, operators=tuple(operators))


def flops(operator: Operator, specs: Specs) -> sympy.Expr:
    """Forward FLOPs of an operator on tensors of these specs (whole tensors, or a rank's part)."""
    if operator.kind in VIEWS:
        return sympy.S.Zero
    count = TABLE.get(operator.kind)
    if count is not None:
        return count(operator, specs)
    name = operator.kind.split(".")[1].strip("_")
    if name in _MOVES:
        return sympy.S.Zero
    if name in _OF_INPUT and specs:
        return elements(specs[0])
    return _total(operator.outputs)


def backward_flops(operator: Operator, specs: Specs, needs: Sequence[bool]) -> sympy.Expr:
    """FLOPs of the products of an operator's backward; `needs[i]` is whether operand i, in the
    order of `refs()`, needs a gradient.

    Every product has one of its own size for the gradient of each factor. Attention computes its
    scores again, then the gradients of values, probabilities, queries and keys at once (Dao 2023,
    FlashAttention-2, section 3.1), which it does wherever one of them is needed. What is no product
    counts none: it reads and writes bytes.
    """
    kind = operator.kind
    if kind == ATTENTION:
        query, value = specs[0].shape[-1], specs[2].shape[-1]
        ratio = (3 * query + 2 * value) / sympy.sympify(query + value)
        return flops(operator, specs) * ratio if any(needs[:3]) else sympy.S.Zero
    factors = _FACTORS.get(kind)
    if factors is None:
        return sympy.S.Zero
    return flops(operator, specs) * sum(bool(needs[place]) for place in factors)


def is_product(kind: str) -> bool:
    """Whether a kind multiplies two of its operands and adds up; attention is more than that."""
    return kind in _FACTORS


def moved(operator: Operator, specs: Specs) -> sympy.Expr:
    """Bytes that an operator reads and writes; of a table, only the rows that it looks up. A
    cross-entropy also writes its log-probabilities."""
    if operator.kind in VIEWS:
        return sympy.S.Zero
    written = sum((nbytes(spec) for spec in operator.outputs), sympy.S.Zero)
    read = specs
    if operator.kind == "aten.embedding.default":
        return written + written + nbytes(specs[1])
    if operator.kind == "aten.cross_entropy_loss.default":
        return written + 2 * nbytes(specs[0]) + nbytes(specs[1])
    if operator.kind in ("aten.index.Tensor", "aten.gather.default", "aten.index_select.default"):
        return written + written + sum((nbytes(spec) for spec in specs[1:]), sympy.S.Zero)
    return written + sum((nbytes(spec) for spec in read), sympy.S.Zero)


def backward_moved(operator: Operator, specs: Specs, needs: Sequence[bool]) -> sympy.Expr:
    """Bytes that the backward of an operator without products reads and writes.

    A linear map moves what its forward moves. Any other also reads each operand that needs a
    gradient again, to scale the gradient: gelu reads x and dy and writes dx. A cross-entropy makes
    a gradient of zeros and one for each row, and from that and its log-probabilities the result.
    """
    forward = moved(operator, specs)
    if operator.kind == "aten.cross_entropy_loss.default":
        return 4 * nbytes(specs[0])
    if operator.kind in VIEWS or operator.kind.split(".")[1] in _LINEAR_MAPS:
        return forward
    again = (nbytes(spec) for spec, needed in zip(specs, needs, strict=True) if needed)
    return forward + sum(again, sympy.S.Zero)


@lru_cache(maxsize=65536)
def elements(spec: TensorSpec) -> sympy.Expr:
    """Number of elements, an expression."""
    return sympy.sympify(spec.element_count())


@lru_cache(maxsize=65536)
def nbytes(spec: TensorSpec) -> sympy.Expr:
    """Bytes of a tensor, an expression."""
    return sympy.sympify(spec.nbytes())


def _total(specs: Specs) -> sympy.Expr:
    return sum((elements(spec) for spec in specs), sympy.S.Zero)


def _linear(operator: Operator, specs: Specs) -> sympy.Expr:
    """x[..., k] w[n, k]: 2 k for every element of the output."""
    return 2 * elements(operator.outputs[0]) * specs[0].shape[-1]


def _addmm(operator: Operator, specs: Specs) -> sympy.Expr:
    """b + x[m, k] w[k, n]; baddbmm alike."""
    return 2 * elements(operator.outputs[0]) * specs[1].shape[-1]


def _attention(operator: Operator, specs: Specs) -> sympy.Expr:
    """q [B, H, S, D], k [B, H_kv, T, D], v [B, H_kv, T, E]: 2 B H S T (D + E); causal half."""
    query, key, value = specs[:3]
    pairs = elements(query) / query.shape[-1] * key.shape[-2]
    total = 2 * pairs * (query.shape[-1] + value.shape[-1])
    causal = argument(operator, 5, "is_causal", False) is True
    return total / 2 if causal else total


def _convolution(operator: Operator, specs: Specs) -> sympy.Expr:
    """Per output element one multiply-add for every element of a filter."""
    weight = specs[1].shape
    per_output: Size = 2
    for size in weight[1:]:
        per_output = per_output * size
    if argument(operator, 6, "transposed", False) is True or "transpose" in operator.kind:
        return elements(specs[0]) * per_output
    return elements(operator.outputs[0]) * per_output


def _grouped(operator: Operator, specs: Specs) -> sympy.Expr:
    """x[t, k] w[g, k, n] with rows of x in groups: every row meets one expert."""
    return 2 * elements(operator.outputs[0]) * specs[0].shape[-1]


def _einsum(operator: Operator, specs: Specs) -> sympy.Expr:
    """Two for every index of the whole loop nest (products of two operands)."""
    equation = operator.args[0]
    assert isinstance(equation, str)
    inputs = equation.replace(" ", "").split("->")[0].split(",")
    if "." in equation or len(inputs) != len(specs):
        return 2 * _total(specs)
    sizes: dict[str, Size] = {}
    for letters, spec in zip(inputs, specs, strict=True):
        sizes.update(zip(letters, spec.shape, strict=True))
    total = sympy.Integer(2 if len(inputs) > 1 else 1)
    for size in sizes.values():
        total = total * size
    return total


def _lstm(operator: Operator, specs: Specs) -> sympy.Expr:
    """Every weight matrix meets every step of every sequence once."""
    rows = elements(specs[0]) / specs[0].shape[-1]
    weights = sum((elements(spec) for spec in specs[1:] if len(spec.shape) == 2), sympy.S.Zero)
    return 2 * rows * weights


TABLE: Final[Mapping[str, Count]] = {
    LINEAR: _linear,
    "aten.matmul.default": _linear,
    "aten.mm.default": _linear,
    "aten.bmm.default": _linear,
    "aten.mv.default": _linear,
    "aten.dot.default": lambda operator, specs: 2 * elements(specs[0]),
    "aten.addmm.default": _addmm,
    "aten.baddbmm.default": _addmm,
    "aten.einsum.default": _einsum,
    ATTENTION: _attention,
    "aten._grouped_mm.default": _grouped,
    "transformers.grouped_mm_fallback.default": _grouped,
    "aten.lstm.input": _lstm,
    "aten.gru.input": _lstm,
    **{
        f"aten.{name}.{overload}": _convolution
        for name in ("conv1d", "conv2d", "conv3d", "convolution")
        for overload in ("default", "padding")
    },
    "aten.conv_transpose1d.default": _convolution,
    "aten.conv_transpose2d.input": _convolution,
    "aten.conv_transpose3d.input": _convolution,
}
"""Kind -> its count. Kinds that are absent are counted by elements, see `flops`."""
_FACTORS: Final[Mapping[str, tuple[int, int]]] = {
    kind: (1, 2) if "addmm" in kind or "baddbmm" in kind else (0, 1)
    for kind, count in TABLE.items()
    if count in (_linear, _addmm, _convolution, _grouped, _einsum) or kind == "aten.dot.default"
}
"""Kinds of products -> which two of the operands are multiplied."""
