"""The trace that plans and programs of language-model jobs are made of.

One function, so that the planner and the runtime trace alike: the plan remembers the fingerprint of
what was traced.
"""

from typing import Final

from torch import nn

from shardwise.ir.trace import TracedModel, trace

LARGEST_BATCH: Final = 1 << 20
"""Documents of a micro-batch that the trace holds for."""


def trace_language_model(model: nn.Module, *, compute_dtype: str, longest: int) -> TracedModel:
    """Trace a model of `input_ids` and `labels`, both [B, S], that returns its loss.

    `longest` is the longest padded length: the last edge of the plan's buckets. Masks are
    classified there. Raises UntraceableModelError and the other errors of `trace`.
    """
    return trace(
        model,
        {"input_ids": ("B", "S"), "labels": ("B", "S")},
        dims={"B": (1, LARGEST_BATCH), "S": (1, longest)},
        dtype=compute_dtype,
        max_sizes={"S": longest},
    )
