"""The uniform plan that a row of published measurements describes."""

import re
from typing import Final

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.schedule import ScheduleKind
from shardwise.ir.strategy import Recompute
from shardwise.planner.published_cells import Row
from shardwise.planner.published_stack import Stack
from shardwise.planner.uniform_plan import UniformPlan

_SHARDS_ALL: Final = ("fsdp", "full_shard", "zero-3", "hsdp")
_GROUPS: Final = re.compile(r"within groups of ([0-9]{1,9})|shard ([0-9]{1,9})")
_ZERO: Final = re.compile(r"^zero[ _-]?(?:stage[ _-]?)?(?=[0-3]\b)")
"""How the stage of ZeRO is written: ZeRO-1, zero1, ZeRO stage 1."""
_PLAIN: Final = ("none", "no", "zero-0", "ddp", "0", "false")
"""How a row begins that says plain data parallelism, or that it says nothing of it."""
_YES: Final = ("yes", "true", "1", "recipe default (yes")
_NO: Final = ("no", "false", "0", "ring", "recipe default")
_OFFLOAD: Final = re.compile(r"activation offload ratio (0\.[0-9]+|1)")


def plan_of_row(row: Row, stack: Stack) -> UniformPlan:
    """The degrees, batches, schedule and recomputation of a row; assumptions become its notes.

    Raises InvalidValueError where degrees or batches contradict each other, or nothing says them.
    """
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
    if tensor > 1 and not sequence.startswith(_YES):
        if sequence in ("", "not stated"):
            row.note("no sequence parallelism assumed")
        elif not sequence.startswith(_NO):
            row.note(f"seq_parallel {sequence!r:.40} not known: none assumed")
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
        sequence_parallel=tensor > 1 and sequence.startswith(_YES),
        recompute=recompute,
        overlap_gradients=stack.overlaps or zero > 2,
        broadcast_weights=stack.broadcasts and zero in (1, 2),
        overlap_tensor=tensor > 1
        and (stack.overlaps_tensor or "async tp" in row.text("other_settings").lower()),
        alternate=alternate,
        compiled=alternate and stack.fuses,
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
        if count * micro * data != total:
            row.note(f"global_batch {total} priced as {count} x {micro} x {data} documents")
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
    if text and not text.startswith(("1f1b", "none", "interleaved")):
        row.note(f"schedule {text!r:.40} not known: 1F1B assumed")
    elif not text.startswith("1f1b"):
        row.note("1F1B assumed")
    return ScheduleKind.ONE_F_ONE_B, 1


def _zero(row: Row, replicas: int) -> tuple[int, int]:
    """Stage of ZeRO, and ranks of a shard group (0: all)."""
    text = _ZERO.sub("zero-", row.text("zero_fsdp").lower())
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
    elif not text.startswith(_PLAIN):
        row.note(f"zero_fsdp {text!r:.40} not known: plain data parallelism assumed")
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
    if text and not text.startswith(("none", "not stated")):
        row.note(f"recompute {text!r:.40} not known: none assumed")
    elif not text.startswith("none") or "not stated" in text:
        row.note("no recomputation assumed")
    return Recompute.NONE
