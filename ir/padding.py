"""Whether padding at the end of a document changes what is computed of its tokens.

Documents of a micro-batch are padded at their end. A causal or windowed attention never looks
there; one that is proven to see later positions does, unless the model is told what is padding
(`attention_mask`). Attention whose mask is unknown is not judged: `shardwise verify` compares
padded documents with the same documents alone.
"""

from typing import Final

from shardwise.ir.passes_mask import MaskKind
from shardwise.ir.traced_model import TracedModel

ATTENTION_MASK: Final = "attention_mask"
"""Input of a language model: 1 for a token, 0 for padding."""


def attends_to_padding(traced: TracedModel) -> tuple[str, ...]:
    """The attention operators that see padding: "module (file:line)" of each."""
    seen = {use.operator for use in traced.masks if use.kind in (MaskKind.NONE, MaskKind.BAND)}
    return tuple(
        f"{operator.module_path or 'the model'} ({operator.source})"
        for operator in traced.graph.operators
        if operator.name in seen
    )
