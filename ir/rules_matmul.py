"""Rules of matrix products: loops m, n, k; a sharded k leaves an addend.

In the tensor role a product whose activation is whole on k is column-parallel (its output is
sharded over n) and one whose activation arrives sharded over k is row-parallel (Shoeybi et al.
2019, section 3): no pattern is matched, the second product of an MLP or an attention block is
row-parallel because its input is sharded. In every other role weights are read whole.
"""

from shardwise.ir.axis_state import ADDEND, READ, WHOLE, AxisState, Sharded
from shardwise.ir.rules import Decision, Operand, Operands, companion, resolved, rule
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
    """y[..., m, n] = a[..., m, k] b[..., k, n]; with a parameter b it is a linear.

    A shard of k on one side cuts the other one too and leaves an addend; a shard of m, n or a batch
    dim stays. Vectors are read whole.
    """
    _, b = operands.values
    if b.is_parameter and len(b.spec.shape) == 2:
        return _product(operands, x=0, weight=1, bias=None, n_dim=1)
    return _of_two(operands, 0, 1)


@rule("aten.baddbmm.default")
def baddbmm(operands: Operands) -> Decision:
    """y[b, m, n] = beta c[b, m, n] + alpha x[b, m, k] w[b, k, n]; c broadcasts."""
    made = _of_two(operands, 1, 2)
    bias = _bias(operands.values[0], made.writes[0], len(operands.operator.outputs[0].shape))
    return operands.decide({0: bias, 1: made.reads[1], 2: made.reads[2]}, made.writes[0])


def _of_two(operands: Operands, i: int, j: int) -> Decision:
    """The product of the operands `i` and `j`, neither of them a stored matrix."""
    a, b = operands.values[i], operands.values[j]
    rank_a, rank_b = len(a.spec.shape), len(b.spec.shape)
    if rank_a < 2 or rank_b < 2:
        return operands.decide({}, WHOLE)
    rank = len(operands.operator.outputs[0].shape)
    state_a, state_b = resolved(a, operands.setting), resolved(b, operands.setting)
    k_a, k_b = _is_dim(state_a, rank_a - 1), _is_dim(state_b, rank_b - 2)
    if k_a and (k_b or not isinstance(state_b, Sharded)):
        return operands.decide({i: state_a, j: _along(state_a, rank_b - 2)}, ADDEND)
    if k_b and not isinstance(state_a, Sharded):
        return operands.decide({i: _along(state_b, rank_a - 1), j: state_b}, ADDEND)
    if isinstance(state_a, Sharded) and not k_a:
        out = _along(state_a, state_a.dim + rank - rank_a)
        other = READ if state_a.dim == rank_a - 2 else _beside(b, out, rank)
        return operands.decide({i: state_a, j: other}, out)
    if isinstance(state_b, Sharded) and not k_b:
        out = _along(state_b, state_b.dim + rank - rank_b)
        other = READ if state_b.dim == rank_b - 1 else _beside(a, out, rank)
        return operands.decide({i: other, j: state_b}, out)
    return operands.decide({}, WHOLE)


def _is_dim(state: AxisState, dim: int) -> bool:
    return isinstance(state, Sharded) and state.dim == dim


def _along(state: AxisState, dim: int) -> Sharded:
    """The same cut on another tensor's dim."""
    assert isinstance(state, Sharded)
    return Sharded(dim, state.outer)


def _beside(operand: Operand, out: Sharded, rank: int) -> AxisState:
    """How the other operand is read where a batch dim of the output is cut."""
    dim = out.dim - (rank - len(operand.spec.shape))
    broadcast = dim < 0 or operand.spec.shape[dim] == 1
    return READ if broadcast else Sharded(dim, out.outer)


def _product(operands: Operands, *, x: int, weight: int, bias: int | None, n_dim: int) -> Decision:
    """Activation times weight; `n_dim` is the weight's output dim, the other one is k."""
    activation, matrix = operands.values[x], operands.values[weight]
    last = len(activation.spec.shape) - 1
    state = resolved(activation, operands.setting)
    if isinstance(state, Sharded) and state.dim == last:
        reads: dict[int, AxisState] = {x: state, weight: Sharded(1 - n_dim, state.outer)}
        written: AxisState = ADDEND
    elif (
        operands.setting.role is Role.TENSOR
        and matrix.is_parameter
        and operands.setting.divides(matrix.spec.shape[n_dim])
    ):
        reads, written = {x: READ, weight: Sharded(n_dim)}, Sharded(last)
    else:
        reads, written = {x: state, weight: companion(state)}, state
    if bias is not None:
        reads[bias] = _bias(operands.values[bias], written, last + 1)
    return operands.decide(reads, written)


def _bias(bias: Operand, written: AxisState, rank: int) -> AxisState:
    """An addend counts once; beside a shard the bias is cut where it has that dim."""
    if not isinstance(written, Sharded):
        return written
    dim = written.dim - (rank - len(bias.spec.shape))
    if dim < 0 or bias.spec.shape[dim] == 1:
        return READ
    return Sharded(dim, written.outer)


@rule("aten.einsum.default")
def einsum(operands: Operands) -> Decision:
    """A sum of products over letters: the first letter that arrives cut is cut everywhere.

    If the result has the letter it is cut too, else it is an addend. Equations with `...` or with a
    letter twice in one operand are of whole tensors.
    """
    equation = operands.argument(0, "equation")
    assert isinstance(equation, str)
    left, arrow, right = equation.replace(" ", "").partition("->")
    letters = left.split(",")
    if "." in equation or any(len(set(one)) < len(one) for one in letters):
        return operands.decide({}, WHOLE)
    if not arrow:
        right = "".join(sorted(one for one in set(left) - {","} if left.count(one) == 1))
    for value, names in zip(operands.values, letters, strict=True):
        state = resolved(value, operands.setting)
        if isinstance(state, Sharded):
            cut = names[state.dim]
            reads = {i: _at_letter(cut, one, state) for i, one in enumerate(letters)}
            written = _at_letter(cut, right, state)
            return operands.decide(reads, ADDEND if written is READ else written)
    return operands.decide({}, WHOLE)


def _at_letter(letter: str, names: str, state: Sharded) -> AxisState:
    return Sharded(names.index(letter), state.outer) if letter in names else READ
