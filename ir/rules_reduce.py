"""Rules of reductions, normalisations, embedding, attention and the loss."""

from shardwise.ir.axis_state import ADDEND, READ, WHOLE, AxisState, Sharded
from shardwise.ir.rules import Decision, Operands, companion, resolved, rule
from shardwise.ir.strategy import Role


def _reduced_dims(operands: Operands) -> tuple[int, ...]:
    rank = len(operands.values[0].spec.shape)
    dims = operands.argument(1, "dim")
    if dims is None or dims == ():
        return tuple(range(rank))
    if isinstance(dims, int):
        dims = (dims,)
    return tuple(int(d) % rank for d in dims)  # type: ignore[union-attr,arg-type]


@rule(
    "aten.sum.dim_IntList", "aten.sum.default", "aten.mean.dim", "aten.mean.default",
    "aten.amax.default", "aten.amin.default", "aten.var.correction", "aten.all.default",
    "aten.any.default", "aten.linalg_vector_norm.default",
)  # fmt: skip
def reduction(operands: Operands) -> Decision:
    """Reduced dims are whole, but a sum over the sharded dim leaves an addend."""
    value = operands.values[0]
    state = resolved(value, operands.setting)
    if not isinstance(state, Sharded):
        return operands.decide({0: WHOLE}, WHOLE)
    dims = _reduced_dims(operands)
    if state.dim in dims:
        if operands.operator.kind.startswith("aten.sum"):
            return operands.decide({0: state}, ADDEND)
        return operands.decide({}, WHOLE)
    kept = operands.argument(2, "keepdim", False)
    shift = 0 if kept else sum(1 for d in dims if d < state.dim)
    return operands.decide({0: state}, Sharded(state.dim - shift, state.outer))


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


@rule("aten.embedding.default")
def embedding(operands: Operands) -> Decision:
    """Rows of a table: by ids, or in the tensor role by vocabulary (masked lookup, an addend)."""
    table, ids = operands.values
    state = resolved(ids, operands.setting)
    if isinstance(state, Sharded):
        return operands.decide({0: READ, 1: state}, state)
    if operands.setting.role is Role.TENSOR and operands.setting.divides(table.spec.shape[0]):
        return operands.decide({0: Sharded(0), 1: WHOLE}, ADDEND, library="vocabulary_embedding")
    home = operands.setting.home(ids.spec)
    if isinstance(home, Sharded):
        return operands.decide({0: READ, 1: home}, home)
    return operands.decide({}, WHOLE)


@rule("aten.scaled_dot_product_attention.default")
def attention(operands: Operands) -> Decision:
    """Batch, or heads; query rows go to heads by all-to-all (Ulysses, Jacobs et al. 2023).

    Shapes: q [B, H, S, D], k and v [B, H_kv, S_kv, D]. Where the axis does not divide H_kv, k and v
    are read whole and the library call takes the heads that the local query heads attend to.
    """
    q, k = operands.at(0, "query"), operands.at(1, "key")
    state = resolved(q, operands.setting)
    mask = operands.index(3, "attn_mask")
    if len(q.spec.shape) != 4 or not isinstance(state, Sharded):
        return operands.decide({}, WHOLE)
    if state.dim == 0:
        reads: dict[int, AxisState] = {0: state, 1: state, 2: state}
        if mask is not None:
            shape = operands.values[mask].spec.shape
            has_batch = len(shape) == 4 and shape[0] == q.spec.shape[0]
            reads[mask] = state if has_batch else WHOLE
        return operands.decide(reads, state)
    heads = Sharded(1)
    sequence = state.dim == 2
    mask_is_shared = mask is None or (
        len(operands.values[mask].spec.shape) < 4 or operands.values[mask].spec.shape[1] == 1
    )
    if state.dim == 3 or not operands.setting.divides(q.spec.shape[1]) or not mask_is_shared:
        return operands.decide({}, WHOLE, afterwards=state if sequence else None)
    splits_kv = operands.setting.divides(k.spec.shape[1])
    kv: AxisState = heads if splits_kv else READ
    reads = {0: heads, 1: kv, 2: kv}
    return operands.decide(
        reads,
        heads,
        library=None if splits_kv else "attention_of_local_heads",
        afterwards=state if sequence else None,
    )


@rule("aten.cross_entropy_loss.default")
def cross_entropy(operands: Operands) -> Decision:
    """Summed cross-entropy: rows leave an addend; sharded classes use the vocabulary-parallel call.

    The loss contract (ir/loss_contract) has made the reduction a sum, so that no local mean is ever
    averaged. Source of the class-sharded form: Shoeybi et al. 2019, section 3.
    """
    logits = operands.at(0)
    state = resolved(logits, operands.setting)
    last = len(logits.spec.shape) - 1
    if operands.argument(3, "reduction", 1) != 2 or operands.index(2, "weight") is not None:
        return operands.decide({}, WHOLE)
    smoothing = operands.argument(5, "label_smoothing", 0.0)
    if isinstance(state, Sharded) and state.dim == last and len(logits.spec.shape) == 2:
        if smoothing != 0.0:
            return operands.decide({}, WHOLE)
        return operands.decide({0: state}, WHOLE, library="vocabulary_cross_entropy")
    if isinstance(state, Sharded) and state.dim == 0:
        return operands.decide({0: state, 1: state}, ADDEND)
    return operands.decide({}, WHOLE)
