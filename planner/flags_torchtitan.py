"""Settings of torchtitan, from its TOML file or its flags -> LauncherPlan.

Keys as in torchtitan's config/job_config.py. Keys of the sections that parallelism, batches,
recomputation and float8 stand in must be known; other sections change neither time nor memory.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardwise.ir.decoder import DecoderShape
from shardwise.ir.errors import InvalidValueError, ParseError, UnsupportedError
from shardwise.ir.scanner import shown
from shardwise.ir.schedule import ScheduleKind
from shardwise.ir.strategy import Recompute
from shardwise.planner.flag_words import names
from shardwise.planner.launcher_plan import (
    FLOAT8,
    LauncherPlan,
    chunks_of,
    data_degree,
    micro_batch_count,
)
from shardwise.planner.uniform_plan import UniformPlan

Settings = Mapping[str, object]

_KEYS: Final[Mapping[str, frozenset[str]]] = {
    "parallelism": names(
        """
        tensor_parallel_degree pipeline_parallel_degree pipeline_parallel_schedule
        pipeline_parallel_microbatch_size pipeline_parallel_layers_per_stage
        data_parallel_shard_degree data_parallel_replicate_degree context_parallel_degree
        enable_async_tensor_parallel fsdp_reshard_after_forward expert_parallel_degree
        """
    ),
    "activation_checkpoint": names("mode selective_ac_option"),
    "training": names("local_batch_size global_batch_size seq_len batch_size compile"),
    "compile": names("enable components"),
    "float8": frozenset(),
    "model": frozenset({"converters"}),
}
"""Sections and keys that are read."""
_NOTED: Final[Mapping[str, frozenset[str]]] = {
    "parallelism": names(
        """
        disable_loss_parallel enable_compiled_autograd context_parallel_rotate_method
        context_parallel_load_balancer expert_tensor_parallel_degree
        pipeline_parallel_expert_parallel_overlap
        """
    ),
    "training": frozenset({"enable_cpu_offload"}),
    "compile": frozenset({"backend"}),
}
"""Known, and their effect is not priced."""
_QUIET: Final = names(
    """
    steps max_norm dataset dataset_path seed deterministic gc_freq gc_debug mixed_precision_param
    mixed_precision_reduce dtype warmup_steps debug_moe_force_load_balance data_parallel_degree
    per_op_sac_force_recompute_mm_shapes_by_fqns preserve_rng_state determinism_check debug
    early_stop
    """
)
_SCHEDULES: Final[Mapping[str, ScheduleKind]] = {
    "1f1b": ScheduleKind.ONE_F_ONE_B, "gpipe": ScheduleKind.GPIPE,
    "interleaved1f1b": ScheduleKind.INTERLEAVED, "zbvzerobubble": ScheduleKind.ZB_V,
}  # fmt: skip
_DEFAULT_CHUNKS: Final = 2
"""Model parts of a device under a schedule with several, where layers per stage are not stated."""


def settings_of_toml(text: str) -> dict[str, object]:
    """`section.key` -> value; raises ParseError."""
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"not TOML ({' '.join(str(error).split())}); repair it") from None
    found: dict[str, object] = {}

    def walk(name: str, value: object) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(f"{name}.{key}" if name else key, item)
        else:
            found[name] = value

    walk("", tree)
    return found


def settings_of_flags(given: Mapping[str, tuple[str, ...]]) -> dict[str, object]:
    """The same of `--section.key value`: `-` is `_` in torchtitan's names."""
    return {
        name.replace("-", "_"): (values[0] if values else "true") for name, values in given.items()
    }


def read_torchtitan(settings: Settings, shape: DecoderShape, world_size: int) -> LauncherPlan:
    """The plan of torchtitan's settings for a model on `world_size` ranks.

    Raises InvalidValueError for an unknown or contradictory key, MismatchError for degrees that
    are not the cluster's, UnsupportedError for what is not priced at all.
    """
    return _Reader(settings, shape, world_size, _noted(settings)).plan()


def _noted(settings: Settings) -> list[str]:
    """Notes for keys that are known and not priced; raises for those that nobody knows."""
    notes = []
    for name, value in settings.items():
        section, _, key = name.rpartition(".")
        if section.startswith("quantize"):
            continue
        if section not in _KEYS or section in ("model", "float8") or key in _QUIET:
            continue
        if key in _NOTED.get(section, ()):
            if value not in (False, "false", "False"):
                notes.append(f"{name} is not priced")
        elif key not in _KEYS[section]:
            near = difflib.get_close_matches(key, _KEYS[section], n=1)
            hint = f"; did you mean {section}.{near[0]}?" if near else ""
            raise InvalidValueError(
                f"{name} is not a key of torchtitan that is known here{hint or '; leave it out'}"
            )
    return notes


@dataclass
class _Reader:
    """Settings, and the notes made while they are read."""

    settings: Settings
    shape: DecoderShape
    world_size: int
    notes: list[str]

    def plan(self) -> LauncherPlan:
        tensor = self._integer("parallelism.tensor_parallel_degree", 1)
        pipeline = self._integer("parallelism.pipeline_parallel_degree", 1)
        context = self._integer("parallelism.context_parallel_degree", 1)
        if self._integer("parallelism.expert_parallel_degree", 1) != 1:
            raise UnsupportedError("parallelism.expert_parallel_degree: experts are not priced")
        data, zero, shard = self._data(tensor, pipeline, context)
        schedule, chunks = self._schedule(pipeline)
        micro, count = self._batches(pipeline, data)
        length = self._integer("training.seq_len", 0)
        recompute = self._recompute()
        made = UniformPlan(
            tensor, pipeline, data, context, micro, count, length or 1, schedule, chunks, zero,
            shard, sequence_parallel=tensor > 1, recompute=recompute,
            overlap_gradients=data * context > 1,
            overlap_tensor=tensor > 1 and self._is("parallelism.enable_async_tensor_parallel"),
            alternate=recompute is Recompute.REGION,
            compiled=self._is("training.compile") or self._is("compile.enable"),
        )  # fmt: skip
        float8 = any(
            name.startswith(("float8.", "quantize.linear.float8"))
            or (name == "model.converters" and "float8" in str(value))
            for name, value in self.settings.items()
        )
        return LauncherPlan(
            made, "torchtitan", length or None, True, None, FLOAT8 if float8 else None,
            tuple(self.notes),
        )  # fmt: skip

    def _integer(self, name: str, default: int) -> int:
        value = self.settings.get(name, default)
        if isinstance(value, str) and value.lstrip("-").isdecimal() and len(value) < 16:
            value = int(value)
        if type(value) is not int or (value < 1 and value != default):
            raise InvalidValueError(f"{name} is {shown(value)}; give an int of 1 or more")
        return value

    def _is(self, name: str) -> bool:
        return str(self.settings.get(name, False)).lower() == "true"

    def _word(self, name: str, default: str) -> str:
        return str(self.settings.get(name, default)).lower()

    def _data(self, tensor: int, pipeline: int, context: int) -> tuple[int, int, int]:
        """(degree, stage of ZeRO, ranks of a shard group)."""
        replicate = self._integer("parallelism.data_parallel_replicate_degree", 1)
        cut = self._integer("parallelism.data_parallel_shard_degree", -1)
        stated = None if cut == -1 else cut
        data = data_degree(
            self.world_size,
            stated,
            tp=tensor,
            pp=pipeline,
            cp=context,
            data_parallel_replicate_degree=replicate,
        )
        group = data * context
        if group == 1:
            return replicate, 0, 0
        keeps = self._word("parallelism.fsdp_reshard_after_forward", "default")
        if keeps not in ("default", "always", "never"):
            raise InvalidValueError(
                f"parallelism.fsdp_reshard_after_forward is {keeps}: it is default, always or never"
            )
        zero = 2 if keeps == "never" or (keeps == "default" and pipeline > 1) else 3
        if zero == 2:
            self.notes.append("weights gathered once a step: priced as ZeRO-2")
        return data * replicate, zero, group if replicate > 1 else 0

    def _schedule(self, pipeline: int) -> tuple[ScheduleKind, int]:
        if pipeline == 1:
            return ScheduleKind.ONE_F_ONE_B, 1
        name = self._word("parallelism.pipeline_parallel_schedule", "1F1B")
        if name not in _SCHEDULES:
            raise UnsupportedError(
                f"parallelism.pipeline_parallel_schedule {name} is not priced; "
                f"{', '.join(_SCHEDULES)} are"
            )
        schedule = _SCHEDULES[name]
        key = "parallelism.pipeline_parallel_layers_per_stage"
        chunks = _DEFAULT_CHUNKS if schedule.takes_chunks else 1
        if key in self.settings:
            chunks = chunks_of(key, self.shape.layers, pipeline, self._integer(key, 1))
        return schedule, chunks

    def _batches(self, pipeline: int, data: int) -> tuple[int, int]:
        """(documents in a micro-batch, micro-batches in a step)."""
        if "training.batch_size" in self.settings:
            raise InvalidValueError(
                "training.batch_size is of older versions of torchtitan; write local_batch_size"
            )
        if "training.local_batch_size" not in self.settings:
            raise InvalidValueError("training.local_batch_size is not stated; add it")
        local = self._integer("training.local_batch_size", 1)
        total = self._integer("training.global_batch_size", -1)
        rounds = 1
        if total != -1:
            rounds = micro_batch_count("training.global_batch_size", total, data, local)
        if pipeline == 1:
            return local, rounds
        micro = self._integer("parallelism.pipeline_parallel_microbatch_size", 1)
        count, left = divmod(local, micro)
        if left:
            raise InvalidValueError(
                f"parallelism.pipeline_parallel_microbatch_size {micro} does not divide "
                f"training.local_batch_size {local}; correct one"
            )
        if rounds > 1:
            self.notes.append(
                f"the pipeline drains {rounds} times a step in torchtitan, priced as once"
            )
        return micro, count * rounds

    def _recompute(self) -> Recompute:
        mode = self._word("activation_checkpoint.mode", "")
        option = self._word("activation_checkpoint.selective_ac_option", "")
        if mode == "none":
            return Recompute.NONE
        if mode == "full" or (mode == "selective" and option == "1"):
            return Recompute.LAYER
        if mode == "selective" and option == "op":
            return Recompute.REGION
        if mode == "selective" and option:
            raise UnsupportedError(
                f"activation_checkpoint.selective_ac_option {option}: a uniform plan recomputes in "
                "every layer or none; op, full and none are priced"
            )
        raise InvalidValueError(
            f"activation_checkpoint mode {mode or 'not stated'}, option {option or 'not stated'}: "
            "defaults differ between versions of torchtitan; state mode (none, full, selective) "
            "and with selective the option"
        )
