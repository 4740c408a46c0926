"""Models of the transformers library under switching plans, against the models themselves.

Small versions with random weights everywhere. Two run in `make test`, all of them in
`make test-all`: causal and bidirectional, with grouped heads, heads that ranks do not divide,
tied and fused weights, windows, parallel blocks, and a mixture of experts.
"""

from dataclasses import replace

import pytest
import torch

from shardwise.ir.strategy import Recompute
from shardwise.ir.trace import trace
from shardwise.runtime.verify import Verification
from shardwise.runtime.verify_command import spread
from tests.support.tiny_decoder import plan_of

BANDS = ((0, 8, "data", 2), (8, 16, "tensor_sequence", 1), (16, 64, "ulysses", 1))
PLANS = (
    ("x0=2@l data=2@l", "ZeRO-3", Recompute.NONE),
    ("x0=4@l", "ZeRO-1", Recompute.LAYER),
    ("x0=2@l", "ZeRO-2", Recompute.NONE),
)
_SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
_GROUPED = _SIZES | {"num_key_value_heads": 2, "intermediate_size": 48}
_PADS = {"pad_token_id": 0}
_PLACES = {"max_position_embeddings": 64}
CONFIGS = {
    "llama": ("LlamaForCausalLM", _GROUPED | {"num_key_value_heads": 1, "attention_bias": True}),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64,
         "bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
         "attn_pdrop": 0.0},
    ),
    "llama-odd": (
        "LlamaForCausalLM",
        _GROUPED | {"vocab_size": 61, "hidden_size": 24, "num_attention_heads": 3,
                    "num_key_value_heads": 1, "intermediate_size": 45},
    ),
    "bert": (
        "BertForMaskedLM",
        _SIZES | _PADS | _PLACES | {"intermediate_size": 48, "hidden_dropout_prob": 0.0,
                                    "attention_probs_dropout_prob": 0.0},
    ),
    "opt": (
        "OPTForCausalLM",
        _SIZES | _PLACES | {"ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0},
    ),
    "qwen3": ("Qwen3ForCausalLM", _GROUPED | {"head_dim": 8}),
    "neox": ("GPTNeoXForCausalLM", _SIZES | _PLACES | {"intermediate_size": 48}),
    "falcon": ("FalconForCausalLM", _SIZES),
    "gemma2": (
        "Gemma2ForCausalLM",
        _GROUPED | _PADS | {"head_dim": 8, "sliding_window": 4, "attn_implementation": "eager"},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        _GROUPED | _PADS | {"head_dim": 8, "sliding_window": 4,
                            "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi3": ("Phi3ForCausalLM", _GROUPED | _PADS),
    "olmo2": ("Olmo2ForCausalLM", _GROUPED),
    "mixtral": ("MixtralForCausalLM", _GROUPED | {"num_local_experts": 4}),
}  # fmt: skip
READS_MASK = ("bert",)
"""Bidirectional: only with an attention mask is a padded document the document."""


def build(name):
    import transformers

    class_name, values = CONFIGS[name]
    model_class = getattr(transformers, class_name)
    torch.manual_seed(0)
    return spread(model_class(model_class.config_class(**values)).train())


def check(name, mesh, scheme, recompute, steps):
    torch.set_num_threads(1)
    model = build(name)
    names = ["input_ids", "labels", *(["attention_mask"] if name in READS_MASK else [])]
    dims = {"B": (1, 1 << 20), "S": (1, 64)}
    found = trace(
        model, dict.fromkeys(names, ("B", "S")), dims=dims, dtype="float64", max_sizes={"S": 64}
    )
    plan = plan_of(mesh, scheme, BANDS, found=found)
    strategies = tuple((k, replace(s, recompute=recompute)) for k, s in plan.strategies)
    plan = replace(plan, strategies=strategies)
    report = Verification(plan, model, trace=lambda _: found, steps=steps).replay()
    assert report.passed, str(report)


@pytest.mark.parametrize(("name", "plan"), [("llama", 0), ("gpt2", 1)])
def test_switching_plans(name, plan):
    check(name, *PLANS[plan], steps=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("plan", range(len(PLANS)))
@pytest.mark.parametrize("name", CONFIGS)
def test_every_model_under_every_plan(name, plan):
    check(name, *PLANS[plan], steps=3)
