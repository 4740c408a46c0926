"""A user's own plan from what their launcher is given: three forms, told apart by what they hold.

uniform      tp=8 pp=4 micro_batch=1        planner/uniform_plan.py
Megatron-LM  --tensor-model-parallel-size 8  planner/flags_megatron.py, a script or its flags
torchtitan   a TOML file, or --parallelism.tensor_parallel_degree 8  (flags_torchtitan.py)
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from shardwise.ir.decoder import DecoderShape
from shardwise.ir.errors import FileFormatError, InvalidValueError, ParseError, ShardwiseError
from shardwise.planner.flag_words import flags, names
from shardwise.planner.flags_megatron import read_megatron
from shardwise.planner.flags_torchtitan import (
    read_torchtitan,
    settings_of_flags,
    settings_of_toml,
)
from shardwise.planner.launcher_plan import LauncherPlan, data_degree
from shardwise.planner.uniform_plan import UniformPlan

_FORMS: Final = (
    "give 'tp=8 pp=4 ...', flags of Megatron-LM (--tensor-model-parallel-size 8) or of torchtitan "
    "(--parallelism.tensor_parallel_degree 8)"
)
_STARTED: Final = names(
    "nproc-per-node nnodes node-rank master-addr master-port rdzv-id rdzv-backend rdzv-endpoint "
    "local-ranks-filter role tee"
)
"""Flags of torchrun, which stand before those of the program that it starts."""


def read_flags(text: str, shape: DecoderShape, world_size: int) -> LauncherPlan:
    """The plan that a text of flags states, for a model on `world_size` ranks.

    Raises ShardwiseError, one line that names the flag that is unknown or contradicts another, the
    model or the cluster.
    """
    if not any(word.startswith("--") for word in text.split()):
        return _uniform(text, world_size)
    given = flags(text)
    dotted = {name: values for name, values in given.items() if "." in name}
    plain = {name: values for name, values in given.items() if name not in dotted}
    if not dotted:
        return read_megatron(plain, shape, world_size)
    strange = [name for name in plain if name not in _STARTED]
    if strange:
        first = next(iter(dotted)).replace("-", "_")
        raise InvalidValueError(
            f"--{first} is a flag of torchtitan and --{strange[0]} is none; {_FORMS}"
        )
    files = [name for name in dotted if name.startswith("job.config")]
    if files:
        raise InvalidValueError(
            f"--{files[0]} names a file with more settings; give that TOML file, with the changes "
            "in it"
        )
    return read_torchtitan(settings_of_flags(dotted), shape, world_size)


def read_flags_file(path: Path, shape: DecoderShape, world_size: int) -> LauncherPlan:
    """The plan that a script, a file of flags or torchtitan's TOML states."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileFormatError(f"{path}: {error.strerror}; give a file of flags") from None
    except UnicodeDecodeError:
        raise FileFormatError(f"{path}: not text in UTF-8; give a file of flags") from None
    try:
        if path.suffix == ".toml":
            return read_torchtitan(settings_of_toml(text), shape, world_size)
        return read_flags(text, shape, world_size)
    except ShardwiseError as error:
        raise type(error)(f"{path}: {error}") from None


def _uniform(text: str, world_size: int) -> LauncherPlan:
    """A uniform plan, its data degree what the others leave unless it is stated."""
    if not text.strip():
        raise ParseError(f"no flags are given; {_FORMS}")
    stated = {part.partition("=")[0] for part in text.split()}
    apart = [part for part in text.split() if not part.startswith("shard=")]
    made = UniformPlan.parse(" ".join(apart) or "tp=1")
    degrees = {"tp": made.tensor, "pp": made.pipeline, "cp": made.context}
    degree = made.data if stated & {"dp", "data"} else None
    data = data_degree(world_size, degree, **degrees)
    if "shard" in stated:  # of data ranks, which may be what the other degrees leave
        made = UniformPlan.parse(text if degree else f"{text} dp={data}")
    length = made.sequence_length if stated & {"length", "sequence_length"} else None
    return LauncherPlan(replace(made, data=data), "uniform", length, "micro_batches" in stated)
