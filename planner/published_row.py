"""From a row of published measurements to what it says: the model, the recipe, the plan
(planner/published_plan.py).

Rows have the columns of a run table (model, layers, hidden, ..., tp, pp, dp, zero_fsdp, recompute,
precision, ...), any of them blank. Every assumption that a blank or vague cell forces is a note; a
row that lacks what nothing can stand for raises InvalidValueError with the reason.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from shardwise.ir.decoder import AttentionKernel, DecoderShape
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.training import TrainingSpec
from shardwise.planner.launcher_plan import not_cut
from shardwise.planner.published_cells import NUMBER, Row
from shardwise.planner.published_memory import (
    DEEPSPEED_PLAIN,
    DEEPSPEED_ZERO,
    INTERNEVO,
    MEGATRON,
    NO_BUFFERS,
    StepBuffers,
)
from shardwise.planner.published_plan import plan_of_row
from shardwise.planner.published_stack import Stack, stack_of
from shardwise.planner.uniform_plan import UniformPlan

_MONTH: Final = re.compile(r"(?<!\d)(20[0-9]{2})-?(0[1-9]|1[0-2])(?!\d)")
_NOT_MODELLED: Final = (
    "chunked cross entropy", "8-bit", "fused in backward", "offload to", "unpacked)",
)  # fmt: skip
"""Words of settings that change memory or work in a way that no price knows. A run that is not
packed has shorter documents than its length says."""
_PRECISIONS: Final = ("bf16", "bfloat16", "fp16", "float16", "fp8", "float8", "mixed")
VOCABULARY: Final = 50304
"""Where a row has none: GPT-2's table padded to a multiple of 128 (Megatron-LM's default)."""


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One row, read."""

    shape: DecoderShape
    plan: UniformPlan
    training: TrainingSpec
    linear_dtype: str | None
    """Of the layers' products with weights, where it is lower than the compute dtype."""
    gpu: str
    """As printed."""
    ranks_per_node: int
    inter_link: str
    stack: Stack
    buffers: StepBuffers
    """Of its optimizer."""
    notes: tuple[str, ...]
    """Every assumption, one short sentence each."""


def read_row(cells: Mapping[str, str]) -> PublishedRun:
    """What a row says; InvalidValueError where it does not say enough, or contradicts itself."""
    row = Row(cells)
    if row.text("arch") not in ("", "dense"):
        raise InvalidValueError(f"arch {row.text('arch')!r:.40}: only dense decoders are priced")
    settings = row.text("other_settings").lower()
    for word in _NOT_MODELLED:
        if word in settings:
            raise InvalidValueError(f"other_settings has {word!r}, which is not modelled")
    is_eager = "eager" in settings
    stack = stack_of(row.text("framework"), row.text("gpu"))
    if is_eager:
        stack = replace(stack, fuses=False)
    for text in stack.notes:
        row.note(text)
    shape = _shape(row, stack, is_eager=is_eager)
    plan = plan_of_row(row, stack)
    if whole := not_cut(shape, plan):
        raise InvalidValueError(f"{whole}; what ranks do then differs between stacks")
    if plan.context > plan.sequence_length:
        raise InvalidValueError(f"cp {plan.context} cuts {plan.sequence_length} tokens to nothing")
    training, linear = _precision(row, stack)
    return PublishedRun(
        shape,
        plan,
        training,
        linear,
        row.text("gpu"),
        _ranks_per_node(row, plan),
        row.text("inter_link"),
        stack,
        _buffers(row, stack),
        tuple(row.notes),
    )


def _shape(row: Row, stack: Stack, *, is_eager: bool) -> DecoderShape:
    layers, hidden = row.integer("layers"), row.integer("hidden")
    gated = row.integer("glu", 0, "no gated feed-forward part is mentioned") == 1
    heads = row.integer("heads", max(1, hidden // 128), "heads of 128")
    kv_heads = row.integer("kv_heads", heads, "as many as heads")
    ffn = row.integer("ffn", 4 * hidden, "four times hidden")
    vocabulary = row.integer("vocab", VOCABULARY, "GPT-2's, padded")
    length = row.integer("seq_len")
    if stack.attention is AttentionKernel.UNFUSED:
        row.note("attention core unfused")
    shape = DecoderShape(
        layers,
        hidden,
        heads,
        kv_heads,
        ffn,
        gated,
        vocabulary,
        attention=stack.attention,
        dropout=stack.dropout and not gated,
        rotary=gated,
        positions=0 if gated or not stack.learned_positions else length,
        rms_norm=gated,
        bias=not gated and stack.bias,
        tied=not gated,
        fused_loss=stack.fuses and _month(row) >= stack.compiles_loss_from,
        fused_gate=stack.fuses,
        composed=is_eager,
    )
    return _tied_as_counted(row, shape)


def _month(row: Row) -> str:
    """YYYY-MM of the run where its source says one, else a late one."""
    found = _MONTH.search(row.text("source_ref"))
    return f"{found[1]}-{found[2]}" if found else "9999-12"


def _buffers(row: Row, stack: Stack) -> StepBuffers:
    """Of the stack's optimizer. ZeRO's steps even where there is one rank to cut over; where
    nothing is said of ZeRO it is taken as well, which makes less than the other."""
    if stack.optimizer == "deepspeed":
        plain = row.text("zero_fsdp").lower().startswith(("zero-0", "none"))
        return DEEPSPEED_PLAIN if plain else DEEPSPEED_ZERO
    return {"internevo": INTERNEVO, "megatron": MEGATRON}.get(stack.optimizer, NO_BUFFERS)


def _tied_as_counted(row: Row, shape: DecoderShape) -> DecoderShape:
    """Whether the output layer has a table of its own, by the printed number of parameters."""
    text = row.text("params_b")
    if not NUMBER.fullmatch(text):
        return shape
    forms = [replace(shape, tied=tied) for tied in (shape.tied, not shape.tied)]
    return min(forms, key=lambda form: abs(form.parameters - float(text) * 1e9))


def _precision(row: Row, stack: Stack) -> tuple[TrainingSpec, str | None]:
    text = row.text("precision").lower()
    half = "float16" if text.startswith(("fp16", "float16")) else "bfloat16"
    linear = "float8_e4m3fn" if "fp8" in text or "float8" in text else None
    if not text:
        row.note("bfloat16 assumed")
    elif not any(word in text for word in _PRECISIONS):
        row.note(f"precision {text!r:.40} not known: bfloat16 assumed")
    if text.startswith(("fp32", "tf32", "float32", "fp64", "float64")):
        raise InvalidValueError(f"precision {text!r:.40} is not priced")
    wide = half if stack.half_gradients else "float32"
    if "grad accum in half" in text:
        wide = half
    if "fp32 grad" in text:
        wide = "float32"
    reduce = wide
    settings = row.text("other_settings").lower()
    if "mp mode pure" in settings:
        reduce = half
    if "params and optimizer state" in text:
        return TrainingSpec("adamw", half, half, half, half), linear
    return TrainingSpec("adamw", "float32", half, reduce, wide), linear


def _ranks_per_node(row: Row, plan: UniformPlan) -> int:
    count = row.integer("gpus_per_node", min(8, plan.world_size), "nodes of eight")
    if plan.world_size % min(count, plan.world_size):
        raise InvalidValueError(f"{plan.world_size} GPUs are no multiple of {count} in a node")
    return min(count, plan.world_size)
