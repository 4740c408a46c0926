"""What a rule decides for operands in given states, on one axis of two ranks."""

from shardwise.ir import decide  # noqa: F401  (fills the registry)
from shardwise.ir.argument import Ref
from shardwise.ir.operator import Operator
from shardwise.ir.rules import RULES, Operand, Operands, Setting
from shardwise.ir.strategy import Role
from shardwise.ir.tensor import TensorSpec

BATCH = Setting("x0", 2, Role.BATCH)
TENSOR = Setting("x0", 2, Role.TENSOR)
SEQUENCE = Setting("x0", 2, Role.SEQUENCE, sequence_home=True)
FREE = Setting("x0", 1, Role.REPLICATE)


def spec(text):
    return TensorSpec.parse(text)


def decision(kind, *values, setting=TENSOR, args=None, out="float32[B, S, 8]", at=None):
    """The rule's decision for operands (spec text, state[, is a parameter]).

    `at` places operands that stand in a list argument: operand -> (argument, place).
    """
    refs = tuple(Ref(f"v{i}") for i in range(len(values)))
    operator = Operator("op", kind, args or refs, (), (spec(out),))
    operands = tuple(
        Operand(("args", *(at or {}).get(i, (i,))), spec(text), state, True, bool(more))
        for i, (text, state, *more) in enumerate(values)
    )
    return RULES[kind](Operands(operator, operands, setting))
