"""What published stacks hold beside tensors of the model, and what their allocator keeps back.

    live      weights, states, gradients, and the larger of: activations at their most, buffers that
              the optimizer makes once the last backward is over
    reserved  the same, the two added, and the activations over 1 - UNFILLED; at most the device

What PyTorch's caching allocator has taken from the device it keeps: a free block is given out
again whole or cut into smaller ones, and blocks of two segments are never joined, so that buffers
of the optimizer, which are as long as the weights, find no place where activations were. Weights
and states are allocated once and leave no gaps.
"""

from dataclasses import dataclass
from typing import Final

from shardwise.ir.curve import Constant
from shardwise.planner.uniform_plan import UniformPlan

UNFILLED: Final = Constant(
    0.15, "ratio", "published, GMLake, arXiv:2401.08156, abstract: mean fragmentation of PyTorch's "
    "caching allocator that joining segments removes, eight language models on A100"
)  # fmt: skip
"""Share of what the allocator takes for activations that no tensor fills at the peak."""


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """What an optimizer allocates while it steps, beyond weights, gradients and states."""

    shard_element_bytes: int = 0
    """For each element that the rank steps."""
    bucket_elements: int = 0
    """Gradients that are copied next to each other to be reduced, at most; in the dtype of
    reduction."""

    def bytes_per_rank(self, elements: float, plan: UniformPlan, reduce_size: int) -> float:
        """On a rank with `elements` weights, whose gradients have `reduce_size` bytes."""
        bucket = min(self.bucket_elements, elements) if plan.replicas > 1 else 0.0
        return self.shard_element_bytes * elements / plan.shard_size + bucket * reduce_size


NO_BUFFERS: Final = StepBuffers()
_BUCKET: Final = 500_000_000
"""DeepSpeed, runtime/zero/config.py `reduce_bucket_size` and runtime/engine.py
`MEMORY_OPT_ALLREDUCE_SIZE`."""
DEEPSPEED_ZERO: Final = StepBuffers(6, _BUCKET)
"""It flattens the shard's gradients (2 bytes) and casts them (4): runtime/zero/stage_1_and_2.py
`step`, `flatten(averaged_gradients[i]).to(float32)`."""
DEEPSPEED_PLAIN: Final = StepBuffers(8, _BUCKET)
"""Without ZeRO every gradient is cast, then they are flattened (4 and 4):
runtime/fp16/fused_optimizer.py `step`."""
MEGATRON: Final = StepBuffers(4)
"""Megatron-Core, core/optimizer/distrib_optimizer.py `_copy_model_grads_to_main_grads`: gradients
of the shard in float32, where they are accumulated in half precision."""
INTERNEVO: Final = StepBuffers(6)
"""InternEvo, solver/optimizer/hybrid_zero_optim.py `_step`: gradients of the shard flattened (2),
then in float32 (4). Under FSDP, fsdp_optimizer.py: the shard of weights in the compute dtype beside
the masters (2), gradients in float32 (4)."""
