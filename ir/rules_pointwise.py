"""Rules of pointwise operators: one rule, right-aligned broadcasting."""

from shardwise.ir.axis_state import ADDEND, WHOLE, AxisState, Sharded
from shardwise.ir.rules import Decision, Operand, Operands, companion, resolved, rule

_BINARY = (
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "maximum",
    "minimum",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY = (
    "neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sigmoid", "tanh", "relu", "silu",
    "gelu", "sin", "cos", "erf", "softplus", "mish", "hardtanh", "leaky_relu", "elu", "log1p",
    "logical_not", "bitwise_not", "isnan", "isinf", "floor", "ceil", "round", "sign", "square",
    "clamp", "clamp_min", "clamp_max", "clone", "detach", "alias", "contiguous", "zeros_like",
    "ones_like", "log_sigmoid", "hardswish", "selu", "relu6", "expm1", "floor_divide",
)  # fmt: skip
POINTWISE_KINDS: tuple[str, ...] = (
    *(f"aten.{name}.Tensor" for name in (*_BINARY, "ge", "remainder", "floor_divide")),
    *(f"aten.{name}.Scalar" for name in (*_COMPARISONS, "add", "sub", "mul", "div", "remainder")),
    *(f"aten.{name}.default" for name in (*_UNARY, "maximum", "minimum", "where", "dropout")),
    "aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar", "aten.rsub.Scalar",
    "aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar",
    "aten.masked_fill.Scalar", "aten.masked_fill.Tensor", "aten.clamp.Tensor",
    "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten._to_copy.default",
    "aten.type_as.default", "aten.logical_and.default", "aten.logical_or.default",
    "aten.logical_xor.default", "aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor",
    "aten.bitwise_xor.Tensor", "aten.__and__.Tensor", "aten.__or__.Tensor", "aten.__xor__.Tensor",
    "aten.addcmul.default", "aten.addcdiv.default", "aten.lerp.Scalar", "aten.fill.Scalar",
)  # fmt: skip
_LINEAR_KINDS = ("aten.add.Tensor", "aten.sub.Tensor")


@rule(*dict.fromkeys(kind for kind in POINTWISE_KINDS if kind != "aten.where.default"))
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
