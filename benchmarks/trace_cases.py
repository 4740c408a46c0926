"""The architectures that `benchmarks.trace_models` traces, tiny, from their configurations."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

TEXT = {"input_ids": ("B", "S"), "labels": ("B", "S")}
DIMS = {"B": (1, 64), "S": (1, 512)}

# fmt: off
_BASE: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8,
    "intermediate_size": 128, "max_position_embeddings": 512,
}
_GROUPED = {**_BASE, "num_key_value_heads": 4}
_BERT = {**_BASE, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_EXPERTS = {**_GROUPED, "num_experts_per_tok": 2, "experts_implementation": "batched_mm"}
_TRANSLATOR = {
    "vocab_size": 256, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128, "dropout": 0.0,
}
_CLIP = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8,
}
_MAMBA = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8}
_MAMBA2 = {**_MAMBA, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 8}
# fmt: on
_FIXED_TEXT = {"input_ids": ("B", 16), "labels": ("B", 16)}
_TWO = {"input_ids": ("B", "S_src"), "labels": ("B", "S_tgt")}
_TWO_DIMS = {"B": (1, 64), "S_src": (1, 512), "S_tgt": (1, 512)}
_IMAGE = {"pixel_values": "float64[B, 3, 32, 32]", "labels": ("B",)}
_B_ONLY = {"B": (1, 64)}


@dataclass(frozen=True)
class Case:
    """One architecture: the classes `config_class` and `model` of transformers, what to trace.

    Without a `config_class`, `model` is `module:class` of a model written by hand.
    """

    name: str
    model: str
    config_class: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=lambda: TEXT)
    dims: Mapping[str, tuple[int, int]] = field(default_factory=lambda: DIMS)
    attention: str = "sdpa"
    lengths: tuple[int, ...] = (16, 48, 96)
    vocabulary: int = 250
    """Token ids of the random inputs are below this."""
    loss: Callable[[Any, Mapping[str, torch.Tensor]], torch.Tensor] | None = None
    """Of (outputs, inputs), where the model's own does not trace."""


def contrastive(outputs: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Half of CLIP's loss, texts against images. Its own reads `len(logits)`, which fixes B."""
    logits = outputs.logits_per_text
    return F.cross_entropy(logits, torch.arange(logits.shape[0], device=logits.device))


# fmt: off
CASES = (
    Case("Llama", "LlamaForCausalLM", "LlamaConfig", _GROUPED),
    Case("GPT-2", "GPT2LMHeadModel", "GPT2Config", {
        "vocab_size": 256, "n_positions": 512, "n_embd": 64, "n_layer": 3, "n_head": 8,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    Case("BERT", "BertForMaskedLM", "BertConfig", _BERT),
    Case("RoBERTa", "RobertaForCausalLM", "RobertaConfig", {
        **_BERT, "is_decoder": True, "max_position_embeddings": 520, "pad_token_id": 1}),
    Case("ModernBERT", "ModernBertForMaskedLM", "ModernBertConfig", {
        **_BASE, "pad_token_id": 0, "local_attention": 32, "global_attn_every_n_layers": 2,
        "cls_token_id": 1, "sep_token_id": 1, "bos_token_id": 1, "eos_token_id": 1}),
    Case("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    Case("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "head_dim": 8}),
    Case("Mistral", "MistralForCausalLM", "MistralConfig", {**_GROUPED, "sliding_window": 32}),
    Case("Gemma-2 (eager)", "Gemma2ForCausalLM", "Gemma2Config", {
        **_GROUPED, "head_dim": 8, "sliding_window": 32}, attention="eager"),
    Case("Gemma-3", "Gemma3ForCausalLM", "Gemma3TextConfig", {
        **_GROUPED, "head_dim": 8, "sliding_window": 32}),
    Case("Phi-3", "Phi3ForCausalLM", "Phi3Config", {
        **_GROUPED, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}),
    Case("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoXConfig", _BASE),
    Case("Falcon", "FalconForCausalLM", "FalconConfig", {
        **_BASE, "multi_query": True, "new_decoder_architecture": False}),
    Case("OPT", "OPTForCausalLM", "OPTConfig", {
        **_BASE, "ffn_dim": 128, "word_embed_proj_dim": 64, "dropout": 0.0}),
    Case("BLOOM (eager)", "BloomForCausalLM", "BloomConfig", {
        "vocab_size": 256, "hidden_size": 64, "n_layer": 3, "n_head": 8}, attention="eager"),
    Case("OLMo-2", "Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    Case("Granite", "GraniteForCausalLM", "GraniteConfig", _GROUPED),
    Case("StableLM", "StableLmForCausalLM", "StableLmConfig", _GROUPED),
    Case("Starcoder2", "Starcoder2ForCausalLM", "Starcoder2Config", {
        **_GROUPED, "residual_dropout": 0.0, "embedding_dropout": 0.0}),
    Case("Cohere", "CohereForCausalLM", "CohereConfig", _GROUPED),
    Case("Mixtral", "MixtralForCausalLM", "MixtralConfig", {**_EXPERTS, "num_local_experts": 4}),
    Case("Qwen3-MoE", "Qwen3MoeForCausalLM", "Qwen3MoeConfig", {
        **_EXPERTS, "num_experts": 4, "moe_intermediate_size": 32, "head_dim": 8}),
    Case("DeepSeek-V3", "DeepseekV3ForCausalLM", "DeepseekV3Config", {
        **_EXPERTS, "num_key_value_heads": 8, "n_routed_experts": 4, "moe_intermediate_size": 32,
        "n_group": 2, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        "first_k_dense_replace": 1}),
    Case("GPT-OSS (eager)", "GptOssForCausalLM", "GptOssConfig", {
        **_EXPERTS, "head_dim": 8, "num_local_experts": 4, "sliding_window": 32},
        attention="eager"),
    Case("T5", "T5ForConditionalGeneration", "T5Config", {
        "vocab_size": 256, "d_model": 64, "d_kv": 8, "d_ff": 128, "num_layers": 3, "num_heads": 8,
        "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0}, _TWO, _TWO_DIMS),
    Case("BART", "BartForConditionalGeneration", "BartConfig", {
        **_TRANSLATOR, "max_position_embeddings": 512, "forced_eos_token_id": None},
        _TWO, _TWO_DIMS),
    Case("Whisper", "WhisperForConditionalGeneration", "WhisperConfig", {
        **_TRANSLATOR, "max_source_positions": 64, "max_target_positions": 512,
        "num_mel_bins": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
        "decoder_start_token_id": 1},
        {"input_features": "float64[B, 16, 128]", "labels": ("B", "S")}),
    Case("ViT", "ViTForImageClassification", "ViTConfig", {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
        "num_attention_heads": 8, "image_size": 32, "patch_size": 8, "num_labels": 10,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}, _IMAGE, _B_ONLY),
    Case("Swin", "SwinForImageClassification", "SwinConfig", {
        "image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4],
        "window_size": 4, "num_labels": 10, "hidden_dropout_prob": 0.0, "drop_path_rate": 0.0},
        _IMAGE, _B_ONLY),
    Case("ResNet", "ResNetForImageClassification", "ResNetConfig", {
        "embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2], "num_labels": 10},
        _IMAGE, _B_ONLY, attention="eager"),
    Case("CLIP (loss=)", "CLIPModel", "CLIPConfig", {
        "text_config": {**_CLIP, "vocab_size": 256, "max_position_embeddings": 512,
                        "eos_token_id": 2},
        "vision_config": {**_CLIP, "image_size": 32, "patch_size": 8}, "projection_dim": 32},
        {"input_ids": ("B", "S"), "pixel_values": "float64[B, 3, 32, 32]"}, loss=contrastive),
    Case("Mamba", "MambaForCausalLM", "MambaConfig", _MAMBA, attention="eager"),
    Case("Mamba (S = 16)", "MambaForCausalLM", "MambaConfig", _MAMBA, _FIXED_TEXT, _B_ONLY,
         attention="eager"),
    Case("Mamba-2", "Mamba2ForCausalLM", "Mamba2Config", _MAMBA2, attention="eager"),
    Case("Mamba-2 (S = 16)", "Mamba2ForCausalLM", "Mamba2Config", _MAMBA2, _FIXED_TEXT, _B_ONLY,
         attention="eager"),
    Case("GPT (by hand)", "tests.models.hand_written:GPT", dims={"B": (1, 64), "S": (1, 128)},
         vocabulary=64),
    Case("MLP (by hand)", "tests.models.hand_written:MLP", inputs={
        "x": "float64[B, 8]", "target": "float64[B, 4]"}, dims=_B_ONLY),
    Case("ResNet block (by hand)", "benchmarks.hand_models:ResidualBlock", inputs={
        "images": "float64[B, 16, 16, 16]", "target": "float64[B, 16, 16, 16]"}, dims=_B_ONLY),
    Case("U-Net (by hand)", "benchmarks.hand_models:UNet", inputs={
        "images": "float64[B, 3, 32, 32]", "target": "float64[B, 3, 32, 32]"}, dims=_B_ONLY),
)
# fmt: on
