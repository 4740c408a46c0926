"""From a traced graph to the graph that is planned: the passes, in order.

    functionalise   in-place operators gone
    clean_up        no-ops gone, one kind of cast, reshape and slice
    classify_masks  masks that are functions of sizes proven causal or full
    split_fused     one linear per section of a fused weight
    move_shift      logits are read whole by the loss
    loss_contract   outputs are (loss_sum, weight)
    costs           FLOPs, moved bytes and saved bytes per operator

Every pass takes a valid graph and returns one that computes the same, up to the loss contract.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.ir import flops, saved_bytes
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.loss_contract import ApplyLossContract
from shardwise.ir.passes_cleanup import CleanUp
from shardwise.ir.passes_functional import Functionalise
from shardwise.ir.passes_mask import ClassifyMasks, MaskUse
from shardwise.ir.passes_sections import SplitFused
from shardwise.ir.passes_shift import MoveShift
from shardwise.ir.rewrite import without_dead_code


@dataclass(frozen=True, slots=True)
class Normalised:
    """A normalised graph and what is known of its attention masks."""

    graph: OperatorGraph
    masks: tuple[MaskUse, ...]


def normalise(
    graph: OperatorGraph, max_sizes: Mapping[str, int] | None = None, *, contract: bool = True
) -> Normalised:
    """Run all passes; `contract=False` leaves the outputs as they are (evaluation, inference).

    `max_sizes` are the largest sizes of the buckets, by name (default: those of the graph's
    symbols): masks are classified for sizes up to these. Raises UnsupportedError for in-place
    writes that cannot be expressed and for losses whose reduction is not known.
    """
    graph = without_dead_code(Functionalise().apply(graph))
    graph = without_dead_code(CleanUp().apply(graph))
    graph, masks = ClassifyMasks(dict(max_sizes or {})).apply(graph)
    graph = SplitFused().apply(without_dead_code(graph))
    if contract:
        graph = MoveShift().apply(graph)
        graph = ApplyLossContract().apply(graph)
    return Normalised(saved_bytes.annotated(flops.annotated(graph)), masks)
