"""Rules of look-ups by index and of writes at an index.

A look-up is a product with a one-hot matrix: what it looks in is whole along the indexed dims, and
rows of the index can be cut (an embedding with more dims). Other dims are free.
"""

import sympy

from shardwise.ir.axis_state import READ, WHOLE, AxisState, Sharded, Size
from shardwise.ir.operator import Ref
from shardwise.ir.rules import Decision, Operand, Operands, resolved, rule, whole

_MASKS = ("bool", "uint8")


@rule("aten.index.Tensor")
def index(operands: Operands) -> Decision:
    """x[i, j, ...]: indices broadcast together and stand where the first of them stood.

    They stand first where dims that are kept whole lie between them. A mask selects a number of
    rows that depends on values: read whole.
    """
    indices = operands.argument(1, "indices")
    assert isinstance(indices, tuple)
    at = {dim: operands.index_in(1, dim) for dim, one in enumerate(indices) if isinstance(one, Ref)}
    looked_up = [operands.values[place] for place in at.values()]
    if any(one.spec.dtype in _MASKS for one in looked_up):
        return whole(operands)
    rank = max(len(one.spec.shape) for one in looked_up)
    dims = list(at)
    first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    kept = [dim for dim in range(len(operands.values[0].spec.shape)) if dim not in at]
    out = [*kept[:first], *([None] * rank), *kept[first:]]
    state = resolved(operands.values[0], operands.setting)
    if isinstance(state, Sharded) and state.dim in kept:
        return operands.decide({0: state}, Sharded(out.index(state.dim), state.outer))
    cut = _rows(operands, looked_up, rank)
    if cut is None:
        return whole(operands)
    reads: dict[int, AxisState] = {0: READ}
    for place, one in zip(at.values(), looked_up, strict=True):
        reads[place] = _beside(one, cut, rank)
    return operands.decide(reads, Sharded(first + cut.dim, cut.outer))


def _rows(operands: Operands, indices: list[Operand], rank: int) -> Sharded | None:
    """The cut of the broadcast index: as an index arrives, or else where it is at home."""
    states = [one.state for one in indices]
    homes = [operands.setting.home(one.spec) for one in indices]
    for one, state in zip((*indices, *indices), (*states, *homes), strict=True):
        if isinstance(state, Sharded) and one.spec.shape[state.dim] != 1:
            return Sharded(state.dim + rank - len(one.spec.shape), state.outer)
    return None


def _beside(one: Operand, cut: Sharded, rank: int) -> AxisState:
    """How an index is read: cut alike where it has the dim."""
    dim = cut.dim - (rank - len(one.spec.shape))
    return READ if dim < 0 or one.spec.shape[dim] == 1 else Sharded(dim, cut.outer)


@rule("aten.index_select.default")
def index_select(operands: Operands) -> Decision:
    """Rows of one dim, in the order of a vector of indices."""
    value, rows = operands.values
    dim = _dim(operands, len(value.spec.shape))
    state = resolved(value, operands.setting)
    if isinstance(state, Sharded) and state.dim != dim:
        return operands.decide({0: state}, state)
    cut = _rows(operands, [rows], 1)
    if cut is None or not rows.spec.shape:
        return whole(operands)
    return operands.decide({0: READ, 1: cut}, Sharded(dim, cut.outer))


def _dim(operands: Operands, rank: int) -> int:
    dim = operands.argument(1, "dim")
    assert isinstance(dim, int)
    return dim % rank


@rule("aten.gather.default")
def gather(operands: Operands) -> Decision:
    """y[.., i, ..] = x[.., index[.., i, ..], ..]: the index has the shape of the result.

    Other dims than the indexed one are free where both have them in full; rows of the index too.
    """
    value, rows = operands.values
    if not value.spec.shape:
        return whole(operands)
    dim = _dim(operands, len(value.spec.shape))
    setting = operands.setting
    for state in (rows.state, resolved(value, setting), setting.home(rows.spec)):
        if not isinstance(state, Sharded):
            continue
        length: Size = rows.spec.shape[state.dim]
        if state.dim == dim and state is not value.state and length != 1:
            return operands.decide({0: READ, 1: state}, state)
        if state.dim != dim and length == value.spec.shape[state.dim]:
            return operands.decide({0: state, 1: state}, state)
    return whole(operands)


@rule("aten.scatter.value", "aten.scatter.src", "aten.scatter_add.default")
def scatter(operands: Operands) -> Decision:
    """A copy of x, written at the index along one dim: other dims are free where all have them."""
    shape = operands.values[0].spec.shape
    if not shape:
        return whole(operands)
    dim = _dim(operands, len(shape))
    for state in (resolved(one, operands.setting) for one in operands.values):
        if (
            isinstance(state, Sharded)
            and state.dim != dim
            and all(one.spec.shape[state.dim] == shape[state.dim] for one in operands.values)
        ):
            return operands.decide(dict.fromkeys(range(len(operands.values)), state), state)
    return whole(operands)


@rule("aten.select_scatter.default")
def select_scatter(operands: Operands) -> Decision:
    """A copy of x with one index of a dim replaced by a tensor without that dim."""
    value, written = operands.values
    dim = operands.argument(2, "dim")
    assert isinstance(dim, int)
    dim %= len(value.spec.shape)
    state, other = (resolved(one, operands.setting) for one in (value, written))
    if isinstance(other, Sharded) and not isinstance(state, Sharded):
        state = Sharded(other.dim + (other.dim >= dim), other.outer)
    if not isinstance(state, Sharded) or state.dim == dim:
        return whole(operands)
    part = Sharded(state.dim - (state.dim > dim), state.outer)
    return operands.decide({0: state, 1: part}, state)


@rule("aten.repeat.default")
def repeat(operands: Operands) -> Decision:
    """Copies of the whole beside each other: a cut dim has so many outer blocks more."""
    value = operands.values[0]
    times = operands.argument(1, "repeats")
    assert isinstance(times, tuple)
    state = resolved(value, operands.setting)
    if not isinstance(state, Sharded):
        return operands.decide({}, WHOLE)
    dim = state.dim + len(times) - len(value.spec.shape)
    blocks = times[dim]
    assert isinstance(blocks, int | sympy.Expr)
    return operands.decide({0: state}, Sharded(dim, state.outer * blocks))


@rule("aten.repeat_interleave.self_int")
def repeat_interleave(operands: Operands) -> Decision:
    """Every element so many times in a row: a cut stays where it is.

    Without a dim the tensor is flattened first, and with a stated output size that size is of the
    whole: read whole in both cases, unless it is a vector.
    """
    value = operands.values[0]
    rank = len(value.spec.shape)
    dim = operands.argument(2, "dim")
    state = resolved(value, operands.setting)
    if not isinstance(state, Sharded) or (dim is None and rank != 1):
        return operands.decide({}, WHOLE)
    repeated = 0 if dim is None else int(dim) % rank  # type: ignore[arg-type]
    if state.dim == repeated and operands.argument(3, "output_size") is not None:
        return operands.decide({}, WHOLE)
    return operands.decide({0: state}, state)
