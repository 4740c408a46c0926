"""Which operators keep which of their operands for the backward, on CPU, in eager PyTorch.

Needed to state two things before they are run: which gathered weights a backward opens again
(runtime/regather.py), and where recomputation of a unit stops (torch.utils.checkpoint stops at the
last tensor that the unit saved). tests/planner/test_stated_is_executed.py counts both.
"""

from collections.abc import Sequence
from typing import Final

from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.program import Call

_PRODUCTS: Final = {
    "aten.linear.default": (0, 1),
    "aten.addmm.default": (1, 2),
    "aten.matmul.default": (0, 1),
    "aten.mm.default": (0, 1),
    "aten.bmm.default": (0, 1),
}
_BOTH: Final = frozenset({"aten.mul.Tensor", "aten.div.Tensor"})
_NOTHING: Final = frozenset(
    f"aten.{name}"
    for name in (
        "add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "neg.default",
        "view.default", "reshape.default", "_unsafe_view.default", "transpose.int", "t.default",
        "permute.default", "unsqueeze.default", "squeeze.dim", "expand.default", "slice.Tensor",
        "select.int", "split.Tensor", "split_with_sizes.default", "chunk.default", "cat.default",
        "to.dtype", "_to_copy.default", "to.dtype_layout", "to.device", "clone.default",
        "alias.default", "contiguous.default", "sum.default", "sum.dim_IntList", "mean.dim",
        "mean.default", "flatten.using_ints", "stack.default", "mul.Scalar", "div.Scalar",
        "detach.default", "type_as.default", "unflatten.int",
    )
)  # fmt: skip


def saved_operands(call: Call) -> tuple[int, ...]:
    """Indices (into the call's tensor operands) that autograd keeps until the backward.

    Of a product: the activation and the weight (each is needed for the gradient of the other). Of a
    normalisation: all operands. Of a lookup or a sum: none but integers.
    """
    kind = call.operator.kind
    count = len(call.reads)
    if not call.needs_gradient or kind in _NOTHING or kind == "aten.embedding.default":
        return ()
    if kind in _PRODUCTS:
        return tuple(i for i in _PRODUCTS[kind] if i < count)
    if kind in _BOTH and count == 2:
        return (0, 1)
    if kind in _SAVE_RESULT_ONLY:
        return ()
    if kind == "aten.cross_entropy_loss.default":
        return (1,)
    return tuple(range(count))


def saves_anything(call: Call) -> bool:
    """Whether autograd keeps any tensor of this call (an operand, an output, a mask, ids)."""
    return call.needs_gradient and call.operator.kind not in _NOTHING


_VIEWS: Final = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "reshape.default", "_unsafe_view.default", "transpose.int", "t.default",
        "permute.default", "unsqueeze.default", "squeeze.dim", "expand.default", "slice.Tensor",
        "select.int", "split.Tensor", "split_with_sizes.default", "chunk.default", "alias.default",
        "detach.default", "flatten.using_ints", "unflatten.int",
    )
)  # fmt: skip
_SAVE_RESULT_ONLY: Final = frozenset(
    f"aten.{name}.default" for name in ("exp", "tanh", "sigmoid", "sqrt", "rsqrt", "relu")
)
_SAVE_RESULT: Final = frozenset(
    {"aten.softmax.int", "aten._softmax.default", "aten.scaled_dot_product_attention.default"}
)
FLOAT_BYTES: Final = 4
"""Statistics of normalisations and the log-sum-exp of attention are kept in float32."""


def is_view(call: Call) -> bool:
    """Whether the call's result shares memory with its first operand (a reshape mostly does)."""
    return call.operator.kind in _VIEWS


def saves_output(call: Call) -> bool:
    """Whether autograd keeps the call's result."""
    return call.needs_gradient and call.operator.kind in _SAVE_RESULT | _SAVE_RESULT_ONLY


def saves_extra(call: Call, operands: Sequence[int], results: Sequence[int]) -> int:
    """Bytes that autograd keeps beside operands and results, from their local bytes.

    Attention keeps one log-sum-exp per row of a head; a normalisation keeps mean and inverse
    deviation per row; cross-entropy keeps the log-softmax of the logits, and the class-parallel
    call the exponentials, as large as the logits.
    """
    if not call.needs_gradient:
        return 0
    kind, shape = call.operator.kind, call.operator.outputs[0].shape
    if kind == "aten.scaled_dot_product_attention.default":
        width = int(shape[-1]) * DTYPE_BYTES[call.operator.outputs[0].dtype]
        return results[0] // width * FLOAT_BYTES
    if kind == "aten.layer_norm.default":
        width = int(shape[-1]) * DTYPE_BYTES[call.operator.outputs[0].dtype]
        return 2 * results[0] // width * FLOAT_BYTES
    if kind == "aten.cross_entropy_loss.default":
        return operands[0]
    return 0
