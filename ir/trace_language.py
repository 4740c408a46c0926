"""The trace that plans and programs of language-model jobs are made of.

One function, so that the planner and the runtime trace alike: the plan remembers the fingerprint of
what was traced.
"""

import inspect

from torch import nn

from shardwise.ir.padding import ATTENTION_MASK, attends_to_padding
from shardwise.ir.trace import TracedModel
from shardwise.ir.trace_training import LANGUAGE_INPUTS, trace_for_training


def trace_language_model(model: nn.Module, *, compute_dtype: str, longest: int) -> TracedModel:
    """Trace a model of `input_ids` and `labels`, both [B, S], that returns its loss.

    A model whose attention sees later positions, and so padding, is traced with its
    `attention_mask` [B, S] as a third input, where it takes one. `longest` is the longest padded
    length: the last edge of the plan's buckets. Masks are classified there. Raises
    UntraceableModelError and the other errors of `trace`.
    """
    inputs = dict(LANGUAGE_INPUTS)
    traced = trace_for_training(model, inputs, compute_dtype=compute_dtype, longest=longest)
    takes = ATTENTION_MASK in inspect.signature(model.forward).parameters
    if not (takes and attends_to_padding(traced)):
        return traced
    inputs[ATTENTION_MASK] = inputs["input_ids"]
    return trace_for_training(model, inputs, compute_dtype=compute_dtype, longest=longest)
