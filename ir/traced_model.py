"""TracedModel: what tracing gives; loads no torch, so that planning does not."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwise.ir.fingerprint import ModelFingerprint
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.passes_mask import MaskUse
from shardwise.ir.template import Template, Unit

if TYPE_CHECKING:
    import torch

    from shardwise.ir.coverage import Coverage


@dataclass(frozen=True, slots=True)
class TracedModel:
    """A model as planned: its graph, the units of it, and what identifies it."""

    graph: OperatorGraph
    """Normalised; the outputs are (loss_sum, weight) unless traced with `contract=False`."""
    units: tuple[Unit, ...]
    """In order, tiling the operators."""
    templates: tuple[Template, ...]
    """Units that are the same layer, once with their count."""
    fingerprint: ModelFingerprint
    masks: tuple[MaskUse, ...]
    """What is known of the mask of every attention operator."""
    training: bool
    """Whether the model was in training mode; evaluation is a trace of its own."""
    constants: "Mapping[str, torch.Tensor]" = field(compare=False, repr=False)
    """Values of constants that are neither parameters nor buffers of the model, by name."""

    def coverage(self, sizes: Mapping[str, int] | None = None) -> "Coverage":
        """How much of the model the operator rules can shard (`shardwise.ir.coverage`)."""
        from shardwise.ir.coverage import coverage

        return coverage(self.graph, sizes)
