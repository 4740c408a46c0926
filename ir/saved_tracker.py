"""Where the values of a graph lie in memory: storages and strides, as in eager PyTorch on CPU.

Needed to say what a saved tensor keeps alive (its whole storage) and where a reshape or a product
makes a copy. Exact for sizes of at least 2.
"""

from dataclasses import dataclass, field
from typing import Final

import sympy

from shardwise.ir.argument import Argument, Ref
from shardwise.ir.expression import evaluate_size
from shardwise.ir.flops import nbytes
from shardwise.ir.graph import GraphInput, OperatorGraph
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import argument, gradient_values, leaves
from shardwise.ir.strides import Shape, contiguous, is_contiguous, pointwise, viewed
from shardwise.ir.tensor import TensorSpec

_POINTWISE: Final = frozenset({
    "add", "sub", "rsub", "mul", "div", "pow", "neg", "abs", "exp", "log", "sqrt", "rsqrt",
    "reciprocal", "sigmoid", "tanh", "relu", "silu", "gelu", "sin", "cos", "erf", "softplus",
    "mish", "hardtanh", "leaky_relu", "elu", "clamp", "clamp_min", "clamp_max", "where",
    "maximum", "minimum", "to", "masked_fill", "eq", "ne", "lt", "le", "gt", "ge", "logical_not",
    "bitwise_not", "__and__", "__or__", "logical_and", "logical_or", "bitwise_and", "bitwise_or",
    "square", "log1p", "hardswish", "dropout", "addcmul", "lerp", "softmax", "expm1",
})  # fmt: skip
"""Operators whose result is laid out like their operands (TensorIterator)."""


@dataclass(frozen=True)
class Place:
    """Where a value lies: the storage that holds it, and its strides in elements."""

    storage: str
    strides: Shape


@dataclass(frozen=True)
class Extra:
    """A tensor that is made only to be saved."""

    spec: TensorSpec


Saved = Ref | Extra
"""What autograd saves: a value of the graph, or a tensor of its own."""


@dataclass
class Tracker:
    """Follows storages and strides through a graph, in order."""

    graph: OperatorGraph
    sizes: dict[str, int] = field(default_factory=dict)
    """Large primes for the symbols: products are equal there only if they always are."""
    places: dict[Ref, Place] = field(default_factory=dict)
    storages: dict[str, sympy.Expr] = field(default_factory=dict)
    """Storage -> its bytes; those that stay anyway are absent."""

    def __post_init__(self) -> None:
        self.trained = gradient_values(self.graph)
        self.sizes = {
            entry.name: int(sympy.nextprime(1000 * (place + 1)))
            for place, entry in enumerate(self.graph.symbols)
        }
        for item in leaves(self.graph):
            self._allocate(Ref(item.name), item.spec)
            if not isinstance(item, GraphInput):
                del self.storages[item.name]

    def needs_backward(self, operator: Operator) -> bool:
        """Whether autograd records an operator."""
        return operator.name in self.trained

    def spec(self, ref: Ref) -> TensorSpec:
        """Shape and dtype of a value."""
        return self.graph.spec(ref)

    def shape(self, ref: Ref) -> Shape:
        """The shape at the sample sizes."""
        return self.numbers(self.spec(ref))

    def needs(self, value: Argument) -> bool:
        """Whether an argument is a tensor with a gradient."""
        return isinstance(value, Ref) and value.name in self.trained

    def numbers(self, spec: TensorSpec) -> Shape:
        """The shape of a spec at the sample sizes."""
        return tuple(
            size if isinstance(size, int) else evaluate_size(size, self.sizes)
            for size in spec.shape
        )

    def _allocate(self, ref: Ref, spec: TensorSpec, strides: Shape | None = None) -> None:
        storage = f"{ref.name}:{ref.index}" if ref.index else ref.name
        self.storages[storage] = nbytes(spec)
        self.places[ref] = Place(storage, strides or contiguous(self.numbers(spec)))

    def lay_out(self, operator: Operator) -> None:
        """Note where the outputs of an operator lie; call for each operator once, in order."""
        name = operator.kind.split(".")[1]
        source = operator.args[0] if operator.args else None
        for index, spec in enumerate(operator.outputs):
            ref = Ref(operator.name, index)
            strides = None
            if isinstance(source, Ref) and operator.kind.startswith("aten."):
                strides = self._view(operator, source, self.numbers(spec))
            if strides is not None:
                assert isinstance(source, Ref)
                self.places[ref] = Place(self.places[source].storage, strides)
            elif name == "scaled_dot_product_attention" and self.is_flash(operator):
                operands = [(self.shape(source), self.places[source].strides)]  # type: ignore[arg-type, index]
                self._allocate(ref, spec, pointwise(self.numbers(spec), operands))
            elif name in _POINTWISE:
                operands = [self._operand(r, spec) for r in operator.refs()]
                self._allocate(ref, spec, pointwise(self.numbers(spec), operands))
            else:
                self._allocate(ref, spec)

    def _operand(self, ref: Ref, output: TensorSpec) -> tuple[Shape, Shape]:
        """Shape and strides of an operand; one of another dtype is cast, that is copied, first."""
        shape, strides = self.shape(ref), self.places[ref].strides
        if output.dtype not in ("bool", self.spec(ref).dtype) and self.spec(ref).dtype != "bool":
            strides = pointwise(shape, [(shape, strides)])
        return shape, strides

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
            first, second = (dim_of(operator.args[k], len(shape)) for k in (1, 2))
            order[first], order[second] = order[second], order[first]
            return tuple(strides[dim] for dim in order)
        if name == "permute":
            dims = operator.args[1]
            assert isinstance(dims, tuple)
            return tuple(strides[dim_of(dim, len(shape))] for dim in dims)
        if name == "unsqueeze":
            dim = dim_of(operator.args[1], len(output))
            outer = strides[dim] * shape[dim] if dim < len(shape) else 1
            return (*strides[:dim], outer, *strides[dim:])
        if name == "expand":
            lead = len(output) - len(shape)
            return (0,) * lead + tuple(
                0 if size == 1 and output[lead + k] != 1 else strides[k]
                for k, size in enumerate(shape)
            )
        if name == "slice":
            dim = dim_of(argument(operator, 1, "dim", 0), len(shape))
            step = argument(operator, 4, "step", 1)
            assert isinstance(step, int)
            return (*strides[:dim], strides[dim] * step, *strides[dim + 1 :])
        if name in ("split", "split_with_sizes", "chunk", "narrow"):
            return strides
        if name in ("select", "unbind"):
            dim = dim_of(argument(operator, 1, "dim", 0), len(shape))
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
            return Extra(self.spec(ref))
        return ref

    def is_contiguous(self, ref: Ref) -> bool:
        """Whether a value is row-major without gaps."""
        return is_contiguous(self.shape(ref), self.places[ref].strides)

    def is_flash(self, operator: Operator) -> bool:
        """Whether attention runs the CPU's flash kernel, not products and a softmax.

        Source: `use_flash_attention_cpp` in ATen/native/transformers/sdp_utils_cpp.cpp.
        """
        q, k, v = (self.spec(ref_of(operator.args[position])).shape for position in range(3))
        heads = q[1:2] == k[1:2] == v[1:2] or dict(operator.kwargs).get("enable_gqa") is True
        rows_apart = all(
            self.places[ref_of(operator.args[position])].strides[-1:] == (1,)
            for position in range(3)
        )
        return (
            len(q) == len(k) == len(v) == 4
            and q[-1] == k[-1] == v[-1]
            and heads
            and rows_apart
            and argument(operator, 4, "dropout_p", 0.0) == 0.0
            and not self.needs(argument(operator, 3, "attn_mask"))
        )


def dim_of(value: Argument, rank: int) -> int:
    """An argument that is a dim, counted from the left."""
    assert isinstance(value, int)
    return value % rank


def ref_of(value: Argument) -> Ref:
    """An argument that is a tensor."""
    assert isinstance(value, Ref)
    return value
