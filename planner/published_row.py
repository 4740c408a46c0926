"""From a row of published measurements to what it says: the model, the plan, the recipe.

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
from shardwise.ir.schedule import ScheduleKind
from shardwise.ir.strategy import Recompute
from shardwise.ir.training import TrainingSpec
from shardwise.planner.published_cells import NUMBER, Row
from shardwise.planner.published_memory import (
    DEEPSPEED,
    INTERNEVO,
    MEGATRON,
    NO_BUFFERS,
    StepBuffers,
)
from shardwise.planner.published_stack import Stack, stack_of
from shardwise.planner.uniform_plan import UniformPlan

_SHARDS_ALL: Final = ("fsdp", "full_shard", "zero-3", "hsdp")
_GROUPS: Final = re.compile(r"within groups of (\d+)|shard (\d+)")
_MONTH: Final = re.compile(r"(?<!\d)(20[0-9]{2})-?(0[1-9]|1[0-2])(?!\d)")
_OFFLOAD: Final = re.compile(r"activation offload ratio (0\.[0-9]+|1)")
_NOT_MODELLED: Final = (
    "chunked cross entropy", "8-bit", "fused in backward", "offload to", "unpacked)",
)  # fmt: skip
"""Words of settings that change memory or work in a way that no price knows. A run that is not
packed has shorter documents than its length says."""
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
    stack = stack_of(row.text("framework"), row.text("gpu"))
    for text in stack.notes:
        row.note(text)
    shape = _shape(row, stack)
    plan = _plan(row, stack)
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


def _shape(row: Row, stack: Stack) -> DecoderShape:
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
        fused_loss=_compiles(row, stack) and _month(row) >= stack.compiles_loss_from,
        fused_gate=_compiles(row, stack),
        composed=_is_eager(row),
    )
    return _tied_as_counted(row, shape)


def _compiles(row: Row, stack: Stack) -> bool:
    """Whether the stack fuses what it can, unless the run was eager."""
    return stack.fuses and not _is_eager(row)


def _is_eager(row: Row) -> bool:
    return "eager" in row.text("other_settings").lower()


def _month(row: Row) -> str:
    """YYYY-MM of the run where its source says one, else a late one."""
    found = _MONTH.search(row.text("source_ref"))
    return f"{found[1]}-{found[2]}" if found else "9999-12"


def _buffers(row: Row, stack: Stack) -> StepBuffers:
    """Of the stack's optimizer. ZeRO's steps even where there is one rank to cut over; where
    nothing is said of ZeRO it is taken as well, which makes less than the other."""
    if stack.optimizer == "deepspeed":
        return DEEPSPEED[not row.text("zero_fsdp").lower().startswith(("zero-0", "none"))]
    return {"internevo": INTERNEVO, "megatron": MEGATRON}.get(stack.optimizer, NO_BUFFERS)


def _tied_as_counted(row: Row, shape: DecoderShape) -> DecoderShape:
    """Whether the output layer has a table of its own, by the printed number of parameters."""
    text = row.text("params_b")
    if not NUMBER.fullmatch(text):
        return shape
    forms = [replace(shape, tied=tied) for tied in (shape.tied, not shape.tied)]
    return min(forms, key=lambda form: abs(form.parameters - float(text) * 1e9))


def _plan(row: Row, stack: Stack) -> UniformPlan:
    tensor, pipeline = row.integer("tp", 1, "not stated"), row.integer("pp", 1, "not stated")
    context = row.integer("cp", 1, "not stated")
    if row.integer("ep", 1) != 1:
        raise InvalidValueError("ep: expert parallelism of a dense decoder is not priced")
    model = tensor * pipeline * context
    ranks = row.integer("n_gpus", model * (row.known("dp") or 1), "product of the degrees")
    if ranks % model:
        raise InvalidValueError(f"{ranks} GPUs are no multiple of tp x pp x cp = {model}")
    data = row.known("dp") or ranks // model
    if data * model != ranks:
        if data * tensor * pipeline == ranks and context > 1 and data % context == 0:
            row.note("dp counted with cp")
            data //= context
        else:
            raise InvalidValueError(f"tp x pp x cp x dp = {data * model}, but {ranks} GPUs")
    micro, count = _micro_batches(row, data)
    schedule, chunks = _schedule(row, pipeline)
    zero, shard = _zero(row, data * context)
    recompute = _recompute(row)
    alternate = row.text("recompute").lower().startswith("selective op")
    offload = _OFFLOAD.search(row.text("other_settings").lower())
    sequence = row.text("seq_parallel").lower()
    if sequence in ("", "not stated") and tensor > 1:
        row.note("no sequence parallelism assumed")
    return UniformPlan(
        tensor,
        pipeline,
        data,
        context,
        micro,
        count,
        row.integer("seq_len"),
        schedule,
        chunks,
        zero,
        shard,
        sequence_parallel=tensor > 1 and sequence.startswith(("yes", "recipe default (yes")),
        recompute=recompute,
        overlap_gradients=stack.overlaps or zero > 2,
        broadcast_weights=stack.broadcasts and zero in (1, 2),
        overlap_tensor=tensor > 1
        and (stack.overlaps_tensor or "async tp" in row.text("other_settings").lower()),
        alternate=alternate,
        compiled=alternate and _compiles(row, stack),
        offload=round(1000 * float(offload[1])) if offload else 0,
    )


def _micro_batches(row: Row, data: int) -> tuple[int, int]:
    """Documents of a replica in a micro-batch, micro-batches in a step."""
    total, micro, count = (
        row.known("global_batch"),
        row.known("micro_batch"),
        row.known("grad_accum"),
    )
    if micro is None and count is None:
        micro = 1
        row.note("micro_batch 1 assumed")
    if micro is None:
        if total is None or count is None:
            raise InvalidValueError("micro_batch is blank, and so is global_batch or grad_accum")
        micro = max(1, round(total / (data * count)))
    if count is None:
        if total is None:
            raise InvalidValueError("global_batch and grad_accum are blank: the step has no size")
        count = max(1, round(total / (data * micro)))
    elif total is not None and count * micro * data != total:
        derived = max(1, round(total / (data * micro)))
        if derived != count:
            row.note(f"grad_accum {count} printed, {derived} follows from the global batch")
            count = derived
    return micro, count


def _schedule(row: Row, pipeline: int) -> tuple[ScheduleKind, int]:
    text = row.text("schedule").lower()
    chunks = row.integer("virtual_stages", 1)
    if pipeline == 1:
        return ScheduleKind.ONE_F_ONE_B, 1
    if text.startswith("zb-2p"):
        return ScheduleKind.ZB_H2, 1
    if text.startswith(("zb-1p", "zbb")):
        return ScheduleKind.ZB_H1, 1
    if text.startswith(("zb-v", "v-half", "v-min")):
        row.note(f"schedule {text} priced as zb_v")
        return ScheduleKind.ZB_V, 2
    if chunks > 1:
        return ScheduleKind.INTERLEAVED, chunks
    if not text.startswith("1f1b"):
        row.note("1F1B assumed")
    return ScheduleKind.ONE_F_ONE_B, 1


def _zero(row: Row, replicas: int) -> tuple[int, int]:
    """Stage of ZeRO, and ranks of a shard group (0: all)."""
    text = row.text("zero_fsdp").lower()
    group = _GROUPS.search(text)
    size = int(group[1] or group[2]) if group else 0
    if size >= replicas or (size and replicas % size):
        size = 0
    if replicas == 1:
        return 0, 0
    if text.startswith(_SHARDS_ALL) or "fsdp" in text:
        if text.startswith("hsdp"):
            row.note("HSDP: shards inside a node")
            size = min(8, replicas)
        if "not resharded" in text:
            row.note("weights are gathered once a step: priced as ZeRO-2")
            return 2, size
        return 3, size
    if text.startswith(("zero-2", "shard_grad_op")):
        return 2, size
    if text.startswith("zero-1") or "distributed optimizer" in text:
        return 1, size
    if not text:
        row.note("plain data parallelism assumed")
    return 0, 0


def _recompute(row: Row) -> Recompute:
    text = row.text("recompute").lower()
    if text.startswith("full"):
        return Recompute.LAYER
    if text.startswith("selective op"):
        return Recompute.REGION
    if text.startswith(("selective: norm", "selective layer")):
        row.note("norms and pointwise operators recomputed")
        return Recompute.REGION
    if text.startswith("selective"):
        return Recompute.ATTENTION
    if not text.startswith("none") or "not stated" in text:
        row.note("no recomputation assumed")
    return Recompute.NONE


def _precision(row: Row, stack: Stack) -> tuple[TrainingSpec, str | None]:
    text = row.text("precision").lower()
    half = "float16" if text.startswith("fp16") else "bfloat16"
    linear = "float8_e4m3fn" if "fp8" in text or "float8" in text else None
    if not text:
        row.note("bfloat16 assumed")
    if text.startswith(("fp32", "tf32")):
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
    return min(count, plan.world_size)
