"""Rules of matrix products: loops m, n, k; a sharded k leaves an addend.

In the tensor role a product whose activation is whole on k is column-parallel (its output is
sharded over n) and one whose activation arrives sharded over k is row-parallel (Shoeybi et al.
2019, section 3): no pattern is matched, the second product of an MLP or an attention block is
row-parallel because its input is sharded. In every other role weights are read whole.
"""

from shardwise.ir.axis_state import ADDEND, READ, WHOLE, AxisState, Sharded
from shardwise.ir.rules import Decision, Operands, companion, resolved, rule
from shardwise.ir.strategy import Role


@rule("aten.linear.default")
def linear(operands: Operands) -> Decision:
    """y[..., n] = x[..., k] w[n, k] + b[n]."""
    return _product(operands, x=0, weight=1, bias=operands.index(2, "bias"), n_dim=0)


@rule("aten.addmm.default")
def addmm(operands: Operands) -> Decision:
    """y[m, n] = b[n] + x[m, k] w[k, n]."""
    return _product(operands, x=1, weight=2, bias=0, n_dim=1)


@rule("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
def matmul(operands: Operands) -> Decision:
    """y[..., m, n] = a[..., m, k] b[..., k, n]; with a parameter b it is a linear."""
    a, b = operands.values
    if b.is_parameter and len(b.spec.shape) == 2:
        return _product(operands, x=0, weight=1, bias=None, n_dim=1)
    rank_a, rank_b = len(a.spec.shape), len(b.spec.shape)
    rank = len(operands.operator.outputs[0].shape)
    state_a, state_b = resolved(a, operands.setting), resolved(b, operands.setting)
    if rank_a < 2 or rank_b < 2:
        return operands.decide({}, WHOLE)
    if isinstance(state_a, Sharded) and state_a.dim == rank_a - 1:
        if isinstance(state_b, Sharded) and state_b.dim == rank_b - 2:
            return operands.decide({0: state_a, 1: Sharded(rank_b - 2, state_a.outer)}, ADDEND)
        state_a = WHOLE
    if isinstance(state_a, Sharded):
        out = Sharded(state_a.dim + rank - rank_a, state_a.outer)
        if state_a.dim == rank_a - 2:
            return operands.decide({0: state_a, 1: READ}, out)
        dim_b = out.dim - (rank - rank_b)
        broadcast = dim_b < 0 or b.spec.shape[dim_b] == 1
        return operands.decide(
            {0: state_a, 1: READ if broadcast else Sharded(dim_b, state_a.outer)}, out
        )
    if isinstance(state_b, Sharded) and state_b.dim == rank_b - 1:
        return operands.decide({0: READ, 1: state_b}, Sharded(rank - 1, state_b.outer))
    return operands.decide({}, WHOLE)


def _product(operands: Operands, *, x: int, weight: int, bias: int | None, n_dim: int) -> Decision:
    """Activation times weight; `n_dim` is the weight's output dim, the other one is k."""
    activation, matrix = operands.values[x], operands.values[weight]
    last = len(activation.spec.shape) - 1
    state = resolved(activation, operands.setting)
    reads: dict[int, AxisState] = {}
    if isinstance(state, Sharded) and state.dim == last:
        reads = {x: state, weight: Sharded(1 - n_dim, state.outer)}
        if bias is not None:
            reads[bias] = ADDEND
        return operands.decide(reads, ADDEND)
    if (
        operands.setting.role is Role.TENSOR
        and matrix.is_parameter
        and operands.setting.divides(matrix.spec.shape[n_dim])
    ):
        reads = {x: READ, weight: Sharded(n_dim)}
        if bias is not None:
            reads[bias] = Sharded(0)
        return operands.decide(reads, Sharded(last))
    beside = companion(state)
    reads = {x: state, weight: beside}
    if bias is not None:
        reads[bias] = beside
    return operands.decide(reads, state)
