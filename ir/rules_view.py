"""Rules of views: reshape, transpose and the like, and of operators that cut or join dims.

A reshape keeps a shard where the cut falls on whole blocks of the output too
(docs/design/emission.md, "views"): with `pre` = outer x the dims before the sharded one, an output
dim j takes the shard as (pre / dims before j, rest) if both are whole and the axis divides both the
old and the new middle.
"""

from functools import lru_cache

import sympy

from shardwise.ir.axis_state import ADDEND, WHOLE, AxisState, Sharded, Size
from shardwise.ir.operator import Argument
from shardwise.ir.rules import Decision, Operands, Setting, product, resolved, rule, whole

RESHAPE_KINDS = (
    "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default",
    "aten.flatten.using_ints", "aten.unflatten.int", "aten.unsqueeze.default",
    "aten.squeeze.dim", "aten.squeeze.default", "aten.squeeze.dims",
)  # fmt: skip


@rule(*RESHAPE_KINDS)
def reshape(operands: Operands) -> Decision:
    """Row-major order is kept, so a shard maps to the output dim that starts at the same place."""
    value = operands.values[0]
    output = operands.operator.outputs[0].shape
    if value.state is ADDEND:
        return operands.decide({0: ADDEND}, ADDEND)
    state = value.state
    if not isinstance(state, Sharded):
        return operands.decide({0: WHOLE}, WHOLE)
    mapped = map_reshape(state, value.spec.shape, output, operands.setting)
    if mapped is None:
        return operands.decide({0: WHOLE}, WHOLE)
    return operands.decide({0: state}, mapped)


def map_reshape(
    state: Sharded, before: tuple[Size, ...], after: tuple[Size, ...], setting: Setting
) -> Sharded | None:
    """The output's shard for an input's shard, or None where the cut is not on whole blocks."""
    pre = sympy.sympify(state.outer) * product(before[: state.dim])
    middle = _quotient(sympy.sympify(before[state.dim]), sympy.sympify(state.outer))
    if middle is None or not setting.divides(middle):
        return None
    lead = sympy.Integer(1)
    for dim, length in enumerate(after):
        outer = _quotient(pre, lead)
        if outer is not None:
            rest = _quotient(sympy.sympify(length), outer)
            if rest is not None and rest != 1 and setting.divides(rest):
                return Sharded(dim, int(outer) if outer.is_Integer else outer)
        lead = lead * length
    return None


@lru_cache(maxsize=1 << 12)
def _quotient(numerator: sympy.Expr, denominator: sympy.Expr) -> sympy.Expr | None:
    """numerator / denominator where that is a whole polynomial, else None."""
    ratio = sympy.cancel(numerator / denominator)
    if sympy.denom(ratio) != 1:
        return None
    return None if ratio.is_number and not ratio.is_Integer else ratio


def _permuted(operands: Operands, order: list[int]) -> Decision:
    """Output dim j is input dim order[j]."""
    state = operands.values[0].state
    if isinstance(state, Sharded):
        return operands.decide({0: state}, Sharded(order.index(state.dim), state.outer))
    if state is ADDEND:
        return operands.decide({0: ADDEND}, ADDEND)
    return operands.decide({0: WHOLE}, WHOLE)


@rule("aten.transpose.int")
def transpose(operands: Operands) -> Decision:
    """Two dims change places."""
    rank = len(operands.values[0].spec.shape)
    first, second = (int(operands.operator.args[i]) % rank for i in (1, 2))  # type: ignore[arg-type]
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return _permuted(operands, order)


@rule("aten.t.default", "aten.numpy_T.default")
def matrix_transpose(operands: Operands) -> Decision:
    """All dims in reverse (at most two for `t`)."""
    return _permuted(operands, list(reversed(range(len(operands.values[0].spec.shape)))))


@rule("aten.permute.default")
def permute(operands: Operands) -> Decision:
    """Output dim j is input dim dims[j]."""
    rank = len(operands.values[0].spec.shape)
    dims = operands.argument(1, "dims")
    return _permuted(operands, [int(d) % rank for d in dims])  # type: ignore[union-attr,arg-type]


@rule("aten.expand.default")
def expand(operands: Operands) -> Decision:
    """Dims of size 1 are repeated; a sharded dim keeps its place counted from the right."""
    value = operands.values[0]
    shift = len(operands.operator.outputs[0].shape) - len(value.spec.shape)
    state = resolved(value, operands.setting)
    if isinstance(state, Sharded):
        return operands.decide({0: state}, Sharded(state.dim + shift, state.outer))
    return operands.decide({0: WHOLE}, WHOLE)


def _cut(operands: Operands, dim: int, *, drops: bool = False) -> Decision:
    """Operators that cut or join along `dim`: free on the other dims, whole on this one."""
    rank = len(operands.values[0].spec.shape)
    dim %= rank
    states = [resolved(value, operands.setting) for value in operands.values]
    target: AxisState = next((s for s in states if isinstance(s, Sharded) and s.dim != dim), WHOLE)
    written = target
    if drops and isinstance(target, Sharded) and target.dim > dim:
        written = Sharded(target.dim - 1, target.outer)
    reads = dict.fromkeys(range(len(operands.values)), target)
    return operands.decide(reads, *(written for _ in operands.operator.outputs))


_DIM_IS_THIRD = ("split", "split_with_sizes", "chunk", "topk", "diff", "slice_scatter")
"""Names of operators whose dim is the third argument; of the others it is the second."""
_LAST_BY_DEFAULT = ("topk", "sort", "argsort", "diff")


@rule(
    "aten.slice.Tensor", "aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default",
    "aten.split.sizes", "aten.narrow.default", "aten.cumsum.default", "aten.softmax.int",
    "aten._softmax.default", "aten.log_softmax.int", "aten._log_softmax.default",
    "aten.unbind.int", "aten.topk.default", "aten.sort.default", "aten.argsort.default",
    "aten.cumprod.default", "aten.diff.default", "aten.slice_scatter.default",
)  # fmt: skip
def cut(operands: Operands) -> Decision:
    """One dim must be whole (by default the operators' own default)."""
    name = operands.operator.kind.split(".")[1]
    position = 2 if name in _DIM_IS_THIRD else 1
    dim = operands.argument(position, "dim", -1 if name in _LAST_BY_DEFAULT else 0)
    if not isinstance(dim, int):
        return whole(operands)
    return _cut(operands, dim, drops=operands.operator.kind == "aten.unbind.int")


@rule("aten.tril.default", "aten.triu.default")
def triangle(operands: Operands) -> Decision:
    """The last two dims must be whole."""
    state = resolved(operands.values[0], operands.setting)
    if isinstance(state, Sharded) and state.dim < len(operands.values[0].spec.shape) - 2:
        return operands.decide({0: state}, state)
    return operands.decide({}, WHOLE)


@rule("aten.flip.default")
def flip(operands: Operands) -> Decision:
    """The dims that are turned round must be whole."""
    return _along(operands, operands.argument(1, "dims"))


@rule("aten.roll.default")
def roll(operands: Operands) -> Decision:
    """The dims that are rolled must be whole; without dims the flattened tensor is rolled."""
    return _along(operands, operands.argument(2, "dims", ()) or None)


def _along(operands: Operands, dims: Argument) -> Decision:
    """Operators that keep the shape and mix along `dims` (None: along all): free elsewhere."""
    rank = len(operands.values[0].spec.shape)
    state = resolved(operands.values[0], operands.setting)
    if not isinstance(dims, tuple):
        return operands.decide({}, WHOLE)
    if isinstance(state, Sharded) and state.dim not in {int(d) % rank for d in dims}:
        return operands.decide({0: state}, state)
    return operands.decide({}, WHOLE)


@rule("aten.select.int")
def select(operands: Operands) -> Decision:
    """One index of a dim; the dim disappears."""
    return _cut(operands, int(operands.argument(1, "dim", 0)), drops=True)  # type: ignore[arg-type]


@rule("aten.cat.default")
def cat(operands: Operands) -> Decision:
    """Join along a dim that must be whole."""
    return _cut(operands, int(operands.argument(1, "dim", 0)))  # type: ignore[arg-type]


@rule("aten.stack.default")
def stack(operands: Operands) -> Decision:
    """Join along a new dim."""
    rank = len(operands.operator.outputs[0].shape)
    dim = int(operands.argument(1, "dim", 0)) % rank  # type: ignore[arg-type]
    states = [resolved(value, operands.setting) for value in operands.values]
    target: AxisState = next((s for s in states if isinstance(s, Sharded)), WHOLE)
    written = target
    if isinstance(target, Sharded) and target.dim >= dim:
        written = Sharded(target.dim + 1, target.outer)
    return operands.decide(dict.fromkeys(range(len(states)), target), written)


@rule("aten.pad.default", "aten.constant_pad_nd.default")
def pad(operands: Operands) -> Decision:
    """Padded dims must be whole, the others are free; pairs of sizes count from the last dim."""
    value = operands.values[0]
    rank = len(value.spec.shape)
    sizes = operands.argument(1, "pad")
    pairs = sizes if isinstance(sizes, tuple) else (1,) * 2 * rank
    padded = {rank - 1 - i // 2 for i, size in enumerate(pairs) if size != 0}
    state = resolved(value, operands.setting)
    if isinstance(state, Sharded) and state.dim not in padded:
        return operands.decide({0: state}, state)
    return operands.decide({}, WHOLE)
