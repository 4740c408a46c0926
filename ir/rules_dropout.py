"""Rule of dropout with its mask: pointwise, two results that are cut alike."""

from shardwise.ir.axis_state import WHOLE, Sharded
from shardwise.ir.rules import Decision, Operands, resolved, rule


@rule("aten.native_dropout.default")
def native_dropout(operands: Operands) -> Decision:
    """The result and its mask stand where the operand stands; a pending sum goes home first."""
    state = resolved(operands.values[0], operands.setting)
    target = state if isinstance(state, Sharded) else WHOLE
    return operands.decide({0: target}, target, target)
