"""What autograd saves for each kind of operator, in eager PyTorch on CPU: one rule per kind.

A rule yields values of the graph and tensors of its own (`Extra`). A kind without a rule is assumed
to save its floating operands. Source: PyTorch's derivatives.yaml and the kernels named at the
rules; tests/ir/test_saved_bytes.py compares them with `saved_tensors_hooks`, operator by operator.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from shardwise.ir.argument import Argument, Ref
from shardwise.ir.dtype import FLOAT_DTYPES
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import argument
from shardwise.ir.saved_tracker import Extra, Saved, Tracker, ref_of
from shardwise.ir.strides import viewed
from shardwise.ir.tensor import TensorSpec

Rule = Callable[[Tracker, Operator], Iterable[Saved]]

_RESULT: Final = frozenset({
    "exp", "sigmoid", "tanh", "sqrt", "rsqrt", "relu", "softmax", "log_softmax", "reciprocal",
    "expm1", "_softmax", "_log_softmax", "elu",
})  # fmt: skip
"""Operators that save their result."""
_OPERAND: Final = frozenset({
    "silu", "gelu", "log", "abs", "cos", "sin", "erf", "softplus", "clamp", "clamp_min",
    "clamp_max", "hardtanh", "leaky_relu", "mish", "log1p", "hardswish", "log_sigmoid", "var",
    "std", "square", "pow",
})  # fmt: skip
"""Operators that save their first operand."""
_NOTHING: Final = frozenset({
    "add", "sub", "rsub", "neg", "sum", "mean", "cat", "stack", "pad", "to", "reshape",
    "transpose", "permute", "expand", "unsqueeze", "slice", "select", "split",
    "split_with_sizes", "chunk", "unbind", "clone", "detach", "roll", "flip", "repeat", "tril",
    "triu", "cumsum", "full", "slice_scatter", "select_scatter", "narrow", "constant_pad_nd",
})  # fmt: skip


def saved_items(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """What an operator that has a gradient saves; its outputs have been laid out."""
    name = operator.kind.split(".")[1]
    rule = _RULES.get(name)
    if rule is not None:
        yield from rule(tracker, operator)
    elif name in _RESULT:
        yield Ref(operator.name)
    elif name in _OPERAND:
        yield from operator.refs()[:1]
    elif name not in _NOTHING:
        yield from (r for r in operator.refs() if tracker.spec(r).dtype in FLOAT_DTYPES)


_RULES: Final[dict[str, Rule]] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


@_rule("linear")
def _linear(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """mm of the activation as rows with the transposed weight."""
    x, weight = ref_of(operator.args[0]), ref_of(operator.args[1])
    if tracker.needs(weight):
        yield tracker.flattened(x, max(len(tracker.shape(x)) - 1, 1))
    if tracker.needs(x):
        yield weight


@_rule("addmm", "baddbmm")
def _addmm(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    yield from _pair(tracker, operator.args[1], operator.args[2])


@_rule("mm", "bmm", "mv", "dot", "mul", "conv1d", "conv2d", "conv3d", "maximum", "minimum")
def _product(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    yield from _pair(tracker, operator.args[0], operator.args[1])


def _pair(tracker: Tracker, left: Argument, right: Argument) -> Iterator[Saved]:
    """Each is saved where the other needs a gradient; numbers are not."""
    if isinstance(left, Ref) and tracker.needs(right):
        yield left
    if isinstance(right, Ref) and tracker.needs(left):
        yield right


@_rule("matmul")
def _matmul(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """Batches are merged into one dim; what cannot be viewed so, or is broadcast, is copied."""
    left, right = ref_of(operator.args[0]), ref_of(operator.args[1])
    ranks = len(tracker.shape(left)), len(tracker.shape(right))
    if ranks[1] <= 2 or ranks[0] <= 2:
        one = tracker.flattened(left, ranks[0] - 1) if ranks[0] > 2 else left
        other = tracker.flattened(right, ranks[1] - 2) if ranks[1] > 2 else right
    else:
        one, other = (_batched(tracker, ref, operator) for ref in (left, right))
    if tracker.needs(right):
        yield one
    if tracker.needs(left):
        yield other


def _batched(tracker: Tracker, ref: Ref, operator: Operator) -> Saved:
    """An operand with its batch dims broadcast and merged into one."""
    spec, shape = tracker.spec(ref), tracker.shape(ref)
    lead = operator.outputs[0].shape[:-2]
    sizes = tracker.numbers(TensorSpec(lead, spec.dtype))
    own, strides = shape[:-2], tracker.places[ref].strides
    spread = (0,) * (len(sizes) - len(own)) + tuple(
        0 if size == 1 and wide != 1 else stride
        for size, wide, stride in zip(own, sizes[len(sizes) - len(own) :], strides, strict=False)
    )
    merged = (math.prod(sizes), *shape[-2:])
    if viewed((*sizes, *shape[-2:]), (*spread, *strides[-2:]), merged) is not None:
        return ref
    return Extra(TensorSpec((*lead, *spec.shape[-2:]), spec.dtype))


@_rule("div")
def _div(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    left, right = operator.args[0], operator.args[1]
    if isinstance(right, Ref):
        yield right
        if tracker.needs(right) and isinstance(left, Ref):
            yield left


@_rule("where")
def _where(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    yield ref_of(operator.args[0])


@_rule("masked_fill")
def _masked_fill(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    yield ref_of(operator.args[1])


@_rule("embedding", "index", "index_select", "scatter", "index_put", "scatter_add")
def _lookup(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """The indices."""
    yield from (ref for ref in operator.refs() if tracker.spec(ref).dtype not in FLOAT_DTYPES)


@_rule("gather")
def _gather(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """The operand (for its shape) and the indices."""
    yield from operator.refs()


@_rule("layer_norm", "group_norm")
def _layer_norm(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """The input, weight (and bias, by layer_norm), and per row mean and reciprocal deviation."""
    x = ref_of(operator.args[0])
    spec = tracker.spec(x)
    if operator.kind == "aten.layer_norm.default":
        normalised = operator.args[1]
        assert isinstance(normalised, tuple)
        rows = spec.shape[: len(spec.shape) - len(normalised)]
    else:
        groups = operator.args[1]
        assert isinstance(groups, int)
        rows = (spec.shape[0], groups)
    yield x
    last = 3 if operator.kind == "aten.layer_norm.default" else 2
    for place, keyword in ((2, "weight"), (3, "bias")):
        value = argument(operator, place, keyword)
        if place <= last and isinstance(value, Ref):
            yield value
    yield from (Extra(TensorSpec(rows, spec.dtype)) for _ in range(2))


@_rule("rms_norm")
def _rms_norm(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """The input in full precision, the reciprocal deviation per row, the input normalised."""
    x = ref_of(operator.args[0])
    spec = tracker.spec(x)
    normalised = operator.args[1]
    assert isinstance(normalised, tuple)
    narrow = spec.dtype in ("bfloat16", "float16")
    wide = "float32" if narrow else spec.dtype
    yield Extra(TensorSpec(spec.shape, wide)) if narrow else x
    yield Extra(TensorSpec(spec.shape[: len(spec.shape) - len(normalised)], wide))
    if tracker.needs(argument(operator, 2, "weight")):
        yield Extra(TensorSpec(spec.shape, wide))


@_rule("scaled_dot_product_attention")
def _attention(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """The flash kernel saves q, k, v, the result, log-sum-exp per row, and the mask as floats.

    Else scaled copies of q and k, the probabilities, and v as the product reads it.
    """
    q, k, v = (ref_of(operator.args[position]) for position in range(3))
    spec = tracker.spec(q)
    if not tracker.is_flash(operator):
        yield from _products_of_attention(tracker, operator)
        return
    mask = argument(operator, 3, "attn_mask")
    if isinstance(mask, Ref):
        given = tracker.spec(mask)
        yield Extra(TensorSpec(given.shape, spec.dtype)) if given.dtype == "bool" else mask
    yield from (q, k, v)
    wide = "float64" if spec.dtype == "float64" else "float32"
    yield Extra(TensorSpec(spec.shape[:-1], wide))
    yield Ref(operator.name)


def _products_of_attention(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """Attention as two products and a softmax between them, in full precision."""
    refs = [ref_of(operator.args[position]) for position in range(3)]
    q, k, v = (tracker.spec(ref) for ref in refs)
    trained = [tracker.needs(ref) for ref in refs]
    narrow = q.dtype in ("bfloat16", "float16")
    wide = "float32" if narrow else q.dtype
    lead = q.shape[:-2]
    if trained[1]:
        yield Extra(TensorSpec(q.shape, wide))
    if trained[0]:
        yield Extra(TensorSpec((*lead, *k.shape[-2:]), wide))
    scores = TensorSpec((*lead, q.shape[-2], k.shape[-2]), wide)
    yield Extra(scores)
    if argument(operator, 4, "dropout_p", 0.0) != 0.0:
        yield from (Extra(scores), Extra(scores))
    if not (trained[0] or trained[1] or tracker.needs(argument(operator, 3, "attn_mask"))):
        return
    if v.shape[:-2] == lead and not narrow:
        yield tracker.flattened(refs[2], len(lead))
    else:
        yield Extra(TensorSpec((*lead, *v.shape[-2:]), wide))


@_rule("batch_norm")
def _batch_norm(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """The input and, per channel, mean and reciprocal deviation of the batch."""
    x = ref_of(operator.args[0])
    spec = tracker.spec(x)
    yield x
    if operator.args[5] is True:
        wide = "float64" if spec.dtype == "float64" else "float32"
        yield from (Extra(TensorSpec(spec.shape[1:2], wide)) for _ in range(2))


@_rule("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """The input, and where each maximum stood."""
    yield ref_of(operator.args[0])
    yield Extra(TensorSpec(operator.outputs[0].shape, "int64"))


@_rule("cross_entropy_loss")
def _cross_entropy(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """The log-probabilities, the targets, and the total weight."""
    scores, target = ref_of(operator.args[0]), ref_of(operator.args[1])
    spec = tracker.spec(scores)
    yield Extra(spec)
    yield target
    yield Extra(TensorSpec((), spec.dtype))


@_rule("nll_loss", "nll_loss_nd")
def _likelihood(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    scores, target = ref_of(operator.args[0]), ref_of(operator.args[1])
    yield from (scores, target)
    yield Extra(TensorSpec((), tracker.spec(scores).dtype))


@_rule("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
def _elementwise_loss(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    yield from operator.refs()[:2]


@_rule("dropout")
def _dropout(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """The scaled mask, in the dtype of the input."""
    yield Extra(tracker.spec(ref_of(operator.args[0])))


@_rule("native_dropout")
def _native_dropout(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """The mask, its second result."""
    yield Ref(operator.name, 1)


@_rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def _average(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """Over everything it is a mean, which saves nothing."""
    sizes = operator.args[1]
    if not isinstance(sizes, tuple) or any(size != 1 for size in sizes):
        yield ref_of(operator.args[0])


@_rule("topk", "sort", "max", "min")
def _ordered(tracker: Tracker, operator: Operator) -> Iterator[Saved]:
    """The positions, the second result."""
    yield Ref(operator.name, 1) if len(operator.outputs) > 1 else ref_of(operator.args[0])
