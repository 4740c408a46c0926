"""Traces of many architectures: does it trace, is it exact, what is known of it, how long it takes.

    python -m benchmarks.trace_models [--only llama,gpt2] [--write docs/benchmarks/tracing.md]

Every model is built tiny from its configuration with random float64 weights, traced once, and
compared with the module itself at B in (1, 2) and three lengths, loss and gradients. Models that
fail are listed with the reason. Then the full-size Llama-3-8B is traced in a fresh process without
weights.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardwise.ir.errors import ShardwiseError
from shardwise.ir.trace import TracedModel, trace
from shardwise.ir.trace_models import load_model
from shardwise.runtime.interpreter import interpret, module_values

DIMS = {"B": (1, 64), "S": (1, 512)}
TEXT = {"input_ids": ("B", "S"), "labels": ("B", "S")}
SMALL: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 8, "max_position_embeddings": 512,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 4}


@dataclass(frozen=True)
class Case:
    """One architecture: how to build it and what to trace."""

    name: str
    model_class: str
    config_class: str
    config: Mapping[str, Any]
    inputs: Mapping[str, Any] = field(default_factory=lambda: TEXT)
    attention: str = "sdpa"
    loss: Callable[[Any, Mapping[str, torch.Tensor]], Any] | None = None
    dims: Mapping[str, tuple[int, int]] = field(default_factory=lambda: DIMS)
    training: bool = True
    lengths: tuple[int, ...] = (16, 48, 96)


@dataclass(frozen=True)
class Result:
    """What a case gave."""

    name: str
    parameters: int = 0
    operators: int = 0
    kinds: int = 0
    units: str = ""
    masks: str = ""
    trace_s: float = 0.0
    worst_loss: float | None = None
    worst_gradient: float | None = None
    failure: str = ""


def cases() -> list[Case]:
    """The architectures, tiny."""
    moe = {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
    gpt2 = {"vocab_size": 256, "n_positions": 512, "n_embd": 64, "n_layer": 3, "n_head": 8, "resid_pdrop": 0.0,  # noqa: E501
                "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
    t5 = {"vocab_size": 256, "d_model": 64, "d_kv": 8, "d_ff": 128, "num_layers": 3, "num_heads": 8,
              "dropout_rate": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0}  # fmt: skip
    bert = {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    encoder_decoder = {"input_ids": ("B", "S_src"), "labels": ("B", "S_tgt")}
    two = {"B": (1, 64), "S_src": (1, 512), "S_tgt": (1, 512)}
    image = {"pixel_values": "float32[B, 3, 32, 32]", "labels": ("B",)}
    only_b = {"B": (1, 64)}
    return [
        Case("Llama", "LlamaForCausalLM", "LlamaConfig", GROUPED),
        Case("GPT-2", "GPT2LMHeadModel", "GPT2Config", gpt2),
        Case("BERT", "BertForMaskedLM", "BertConfig", bert),
        Case("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", GROUPED),
        Case("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
        Case("Mistral", "MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 32}),
        Case("Mixtral", "MixtralForCausalLM", "MixtralConfig", moe),
        Case(
            "Qwen3-MoE",
            "Qwen3MoeForCausalLM",
            "Qwen3MoeConfig",
            {
                **GROUPED,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "head_dim": 8,
            },
        ),
        Case(
            "DeepSeek-V3",
            "DeepseekV3ForCausalLM",
            "DeepseekV3Config",
            {
                **SMALL,
                "num_key_value_heads": 8,
                "n_routed_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "n_group": 2,
                "topk_group": 1,
                "kv_lora_rank": 16,
                "q_lora_rank": 16,
                "qk_rope_head_dim": 8,
                "qk_nope_head_dim": 8,
                "v_head_dim": 8,
                "first_k_dense_replace": 1,
            },
        ),
        Case(
            "Gemma-2",
            "Gemma2ForCausalLM",
            "Gemma2Config",
            {**GROUPED, "head_dim": 8, "sliding_window": 32},
            attention="eager",
        ),
        Case(
            "Gemma-3",
            "Gemma3ForCausalLM",
            "Gemma3TextConfig",
            {**GROUPED, "head_dim": 8, "sliding_window": 32},
        ),
        Case(
            "Phi-3",
            "Phi3ForCausalLM",
            "Phi3Config",
            {**GROUPED, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1},
        ),
        Case("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL),
        Case(
            "Falcon",
            "FalconForCausalLM",
            "FalconConfig",
            {**SMALL, "multi_query": True, "new_decoder_architecture": False},
        ),
        Case(
            "OPT",
            "OPTForCausalLM",
            "OPTConfig",
            {**SMALL, "ffn_dim": 128, "word_embed_proj_dim": 64, "dropout": 0.0},
        ),
        Case(
            "BLOOM",
            "BloomForCausalLM",
            "BloomConfig",
            {"vocab_size": 256, "hidden_size": 64, "n_layer": 3, "n_head": 8},
            attention="eager",
        ),
        Case("OLMo-2", "Olmo2ForCausalLM", "Olmo2Config", GROUPED),
        Case("Granite", "GraniteForCausalLM", "GraniteConfig", GROUPED),
        Case("StableLM", "StableLmForCausalLM", "StableLmConfig", GROUPED),
        Case(
            "Starcoder2",
            "Starcoder2ForCausalLM",
            "Starcoder2Config",
            {**GROUPED, "residual_dropout": 0.0, "embedding_dropout": 0.0},
        ),
        Case("Cohere", "CohereForCausalLM", "CohereConfig", GROUPED),
        Case(
            "GPT-OSS",
            "GptOssForCausalLM",
            "GptOssConfig",
            {
                **GROUPED,
                "head_dim": 8,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "sliding_window": 32,
            },
            attention="eager",
        ),
        Case(
            "ModernBERT",
            "ModernBertForMaskedLM",
            "ModernBertConfig",
            {
                **SMALL,
                "pad_token_id": 0,
                "local_attention": 32,
                "global_attn_every_n_layers": 2,
                "cls_token_id": 1,
                "sep_token_id": 1,
                "bos_token_id": 1,
                "eos_token_id": 1,
            },
        ),
        Case(
            "RoBERTa",
            "RobertaForCausalLM",
            "RobertaConfig",
            {**bert, "is_decoder": True, "max_position_embeddings": 520, "pad_token_id": 1},
        ),
        Case("T5", "T5ForConditionalGeneration", "T5Config", t5, inputs=encoder_decoder, dims=two),
        Case(
            "BART",
            "BartForConditionalGeneration",
            "BartConfig",
            {
                "vocab_size": 256,
                "d_model": 64,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 8,
                "decoder_attention_heads": 8,
                "encoder_ffn_dim": 128,
                "decoder_ffn_dim": 128,
                "max_position_embeddings": 512,
                "dropout": 0.0,
                "forced_eos_token_id": None,
            },
            inputs=encoder_decoder,
            dims=two,
        ),
        Case(
            "Whisper",
            "WhisperForConditionalGeneration",
            "WhisperConfig",
            {
                "vocab_size": 256,
                "d_model": 64,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 8,
                "decoder_attention_heads": 8,
                "encoder_ffn_dim": 128,
                "decoder_ffn_dim": 128,
                "max_source_positions": 64,
                "max_target_positions": 512,
                "num_mel_bins": 16,
                "pad_token_id": 0,
                "bos_token_id": 1,
                "eos_token_id": 1,
                "decoder_start_token_id": 1,
                "dropout": 0.0,
            },
            inputs={"input_features": "float32[B, 16, 128]", "labels": ("B", "S")},
        ),
        Case(
            "ViT",
            "ViTForImageClassification",
            "ViTConfig",
            {
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 3,
                "num_attention_heads": 8,
                "image_size": 32,
                "patch_size": 8,
                "num_labels": 10,
                "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0,
            },
            inputs=image,
            dims=only_b,
        ),
        Case(
            "ResNet",
            "ResNetForImageClassification",
            "ResNetConfig",
            {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [2, 2], "num_labels": 10},
            inputs=image,
            dims=only_b,
            attention="eager",
        ),
        Case(
            "Swin",
            "SwinForImageClassification",
            "SwinConfig",
            {
                "image_size": 32,
                "patch_size": 2,
                "embed_dim": 16,
                "depths": [2, 2],
                "num_heads": [2, 4],
                "window_size": 4,
                "num_labels": 10,
                "hidden_dropout_prob": 0.0,
                "drop_path_rate": 0.0,
            },
            inputs=image,
            dims=only_b,
        ),
        Case(
            "Mamba",
            "MambaForCausalLM",
            "MambaConfig",
            {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8},
            attention="eager",
        ),
    ]


def build(case: Case, dtype: torch.dtype) -> nn.Module:
    """The case's model with random weights; norms and biases too, so that nothing is trivially 1
    or 0."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, case.config_class)(**case.config)
    model_class = getattr(transformers, case.model_class)
    model: nn.Module = model_class._from_config(
        config, dtype=dtype, attn_implementation=case.attention
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype).train(case.training)


def batch(case: Case, rows: int, length: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Random inputs; a third of the labels of every text is ignored."""
    generator = torch.Generator().manual_seed(rows * 1000 + length)
    sizes = {"B": rows, "S": length, "S_src": length, "S_tgt": length // 2 + 3}
    result = {}
    for name, shape in case.inputs.items():
        if isinstance(shape, str):
            text = shape.partition("[")[2][:-1]
            dims = [sizes.get(part.strip()) or int(part) for part in text.split(",")]
            result[name] = torch.randn(dims, generator=generator, dtype=dtype)
            continue
        dims = [sizes[dim] if isinstance(dim, str) else dim for dim in shape]
        high = 10 if name == "labels" and len(dims) == 1 else 250
        value = torch.randint(2, high, dims, generator=generator)
        if name == "labels" and len(dims) == 2:
            value[:, : dims[1] // 3] = -100
        result[name] = value
    return result


def compare(case: Case, model: nn.Module, traced: TracedModel) -> tuple[float, float]:
    """Largest relative differences of loss and gradients between module and graph."""
    worst_loss = worst_gradient = 0.0
    values = module_values(model, traced.graph, traced.constants)
    parameters = [p for p in model.parameters() if p.requires_grad]
    lengths = case.lengths if any(name.startswith("S") for name in case.dims) else (0,)
    for rows in (1, 2):
        for length in lengths:
            given = batch(case, rows, length, torch.float64)
            model.zero_grad()
            wanted = model(**given).loss
            gradients = torch.autograd.grad(wanted, parameters, allow_unused=True)
            total, weight = interpret(traced.graph, {**values, **given})
            found = total / weight
            ours = torch.autograd.grad(found, parameters, allow_unused=True)
            worst_loss = max(worst_loss, abs(found.item() - wanted.item()) / abs(wanted.item()))
            norm = torch.stack([g.norm() for g in gradients if g is not None]).norm()
            for mine, theirs in zip(ours, gradients, strict=True):
                if mine is None and theirs is None:
                    continue
                mine = torch.zeros_like(theirs) if mine is None else mine
                theirs = torch.zeros_like(mine) if theirs is None else theirs
                scale = max(float(theirs.abs().max()), 1e-5 * float(norm))
                worst_gradient = max(worst_gradient, float((mine - theirs).abs().max()) / scale)
    return worst_loss, worst_gradient


def run(case: Case) -> Result:
    """Trace and compare one case; never raises for a model that fails."""
    try:
        model = build(case, torch.float64)
        inputs = {
            name: value.replace("float32", "float64") if isinstance(value, str) else value
            for name, value in case.inputs.items()
        }
        start = time.perf_counter()
        traced = trace(model, inputs, dims=case.dims, loss=case.loss, name=case.name)
        seconds = time.perf_counter() - start
        graph = traced.graph
        kinds = {operator.kind for operator in graph.operators}
        masks = sorted({f"{use.kind}{use.window or ''}" for use in traced.masks})
        loss, gradient = compare(case, model, traced)
        return Result(
            case.name, traced.fingerprint.parameter_count, len(graph.operators), len(kinds),
            str(traced.fingerprint).partition("units=")[2].partition(" ")[0], " ".join(masks),
            seconds, loss, gradient,
        )  # fmt: skip
    except ShardwiseError as error:
        return Result(case.name, failure=str(error))
    except Exception as error:
        reason = " ".join(str(error).split())
        return Result(case.name, failure=f"{type(error).__name__}: {reason[:300]}")


def full_size() -> dict[str, float]:
    """Time and memory of the trace of Llama-3-8B; run in a process of its own."""
    model = load_model("hf:configs/models/llama-3-8b.json", dtype="bfloat16")
    start, cpu = time.perf_counter(), time.process_time()
    traced = trace(model, TEXT, dims={"B": (1, 4096), "S": (1, 8192)}, name="Llama-3-8B")
    return {
        "wall_s": time.perf_counter() - start,
        "cpu_s": time.process_time() - cpu,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "operators": len(traced.graph.operators),
        "parameters": traced.fingerprint.parameter_count,
    }


def page(results: list[Result], full: Mapping[str, float]) -> str:
    """The page docs/benchmarks/tracing.md."""
    good = [r for r in results if not r.failure]
    lines = [
        "# Tracing",
        "",
        "Written by `python -m benchmarks.trace_models --write docs/benchmarks/tracing.md`: torch "
        f"{torch.__version__}, one thread. Tiny random models in float64; `loss` and `gradient` are the "  # noqa: E501
        "largest relative differences between the traced graph and the module at B = 1, 2 and three "  # noqa: E501
        "lengths (gradients per tensor, with a floor of 1e-5 of the global norm).",
        "",
        f"Llama-3-8B, bfloat16, no weights, in a fresh process: {full['wall_s']:.1f} s wall "
        f"({full['cpu_s']:.1f} s CPU) from the built model to the normalised graph of "
        f"{full['operators']:.0f} operators, {full['rss_mb']:.0f} MB peak resident memory of the whole "  # noqa: E501
        "process, imports included.",
        "",
        f"{len(good)} of {len(results)} architectures trace:",
        "",
        "| model | parameters | operators | kinds | units | masks | trace s | loss | gradient |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in good:
        lines.append(
            f"| {r.name} | {r.parameters} | {r.operators} | {r.kinds} | {r.units} | {r.masks} | "
            f"{r.trace_s:.1f} | {r.worst_loss:.1g} | {r.worst_gradient:.1g} |"
        )
    failed = [r for r in results if r.failure]
    if failed:
        lines += ["", "Not traced, with the reason:", "", "| model | reason |", "|---|---|"]
        lines += [f"| {r.name} | {r.failure.replace('|', '/')} |" for r in failed]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the cases and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names of cases, comma-separated")
    parser.add_argument("--write", type=Path, help="file of the page")
    parser.add_argument(
        "--full-size", action="store_true", help="only the full-size trace, as JSON"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.full_size:
        print(json.dumps(full_size()))
        return
    wanted = {name.lower() for name in given.only.split(",") if name}
    results = []
    for case in cases():
        if wanted and case.name.lower() not in wanted:
            continue
        result = run(case)
        results.append(result)
        print(result, flush=True)
    if wanted and given.write is None:
        return
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.trace_models", "--full-size"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    text = page(results, json.loads(done.stdout.splitlines()[-1]))
    if given.write is None:
        print(text)
    else:
        given.write.parent.mkdir(parents=True, exist_ok=True)
        given.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
