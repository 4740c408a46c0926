"""Which models see the padding at the end of a document."""

import pytest

from shardwise.ir.padding import attends_to_padding
from shardwise.ir.trace_language import trace_language_model
from tests.models.hugging_face import bert, gpt2, llama, mistral
from tests.support import bidirectional, tiny_decoder


def inputs(model):
    traced = trace_language_model(model, compute_dtype="float64", longest=64)
    return [item.name for item in traced.graph.inputs], attends_to_padding(traced)


@pytest.mark.parametrize("model", [llama, mistral, gpt2, tiny_decoder.build])
def test_causal_models_need_no_mask(model):
    assert inputs(model()) == (["input_ids", "labels"], ())


def test_a_bidirectional_model_is_traced_with_its_mask():
    names, seen = inputs(bert())
    assert sorted(names) == ["attention_mask", "input_ids", "labels"] and seen == ()


def test_one_that_takes_no_mask_is_known():
    names, seen = inputs(bidirectional.build())
    assert names == ["input_ids", "labels"]
    (where,) = seen
    assert where.startswith("the model (bidirectional.py:")
