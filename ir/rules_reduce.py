"""Rules of reductions and normalisations."""

from shardwise.ir.axis_state import ADDEND, WHOLE, AxisState, Sharded
from shardwise.ir.rules import Decision, Operands, companion, resolved, rule

_LINEAR = ("aten.sum.dim_IntList", "aten.sum.default", "aten.mean.dim", "aten.mean.default")


def _reduced_dims(operands: Operands) -> tuple[int, ...]:
    rank = len(operands.values[0].spec.shape)
    dims = operands.argument(_dims_at(operands), "dim")
    if dims is None or dims == ():
        return tuple(range(rank))
    if isinstance(dims, int):
        dims = (dims,)
    return tuple(int(d) % rank for d in dims)  # type: ignore[union-attr,arg-type]


def _dims_at(operands: Operands) -> int:
    """Position of the reduced dims; `keepdim` follows."""
    return 2 if operands.operator.kind == "aten.linalg_vector_norm.default" else 1


@rule(
    "aten.sum.dim_IntList", "aten.sum.default", "aten.mean.dim", "aten.mean.default",
    "aten.amax.default", "aten.amin.default", "aten.var.correction", "aten.all.default",
    "aten.any.default", "aten.linalg_vector_norm.default", "aten.max.dim", "aten.min.dim",
    "aten.argmax.default", "aten.argmin.default", "aten.logsumexp.default", "aten.prod.dim_int",
    "aten.all.dim", "aten.any.dim",
)  # fmt: skip
def reduction(operands: Operands) -> Decision:
    """Reduced dims are whole, but a sum over the sharded dim leaves an addend; sums and means of
    addends are addends."""
    value, outputs = operands.values[0], len(operands.operator.outputs)
    if value.state is ADDEND and operands.operator.kind in _LINEAR:
        return operands.decide({0: ADDEND}, ADDEND)
    state = resolved(value, operands.setting)
    if not isinstance(state, Sharded):
        return operands.decide({0: WHOLE}, *(WHOLE,) * outputs)
    dims = _reduced_dims(operands)
    if state.dim in dims:
        if operands.operator.kind.startswith("aten.sum"):
            return operands.decide({0: state}, ADDEND)
        return operands.decide({}, *(WHOLE,) * outputs)
    kept = operands.argument(_dims_at(operands) + 1, "keepdim", False)
    shift = 0 if kept else sum(1 for d in dims if d < state.dim)
    written = Sharded(state.dim - shift, state.outer)
    return operands.decide({0: state}, *(written,) * outputs)


@rule("aten.layer_norm.default", "aten.rms_norm.default")
def normalisation(operands: Operands) -> Decision:
    """The normalised dims (the last ones) are whole; scale and bias are read beside shards."""
    value = operands.values[0]
    normalised = operands.argument(1, "normalized_shape")
    first = len(value.spec.shape) - len(normalised)  # type: ignore[arg-type]
    state = resolved(value, operands.setting)
    if isinstance(state, Sharded) and state.dim >= first:
        state = operands.setting.home(value.spec)
        if isinstance(state, Sharded) and state.dim >= first:
            state = WHOLE
    reads: dict[int, AxisState] = {i: companion(state) for i in range(len(operands.values))}
    reads[0] = state
    return operands.decide(reads, state)
