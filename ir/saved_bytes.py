"""Bytes that every operator keeps alive for the backward: eager PyTorch's autograd on CPU.

The rules say which operands, results and extra tensors autograd saves for each kind; the memory of a
tensor is that of its storage, so a saved view keeps its whole base. A storage counts once, at the
first operator that saves it; parameters and constants do not count, they stay anyway. The sum over
the operators is what `torch.autograd.graph.saved_tensors_hooks` sees (tests/ir/test_saved_bytes.py).
Exact for batches and lengths of at least 2; a kind without a rule is assumed to save its floating
operands.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import sympy

from shardwise.ir.argument import Argument, Ref
from shardwise.ir.dtype import FLOAT_DTYPES
from shardwise.ir.expression import evaluate_size
from shardwise.ir.flops import nbytes
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import argument, gradient_values
from shardwise.ir.strides import Shape, contiguous, is_contiguous, pointwise, viewed
from shardwise.ir.tensor import TensorSpec

_PRIMES: Final = (1009, 2003, 3001, 4001, 5003, 6007)
_POINTWISE: Final = frozenset({
    "add", "sub", "rsub", "mul", "div", "pow", "neg", "abs", "exp", "log", "sqrt", "rsqrt",
    "reciprocal", "sigmoid", "tanh", "relu", "silu", "gelu", "sin", "cos", "erf", "softplus",
    "mish", "hardtanh", "leaky_relu", "elu", "clamp", "clamp_min", "clamp_max", "where",
    "maximum", "minimum", "to", "masked_fill", "eq", "ne", "lt", "le", "gt", "ge", "logical_not",
    "bitwise_not", "__and__", "__or__", "logical_and", "logical_or", "bitwise_and", "bitwise_or",
    "square", "log1p", "hardswish", "dropout", "addcmul", "lerp", "softmax", "expm1",
})  # fmt: skip
"""Operators whose result is laid out like their operands (TensorIterator)."""
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


def annotated(graph: OperatorGraph) -> OperatorGraph:
    """The graph with the saved bytes of every operator filled in."""
    tracker = _Tracker(graph)
    operators = tuple(
        replace(operator, saved_bytes=tracker.saved(operator)) for operator in graph.operators
    )
    return replace(graph, operators=operators)


@dataclass(frozen=True)
class _Place:
    """Where a value lies: the storage that holds it, and its strides in elements."""

    storage: str
    strides: Shape


@dataclass(frozen=True)
class _Extra:
    """A tensor that is made only to be saved."""

    spec: TensorSpec


Saved = Ref | _Extra
Rule = Callable[["_Tracker", Operator], Iterable[Saved]]


@dataclass
class _Tracker:
    """Follows storages and strides through a graph, in order."""

    graph: OperatorGraph
    sizes: dict[str, int] = field(default_factory=dict)
    places: dict[Ref, _Place] = field(default_factory=dict)
    storages: dict[str, sympy.Expr] = field(default_factory=dict)
    """Storage -> its bytes; those that stay anyway are absent."""
    counted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.trained = gradient_values(self.graph)
        self.sizes = {
            entry.name: prime for entry, prime in zip(self.graph.symbols, _PRIMES, strict=False)
        }
        for item in (*self.graph.inputs, *self.graph.parameters, *self.graph.constants):
            self._allocate(Ref(item.name), item.spec)
        for item in (*self.graph.parameters, *self.graph.constants):
            del self.storages[item.name]

    def saved(self, operator: Operator) -> sympy.Expr:
        """Bytes newly kept alive by an operator; call for each operator once, in order."""
        self._lay_out(operator)
        if operator.name not in self.trained:
            return sympy.S.Zero
        total = sympy.S.Zero
        for item in self._items(operator):
            if isinstance(item, _Extra):
                total += nbytes(item.spec)
                continue
            storage = self.places[item].storage
            if storage in self.counted or storage not in self.storages:
                continue
            self.counted.add(storage)
            total += self.storages[storage]
        return total

    def _items(self, operator: Operator) -> Iterator[Saved]:
        name = operator.kind.split(".")[1]
        rule = _RULES.get(name)
        if rule is not None:
            yield from rule(self, operator)
        elif name in _RESULT:
            yield Ref(operator.name)
        elif name in _OPERAND:
            yield from (ref for ref in operator.refs()[:1])
        elif name not in _NOTHING:
            yield from (r for r in operator.refs() if self.spec(r).dtype in FLOAT_DTYPES)

    # layout

    def spec(self, ref: Ref) -> TensorSpec:
        """Shape and dtype of a value."""
        return self.graph.spec(ref)

    def shape(self, ref: Ref) -> Shape:
        """The shape at the sample sizes."""
        return self._numbers(self.spec(ref))

    def needs(self, value: Argument) -> bool:
        """Whether an argument is a tensor with a gradient."""
        return isinstance(value, Ref) and value.name in self.trained

    def _numbers(self, spec: TensorSpec) -> Shape:
        return tuple(
            size if isinstance(size, int) else evaluate_size(size, self.sizes)
            for size in spec.shape
        )

    def _allocate(self, ref: Ref, spec: TensorSpec, strides: Shape | None = None) -> None:
        storage = f"{ref.name}:{ref.index}" if ref.index else ref.name
        self.storages[storage] = nbytes(spec)
        self.places[ref] = _Place(storage, strides or contiguous(self._numbers(spec)))

    def _lay_out(self, operator: Operator) -> None:
        """Places of the outputs."""
        name = operator.kind.split(".")[1]
        source = operator.args[0] if operator.args else None
        for index, spec in enumerate(operator.outputs):
            ref = Ref(operator.name, index)
            strides = None
            if isinstance(source, Ref) and operator.kind.startswith("aten."):
                strides = self._view(operator, source, self._numbers(spec))
            if strides is not None:
                assert isinstance(source, Ref)
                self.places[ref] = _Place(self.places[source].storage, strides)
            elif name == "scaled_dot_product_attention" and self.is_flash(operator):
                operands = [(self.shape(source), self.places[source].strides)]  # type: ignore[arg-type, index]
                self._allocate(ref, spec, pointwise(self._numbers(spec), operands))
            elif name in _POINTWISE:
                operands = [(self.shape(r), self.places[r].strides) for r in operator.refs()]
                self._allocate(ref, spec, pointwise(self._numbers(spec), operands))
            else:
                self._allocate(ref, spec)

    def _view(self, operator: Operator, source: Ref, output: Shape) -> Shape | None:
        """Strides of the result if it is a view of the first operand."""
        name = operator.kind.split(".")[1]
        shape, strides = self.shape(source), self.places[source].strides
        if name == "reshape":
            return viewed(shape, strides, output)
        if name in ("detach", "alias"):
            return strides
        if name == "transpose":
            order = list(range(len(shape)))
            first, second = (_dim(operator.args[k], len(shape)) for k in (1, 2))
            order[first], order[second] = order[second], order[first]
            return tuple(strides[dim] for dim in order)
        if name == "permute":
            dims = operator.args[1]
            assert isinstance(dims, tuple)
            return tuple(strides[_dim(dim, len(shape))] for dim in dims)
        if name == "unsqueeze":
            dim = _dim(operator.args[1], len(output))
            step = strides[dim] * shape[dim] if dim < len(shape) else 1
            return (*strides[:dim], step, *strides[dim:])
        if name == "expand":
            lead = len(output) - len(shape)
            return (0,) * lead + tuple(
                0 if size == 1 and output[lead + k] != 1 else strides[k]
                for k, size in enumerate(shape)
            )
        if name == "slice":
            dim = _dim(argument(operator, 1, "dim", 0), len(shape))
            step = argument(operator, 4, "step", 1)
            assert isinstance(step, int)
            return (*strides[:dim], strides[dim] * step, *strides[dim + 1 :])
        if name in ("split", "split_with_sizes", "chunk", "narrow"):
            return strides
        if name in ("select", "unbind"):
            dim = _dim(argument(operator, 1, "dim", 0), len(shape))
            return (*strides[:dim], *strides[dim + 1 :])
        return None

    # helpers of rules

    def flattened(self, ref: Ref, lead: int) -> Saved:
        """The value as a product reads it, its first `lead` dims merged: a view, or else a copy."""
        shape = self.shape(ref)
        merged = 1
        for size in shape[:lead]:
            merged *= size
        if viewed(shape, self.places[ref].strides, (merged, *shape[lead:])) is None:
            return _Extra(self.spec(ref))
        return ref

    def is_contiguous(self, ref: Ref) -> bool:
        """Whether a value is row-major without gaps."""
        return is_contiguous(self.shape(ref), self.places[ref].strides)


    def is_flash(self, operator: Operator) -> bool:
        """Whether attention runs the CPU's flash kernel, not products and a softmax.

        Source: `use_flash_attention_cpp` in ATen/native/transformers/sdp_utils_cpp.cpp.
        """
        q, k, v = (self.spec(_ref(operator.args[position])).shape for position in range(3))
        heads = q[1:2] == k[1:2] == v[1:2] or dict(operator.kwargs).get("enable_gqa") is True
        rows_apart = all(
            self.places[_ref(operator.args[position])].strides[-1:] == (1,) for position in range(3)
        )
        return (
            len(q) == len(k) == len(v) == 4
            and q[-1] == k[-1] == v[-1]
            and heads
            and rows_apart
            and argument(operator, 4, "dropout_p", 0.0) == 0.0
            and not self.needs(argument(operator, 3, "attn_mask"))
        )


def _dim(value: Argument, rank: int) -> int:
    assert isinstance(value, int)
    return value % rank


def _ref(value: Argument) -> Ref:
    assert isinstance(value, Ref)
    return value


_RULES: Final[dict[str, Rule]] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


@_rule("linear")
def _linear(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    """mm of the activation as rows with the transposed weight."""
    x, weight = _ref(operator.args[0]), _ref(operator.args[1])
    if tracker.needs(weight):
        yield tracker.flattened(x, max(len(tracker.shape(x)) - 1, 1))
    if tracker.needs(x):
        yield weight


@_rule("addmm", "baddbmm")
def _addmm(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    yield from _pair(tracker, operator.args[1], operator.args[2])


@_rule("mm", "bmm", "mv", "dot", "mul", "conv1d", "conv2d", "conv3d", "maximum", "minimum")
def _product(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    yield from _pair(tracker, operator.args[0], operator.args[1])


def _pair(tracker: _Tracker, left: Argument, right: Argument) -> Iterator[Saved]:
    """Each is saved where the other needs a gradient; numbers are not."""
    if isinstance(left, Ref) and tracker.needs(right):
        yield left
    if isinstance(right, Ref) and tracker.needs(left):
        yield right


@_rule("matmul")
def _matmul(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    """Batches are merged into one dim; operands that cannot be viewed so, or are broadcast, are copied."""
    left, right = _ref(operator.args[0]), _ref(operator.args[1])
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


def _batched(tracker: _Tracker, ref: Ref, operator: Operator) -> Saved:
    lead = operator.outputs[0].shape[:-2]
    spec = tracker.spec(ref)
    if tuple(lead) != tuple(spec.shape[:-2]):
        return _Extra(TensorSpec((*lead, *spec.shape[-2:]), spec.dtype))
    return tracker.flattened(ref, len(lead))


@_rule("div")
def _div(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    left, right = operator.args[0], operator.args[1]
    if isinstance(right, Ref):
        yield right
        if tracker.needs(right) and isinstance(left, Ref):
            yield left


@_rule("where")
def _where(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    yield _ref(operator.args[0])


@_rule("masked_fill")
def _masked_fill(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    yield _ref(operator.args[1])


@_rule("embedding", "index", "gather", "index_select", "scatter", "index_put", "scatter_add")
def _lookup(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    """The indices."""
    yield from (ref for ref in operator.refs() if tracker.spec(ref).dtype not in FLOAT_DTYPES)


@_rule("layer_norm", "group_norm")
def _layer_norm(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    """The input and, per row, mean and reciprocal deviation."""
    x = _ref(operator.args[0])
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
    yield from (_Extra(TensorSpec(rows, spec.dtype)) for _ in range(2))


@_rule("rms_norm")
def _rms_norm(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    """The input and the reciprocal deviation per row."""
    x = _ref(operator.args[0])
    spec = tracker.spec(x)
    normalised = operator.args[1]
    assert isinstance(normalised, tuple)
    yield x
    yield _Extra(TensorSpec(spec.shape[: len(spec.shape) - len(normalised)], spec.dtype))


@_rule("scaled_dot_product_attention")
def _attention(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    """The flash kernel saves q, k, v, the result, log-sum-exp per row, and the mask as floats.

    Else scaled copies of q and k, the probabilities, and v as the product reads it.
    """
    q, k, v = (_ref(operator.args[position]) for position in range(3))
    spec = tracker.spec(q)
    if not tracker.is_flash(operator):
        yield from _products_of_attention(tracker, operator)
        return
    mask = argument(operator, 3, "attn_mask")
    if isinstance(mask, Ref):
        given = tracker.spec(mask)
        yield _Extra(TensorSpec(given.shape, spec.dtype)) if given.dtype == "bool" else mask
    yield from (q, k, v)
    wide = "float64" if spec.dtype == "float64" else "float32"
    yield _Extra(TensorSpec(spec.shape[:-1], wide))
    yield Ref(operator.name)


def _products_of_attention(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    q, k, v = (tracker.spec(_ref(operator.args[position])) for position in range(3))
    lead = q.shape[:-2]
    yield _Extra(q)
    yield _Extra(TensorSpec((*lead, *k.shape[-2:]), q.dtype))
    scores = TensorSpec((*lead, q.shape[-2], k.shape[-2]), q.dtype)
    yield _Extra(scores)
    if argument(operator, 4, "dropout_p", 0.0) != 0.0:
        yield from (_Extra(scores), _Extra(scores))
    if v.shape[:-2] == lead:
        yield tracker.flattened(_ref(operator.args[2]), len(lead))
    else:
        yield _Extra(TensorSpec((*lead, *v.shape[-2:]), v.dtype))


@_rule("batch_norm")
def _batch_norm(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    """The input and, per channel, mean and reciprocal deviation of the batch."""
    x = _ref(operator.args[0])
    spec = tracker.spec(x)
    yield x
    if operator.args[5] is True:
        wide = "float64" if spec.dtype == "float64" else "float32"
        yield from (_Extra(TensorSpec(spec.shape[1:2], wide)) for _ in range(2))


@_rule("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    """The input, and where each maximum stood."""
    yield _ref(operator.args[0])
    yield _Extra(TensorSpec(operator.outputs[0].shape, "int64"))


@_rule("cross_entropy_loss")
def _cross_entropy(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    """The log-probabilities, the targets, and the total weight."""
    scores, target = _ref(operator.args[0]), _ref(operator.args[1])
    spec = tracker.spec(scores)
    yield _Extra(spec)
    yield target
    yield _Extra(TensorSpec((), spec.dtype))


@_rule("nll_loss", "nll_loss_nd")
def _likelihood(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    scores, target = _ref(operator.args[0]), _ref(operator.args[1])
    yield from (scores, target)
    yield _Extra(TensorSpec((), tracker.spec(scores).dtype))


@_rule("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
def _elementwise_loss(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    yield from operator.refs()[:2]


@_rule("dropout")
def _dropout(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    """The scaled mask, in the dtype of the input."""
    yield _Extra(tracker.spec(_ref(operator.args[0])))


@_rule("topk", "sort", "max", "min")
def _ordered(tracker: _Tracker, operator: Operator) -> Iterator[Saved]:
    """The positions, the second result."""
    yield Ref(operator.name, 1) if len(operator.outputs) > 1 else _ref(operator.args[0])
