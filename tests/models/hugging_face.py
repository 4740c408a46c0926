"""Tiny Hugging Face models with random weights; norms and biases are random too."""

from typing import Any

import torch
from torch import nn

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}


def built(model_class: str, config_class: str, dtype: torch.dtype, **config: Any) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    made = getattr(transformers, config_class)(**config)
    model = getattr(transformers, model_class)._from_config(
        made, dtype=dtype, attn_implementation="sdpa"
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype).train()


def llama(dtype: torch.dtype = torch.float64, **changes: Any) -> nn.Module:
    """Grouped queries, SwiGLU, RMSNorm, rotary positions."""
    return built("LlamaForCausalLM", "LlamaConfig", dtype, **{**GROUPED, **changes})


def mistral(dtype: torch.dtype = torch.float64, window: int = 16) -> nn.Module:
    """Llama with a sliding window, one layer."""
    config = {**GROUPED, "sliding_window": window, "num_hidden_layers": 1}
    return built("MistralForCausalLM", "MistralConfig", dtype, **config)


def gpt2(dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> nn.Module:
    """Tied embedding and head, fused query-key-value, learned positions."""
    return built(
        "GPT2LMHeadModel", "GPT2Config", dtype, vocab_size=64, n_positions=128, n_embd=32,
        n_layer=2, n_head=4, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=0.0,
    )  # fmt: skip


def bert(dtype: torch.dtype = torch.float64) -> nn.Module:
    """Bidirectional, post-norm, masked language model, one layer."""
    return built(
        "BertForMaskedLM", "BertConfig", dtype, **{**SMALL, "num_hidden_layers": 1},
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip


def t5(dtype: torch.dtype = torch.float64) -> nn.Module:
    """Encoder and decoder, relative positions that are trained."""
    return built(
        "T5ForConditionalGeneration", "T5Config", dtype, vocab_size=64, d_model=32, d_kv=8,
        d_ff=48, num_layers=1, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0,
        pad_token_id=0,
    )  # fmt: skip
