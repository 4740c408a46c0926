"""LauncherPlan: what the flags of a launcher say, checked against the model and the cluster."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardwise.ir.decoder import DecoderShape
from shardwise.ir.errors import InvalidValueError, MismatchError
from shardwise.planner.uniform_plan import UniformPlan

FLOAT8: Final = "float8_e4m3fn"


@dataclass(frozen=True, slots=True)
class LauncherPlan:
    """A user's own plan."""

    plan: UniformPlan
    """Sequence length and micro-batches are 1 where the flags leave them out."""
    form: str
    """Whose flags they are: uniform, megatron or torchtitan."""
    sequence_length: int | None = None
    """As stated."""
    counts_micro_batches: bool = False
    """Whether the flags say how many micro-batches a step has."""
    compute_dtype: str | None = None
    """As stated."""
    linear_dtype: str | None = None
    """Of products with weights inside layers, where it is not the compute dtype (float8)."""
    notes: tuple[str, ...] = ()
    """What was assumed, and flags whose effect is not priced."""


def data_degree(world_size: int, stated: int | None, **degrees: int) -> int:
    """Ranks over which documents are split: what the other degrees leave of the world.

    Raises MismatchError where they do not multiply to `world_size`.
    """
    others = 1
    for degree in degrees.values():
        others *= degree
    if others < 1 or world_size % others or (stated is not None and stated * others != world_size):
        shown = [f"{name}={degree}" for name, degree in degrees.items()]
        shown += [f"dp={stated}"] if stated is not None else []
        raise MismatchError(
            f"{' x '.join(shown)} do not make the cluster's {world_size} ranks; correct a degree "
            "or give the cluster of this run"
        )
    return world_size // others


def check_sizes(shape: DecoderShape, stated: Mapping[str, tuple[str, int | bool]]) -> None:
    """Raise MismatchError unless the model has what flags say of it.

    `stated` maps fields of a DecoderShape to (flag, value).
    """
    for field, (flag, value) in stated.items():
        if getattr(shape, field) != value:
            raise MismatchError(
                f"{flag} says {field} {value}, the model has {getattr(shape, field)}; give the "
                "config of the model that these flags train"
            )


def not_cut(shape: DecoderShape, plan: UniformPlan) -> str:
    """Which part of a layer every tensor rank computes whole, as the degree does not divide it; ""
    where it divides all. Stacks refuse such a plan or copy heads of keys and values.
    """
    for name, size in (
        ("heads", shape.heads),
        ("heads of keys and values", shape.kv_heads),
        ("columns of the feed-forward part", shape.ffn),
    ):
        if size % plan.tensor:
            return f"tp={plan.tensor} does not divide {size} {name}"
    return ""


def micro_batch_count(flag: str, documents: int, data: int, micro_batch: int) -> int:
    """Micro-batches of one replica in a step of `documents`; raises InvalidValueError."""
    count, left = divmod(documents, data * micro_batch)
    if left or count < 1:
        raise InvalidValueError(
            f"{flag} {documents} is no multiple of {data} replicas x {micro_batch} documents; "
            "correct one of them"
        )
    return count


def chunks_of(flag: str, layers: int, pipeline: int, layers_per_part: int) -> int:
    """Model parts of one device that have `layers_per_part` layers each."""
    parts, left = divmod(layers, layers_per_part)
    if left or parts % pipeline:
        raise InvalidValueError(
            f"{flag} {layers_per_part}: {layers} layers are no whole number of such parts on each "
            f"of {pipeline} pipeline devices; correct it"
        )
    return parts // pipeline
