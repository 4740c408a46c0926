"""A graph in float64: every float dtype of it is lifted, casts included.

Models cast to float32 where they want more precision than bfloat16 (norms, softmax, losses); kept
in float64 arithmetic, such a cast would lose nine digits and hide errors below them. What is
compared in float64 is therefore lifted on both sides (runtime/verify.py).
"""

from dataclasses import replace

from shardwise.ir.argument import Argument, Dtype
from shardwise.ir.dtype import FLOAT_DTYPES
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.operator import Operator
from shardwise.ir.tensor import TensorSpec

WIDE = "float64"


def lifted(graph: OperatorGraph) -> OperatorGraph:
    """The graph with float64 in place of every float dtype; equal meaning, more digits."""
    return replace(
        graph,
        inputs=tuple(replace(item, spec=_spec(item.spec)) for item in graph.inputs),
        parameters=tuple(replace(item, spec=_spec(item.spec)) for item in graph.parameters),
        constants=tuple(replace(item, spec=_spec(item.spec)) for item in graph.constants),
        operators=tuple(_operator(operator) for operator in graph.operators),
    )


def _operator(operator: Operator) -> Operator:
    return replace(
        operator,
        args=tuple(_argument(value) for value in operator.args),
        kwargs=tuple((key, _argument(value)) for key, value in operator.kwargs),
        outputs=tuple(_spec(spec) for spec in operator.outputs),
    )


def _argument(value: Argument) -> Argument:
    if isinstance(value, Dtype) and value.name in FLOAT_DTYPES:
        return Dtype(WIDE)
    if isinstance(value, tuple):
        return tuple(_argument(item) for item in value)
    return value


def _spec(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape, WIDE) if spec.dtype in FLOAT_DTYPES else spec
