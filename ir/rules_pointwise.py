"""Rules of pointwise operators: one rule, right-aligned broadcasting."""

from shardwise.ir.axis_state import ADDEND, WHOLE, AxisState, Sharded
from shardwise.ir.rules import Decision, Operand, Operands, companion, resolved, rule
from shardwise.ir.rules import whole as read_whole

_BINARY = ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "remainder")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY = (
    "neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sigmoid", "tanh", "relu", "silu",
    "gelu", "sin", "cos", "erf", "softplus", "mish", "hardtanh", "leaky_relu", "elu", "log1p",
    "logical_not", "bitwise_not", "isnan", "isinf", "floor", "ceil", "round", "sign", "square",
    "clamp", "clamp_min", "clamp_max", "clone", "detach", "alias", "contiguous", "zeros_like",
    "ones_like", "full_like", "empty_like", "log_sigmoid", "hardswish", "selu", "relu6", "expm1",
    "floor_divide",
)  # fmt: skip
POINTWISE_KINDS: tuple[str, ...] = (
    *(f"aten.{name}.Tensor" for name in _BINARY),
    *(f"aten.{name}.Scalar" for name in (*_COMPARISONS, "add", "sub", "mul", "div", "remainder")),
    *(f"aten.{name}.default" for name in (*_UNARY, "maximum", "minimum", "dropout")),
    "aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar", "aten.rsub.Scalar",
    "aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar",
    "aten.masked_fill.Scalar", "aten.masked_fill.Tensor", "aten.clamp.Tensor",
    "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten._to_copy.default",
    "aten.logical_and.default", "aten.logical_or.default",
    "aten.logical_xor.default", "aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor",
    "aten.bitwise_xor.Tensor", "aten.__and__.Tensor", "aten.__or__.Tensor", "aten.__xor__.Tensor",
    "aten.addcmul.default", "aten.addcdiv.default", "aten.lerp.Scalar", "aten.fill.Scalar",
    "aten.min.other", "aten.max.other",
)  # fmt: skip
_LINEAR_KINDS = ("aten.add.Tensor", "aten.sub.Tensor")


@rule(*POINTWISE_KINDS)
def pointwise(operands: Operands) -> Decision:
    """Operands without the sharded dim are read whole beside shards; sums of addends stay
    addends."""
    values = operands.values
    if (
        operands.operator.kind in _LINEAR_KINDS
        and len(values) == 2
        and all(value.state is ADDEND for value in values)
        and values[0].spec.shape == values[1].spec.shape
    ):
        return operands.decide({0: ADDEND, 1: ADDEND}, ADDEND)
    target = _target(operands)
    reads = {i: _read(value, target, operands) for i, value in enumerate(values)}
    return operands.decide(reads, target)


def _rank(operands: Operands) -> int:
    return len(operands.operator.outputs[0].shape)


def _target(operands: Operands) -> AxisState:
    """The output's state: home if an operand is there, else the first operand's shard, else
    whole."""
    rank, output = _rank(operands), operands.operator.outputs[0]
    candidates: list[Sharded] = []
    for value in operands.values:
        state = resolved(value, operands.setting)
        if isinstance(state, Sharded):
            candidates.append(Sharded(state.dim + rank - len(value.spec.shape), state.outer))
    home = operands.setting.home(output)
    if home in candidates:
        return home
    return candidates[0] if candidates else WHOLE


def _read(value: Operand, target: AxisState, operands: Operands) -> AxisState:
    if not isinstance(target, Sharded):
        return WHOLE
    dim = target.dim - (_rank(operands) - len(value.spec.shape))
    if dim < 0 or value.spec.shape[dim] == 1:
        return companion(target)
    return Sharded(dim, target.outer)


@rule("aten.type_as.default")
def type_as(operands: Operands) -> Decision:
    """Only the dtype of the second operand counts: it is read where it is."""
    state = resolved(operands.values[0], operands.setting)
    return operands.decide({0: state, 1: operands.values[1].state}, state)


@rule(
    "aten.new_zeros.default", "aten.new_ones.default", "aten.new_full.default",
    "aten.new_empty.default",
)  # fmt: skip
def like_of_other_shape(operands: Operands) -> Decision:
    """A factory: the operand gives a dtype and is read where it is; the result is whole."""
    return operands.decide({0: operands.values[0].state}, WHOLE)


_SUM = 2
_NONE = 0
_REDUCTION_AT = {
    "aten.mse_loss.default": 2,
    "aten.l1_loss.default": 2,
    "aten.smooth_l1_loss.default": 2,
    "aten.huber_loss.default": 2,
    "aten.soft_margin_loss.default": 2,
    "aten.binary_cross_entropy.default": 3,
    "aten.binary_cross_entropy_with_logits.default": 4,
}
"""Losses of element and target -> position of `reduction`."""


@rule(*_REDUCTION_AT)
def elementwise_loss(operands: Operands) -> Decision:
    """Pointwise, or its sum: then shards leave an addend. A mean is of whole tensors."""
    reduction = operands.argument(_REDUCTION_AT[operands.operator.kind], "reduction", 1)
    shapes = {value.spec.shape for value in operands.values}
    if len(shapes) > 1 or reduction not in (_SUM, _NONE):
        return read_whole(operands)
    states = [resolved(value, operands.setting) for value in operands.values]
    target: AxisState = next((s for s in states if isinstance(s, Sharded)), WHOLE)
    written = ADDEND if reduction == _SUM and isinstance(target, Sharded) else target
    return operands.decide(dict.fromkeys(range(len(states)), target), written)
