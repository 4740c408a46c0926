"""Training stacks by the names under which runs are published: what of a run they decide.

A stack says which kernels and dtypes a row leaves out; how fast it is stands in its software
profile (configs/software), nowhere else.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from shardwise.ir.decoder import AttentionKernel


@dataclass(frozen=True, slots=True)
class Stack:
    """A family of training software."""

    software: str
    """Name of its software profile."""
    attention: AttentionKernel = AttentionKernel.FLASH
    dropout: bool = False
    half_gradients: bool = False
    """Gradients are summed and reduced in the compute dtype."""
    overlaps: bool = True
    """Gradients are reduced beside the backward."""
    overlaps_tensor: bool = False
    """Messages of the tensor axis run beside the products that they feed."""
    broadcasts: bool = False
    """Ranks broadcast the weights that they stepped, one after the other."""
    fuses: bool = False
    """The loss never stores logits in float32, and the gate of SwiGLU is one kernel."""
    compiles_loss_from: str = ""
    """Month (YYYY-MM) before which the loss is eager and in float32 all the same."""
    optimizer: str = ""
    """Whose optimizer steps, where it makes buffers (planner/published_memory.py)."""
    learned_positions: bool = True
    bias: bool = True
    blocking: bool = False
    """The host waits for every kernel (CUDA_LAUNCH_BLOCKING=1)."""
    notes: tuple[str, ...] = ()


_OLD: Final = Stack(
    "megatron-deepspeed",
    AttentionKernel.UNFUSED,
    dropout=True,
    half_gradients=True,
    overlaps=False,
    optimizer="deepspeed",
)
_FORK: Final = replace(_OLD, software="megatron-deepspeed-bigscience", blocking=True)
"""On the A100: at 320 GPUs the runs always hung without CUDA_LAUNCH_BLOCKING=1
(bigscience-workshop/bigscience, train/tr11-176B-ml/chronicles-prequel.md, "dealing with JZ hanging
on the large model"); rows of fewer GPUs do not say."""
_NEMO: Final = Stack(
    "nemo",
    AttentionKernel.FLASH_3,
    half_gradients=True,
    overlaps_tensor=True,
    fuses=True,
    optimizer="megatron",
)
"""Gradients in bfloat16: NeMo-Framework-Launcher, examples/training/llama/h100
(`grad_sync_dtype=bf16`); NeMo, scripts/performance (`plugins.grad_reduce_in_fp32 = False`, in
helpers.py `set_precision_configs` or script by script); Megatron-Bridge, the same."""
_STACKS: Final[tuple[tuple[str, Stack], ...]] = (
    ("megatron-deepspeed, new", Stack("megatron-deepspeed", overlaps=False, optimizer="deepspeed")),
    ("megatron-deepspeed (bigscience", _FORK),
    ("megatron-deepspeed", _OLD),
    (
        "megatron-lm fork",
        Stack("megatron-core", AttentionKernel.UNFUSED, dropout=True, overlaps=False),
    ),
    ("megatron-lm (jan 2024)", Stack("megatron-core")),
    ("megatron-lm on hopper", Stack("megatron-core", AttentionKernel.FLASH_3, fuses=True)),
    (
        "megatron-lm",
        Stack(
            "megatron-lm-2021",
            AttentionKernel.UNFUSED,
            dropout=True,
            half_gradients=True,
            overlaps=False,
        ),
    ),
    ("megatron-kwai", Stack("megatron-core", fuses=True)),
    ("nemo megatron 23", Stack("nemo-23")),
    ("nemo/megatron-core, container nemo24", replace(_NEMO, software="nemo-24")),
    ("nemo", _NEMO),
    ("megatron-bridge", replace(_NEMO, software="megatron-bridge")),
    (
        "composer",
        Stack(
            "llm-foundry",
            AttentionKernel.FLASH_1,
            learned_positions=False,
            bias=False,
            fuses=True,
            notes=("attention assumed to be FlashAttention 1 where the profile knows it",),
        ),
    ),
    # torchtitan pull request 1033 (April 2025): the loss is compiled where layers are
    ("torchtitan", Stack("torchtitan", fuses=True, compiles_loss_from="2025-04")),
    (
        "internevo",
        Stack("internevo", half_gradients=True, broadcasts=True, optimizer="internevo"),
    ),
    ("nanotron", Stack("nanotron", overlaps=False)),
    ("pytorch fsdp1", Stack("fms-fsdp", half_gradients=True)),
    ("primus", Stack("primus")),
)
"""Beginning of the name, lower case -> stack; the first that fits."""
_OTHER: Final = Stack("torch-cuda", notes=("stack not known: torch-cuda's profile",))


def stack_of(framework: str, gpu: str = "") -> Stack:
    """The stack that a framework's published name belongs to; the generic one with a note.

    Megatron-LM on a GPU after the A100 is Megatron-Core, unless it is dated with the attention
    kernels of Transformer Engine for Hopper and a fused loss (NVIDIA/Megatron-LM,
    examples/llama/train_llama3_8b_h100_fp8.sh).
    """
    name = framework.strip().lower()
    later = not re.search("a100|v100", gpu.lower())
    if later and name.startswith("megatron-lm") and "2024" not in name:
        name = "megatron-lm on hopper"
    elif later and name.startswith("megatron-lm"):
        name = "megatron-lm (jan 2024)"
    if "bigscience" in name and "v100" in gpu.lower():
        return replace(_FORK, software="megatron-deepspeed-v100", blocking=False)
    return next((stack for start, stack in _STACKS if name.startswith(start)), _OTHER)
