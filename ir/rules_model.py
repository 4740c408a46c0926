"""Rules of embedding, attention and the losses over classes: what has a library function."""

from shardwise.ir.axis_state import ADDEND, READ, WHOLE, AxisState, Sharded
from shardwise.ir.dtype import FLOAT_DTYPES
from shardwise.ir.rules import Decision, Operand, Operands, resolved, rule
from shardwise.ir.strategy import Role

_ATTENTION_RANK = 4
_SUM, _NONE = 2, 0
"""Values of `reduction`; 1 is the mean."""


@rule("aten.embedding.default")
def embedding(operands: Operands) -> Decision:
    """Rows of a table: by ids, or in the tensor role by vocabulary (masked lookup, an addend).

    With `scale_grad_by_freq` the gradient depends on how often an id occurs in all: read whole.
    """
    table, ids = operands.values
    if operands.argument(3, "scale_grad_by_freq", False) is not False:
        return operands.decide({}, WHOLE)
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

    Shapes: q [B, H, S, D], k and v [B, H_kv, S_kv, D], a mask that broadcasts to [B, H, S, S_kv].
    Where the axis does not divide H_kv, k and v are read whole and the library call takes the heads
    that the local query heads attend to.
    """
    q, k, v = operands.at(0, "query"), operands.at(1, "key"), operands.at(2, "value")
    state = resolved(q, operands.setting)
    if len(q.spec.shape) != _ATTENTION_RANK or not isinstance(state, Sharded):
        return operands.decide({}, WHOLE)
    mask = operands.index(3, "attn_mask")
    if state.dim == 0 and k.spec.shape[0] == q.spec.shape[0] == v.spec.shape[0]:
        reads: dict[int, AxisState] = {0: state, 1: state, 2: state}
        if mask is not None:
            reads[mask] = _mask(operands.values[mask], state)
        return operands.decide(reads, state)
    after = state if state.dim == 2 else None
    if state.dim not in (1, 2) or not operands.setting.divides(q.spec.shape[1]):
        return operands.decide({}, WHOLE, afterwards=after)
    heads = Sharded(1)
    splits_kv = operands.setting.divides(k.spec.shape[1])
    kv: AxisState = heads if splits_kv else READ
    reads = {0: heads, 1: kv, 2: kv}
    if mask is not None:
        reads[mask] = _mask(operands.values[mask], heads)
    library = None if splits_kv else "attention_of_local_heads"
    return operands.decide(reads, heads, library=library, afterwards=after)


def _mask(mask: Operand, state: Sharded) -> AxisState:
    """The mask beside attention that is cut in `state`: cut alike where it has that dim."""
    dim = state.dim - (_ATTENTION_RANK - len(mask.spec.shape))
    if dim < 0 or mask.spec.shape[dim] == 1:
        return READ
    return Sharded(dim, state.outer)


@rule("aten.cross_entropy_loss.default", "aten.nll_loss.default", "aten.nll_loss_nd.default")
def loss_over_classes(operands: Operands) -> Decision:
    """Summed loss of scores [N, C, ...]: rows leave an addend; sharded classes of a cross-entropy
    use the vocabulary-parallel call.

    The loss contract (ir/loss_contract) has made the reduction a sum, so that no local mean is ever
    averaged; a mean is of whole tensors. Source of the class-sharded form: Shoeybi et al. 2019,
    section 3.
    """
    scores, target = operands.at(0), operands.at(1)
    state = resolved(scores, operands.setting)
    rank = len(scores.spec.shape)
    reduction = operands.argument(3, "reduction", 1)
    if not isinstance(state, Sharded) or reduction not in (_SUM, _NONE) or rank < 2:
        return operands.decide({}, WHOLE)
    soft = target.spec.dtype in FLOAT_DTYPES
    weight = operands.index(2, "weight")
    if state.dim == 1:
        plain = (
            operands.operator.kind == "aten.cross_entropy_loss.default"
            and reduction == _SUM
            and not soft
            and weight is None
            and operands.argument(5, "label_smoothing", 0.0) == 0.0
        )
        if not plain or rank != 2 or state.outer != 1:
            return operands.decide({}, WHOLE)
        return operands.decide({0: state}, WHOLE, library="vocabulary_cross_entropy")
    rows = state if state.dim == 0 else Sharded(state.dim - 1, state.outer)
    reads: dict[int, AxisState] = {0: state, 1: state if soft else rows}
    if weight is not None:
        reads[weight] = READ
    return operands.decide(reads, ADDEND if reduction == _SUM else rows)
