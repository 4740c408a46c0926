"""A plan made small enough to be replayed in float64 in one process, its structure kept.

What is kept: the axes and their order, every bucket's strategies and recomputation, every
parameter's layouts and lifetime, and of the model whatever the ranks divide or do not divide
(heads, key heads, widths, vocabulary). What shrinks: ranks per axis, layers, widths, lengths,
seats. `Projection.notes` says which did.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwise.ir.bucket_plan import StrategyRun
from shardwise.ir.mesh import DATA, STAGE, Mesh, MeshAxis
from shardwise.ir.parameter_choice import Lifetime, ParameterChoice
from shardwise.ir.plan import Plan, Stage
from shardwise.ir.strategy import Role
from shardwise.ir.trace import TracedModel

MAX_RANKS = 8
"""Simulated ranks at most."""
_CUT = 2
"""Size to which an axis of a mesh with more ranks is cut."""
_HEAD = 8
_WIDE = "float64"


@dataclass(frozen=True)
class Projection:
    """A plan that can be replayed, and what it leaves out of the one that it stands for."""

    plan: Plan
    notes: tuple[str, ...]


def project(plan: Plan, traced: TracedModel, *, wide: bool = True) -> Projection:
    """`plan` for the ranks of one process and the (possibly smaller) model that was traced: in
    float64 if `wide`, else in the plan's compute dtype. Raises InvalidValueError where the result
    is no legal plan."""
    mesh = smaller_mesh(plan.mesh)
    notes = [] if mesh == plan.mesh else [f"mesh: {plan.mesh} -> {mesh}"]
    units = len(traced.units)
    if units != plan.model.unit_count:
        notes.append(f"units: {plan.model.unit_count} -> {units}, strategies at equal depth")
    buckets = []
    for bucket in plan.buckets:
        ids = plan.unit_strategies(bucket)
        kept = [ids[_at(place, units, len(ids))] for place in range(units)]
        degree = mesh.group_size(plan.strategy(kept[0]).axes(Role.BATCH))
        runs = tuple(StrategyRun(one, 1) for one in kept)
        buckets.append(replace(bucket, batch_degree=degree, runs=_merged(runs)))
    used = {run.strategy for bucket in buckets for run in bucket.runs}
    training, parameters = plan.training, plan.parameters
    if wide:
        training = replace(
            training, master_dtype=_WIDE, compute_dtype=_WIDE, reduce_dtype=_WIDE,
            accumulate_dtype=_WIDE,
        )  # fmt: skip
        parameters = tuple(_without_casts(choice) for choice in parameters)
    projected = replace(
        plan,
        model=traced.fingerprint,
        training=training,
        mesh=mesh,
        groups=tuple(group for group in plan.groups if mesh.group_size(group) > 1),
        stages=(Stage(0, units),),
        parameters=parameters,
        strategies=tuple(entry for entry in plan.strategies if entry[0] in used),
        buckets=tuple(buckets),
    )
    return Projection(projected, tuple(notes))


def smaller_mesh(mesh: Mesh) -> Mesh:
    """The mesh on at most MAX_RANKS ranks: of larger ones each axis is cut to 2, stages to 1."""
    if mesh.world_size <= MAX_RANKS and STAGE not in mesh.axis_names:
        return mesh
    axes: list[MeshAxis] = []
    room = MAX_RANKS
    for axis in mesh.axes:
        size = 1 if axis.name == STAGE else min(axis.size, _CUT, room)
        room //= size
        axes.append(MeshAxis(axis.name, size, axis.link))
    return Mesh(tuple(axes), mesh.rank_order)


def _at(place: int, count: int, of: int) -> int:
    """Index in a list of `of` that is as deep as `place` in a list of `count`."""
    return place if count == of else round(place * (of - 1) / max(1, count - 1))


def _merged(runs: tuple[StrategyRun, ...]) -> tuple[StrategyRun, ...]:
    merged: list[StrategyRun] = []
    for run in runs:
        if merged and merged[-1].strategy == run.strategy:
            merged[-1] = StrategyRun(run.strategy, merged[-1].count + run.count)
        else:
            merged.append(run)
    return tuple(merged)


def _without_casts(choice: ParameterChoice) -> ParameterChoice:
    """In one dtype a replicated master is its own copy, which lives for a step."""
    return choice if choice.master.entries else replace(choice, lifetime=Lifetime.STEP)


def small_config(config: Mapping[str, Any], mesh: Mesh) -> dict[str, Any]:
    """A Hugging Face config of the same architecture with two small layers.

    `mesh` is the plan's own. A count that its model axes divide together is divided by those of
    the smaller mesh, one that they do not divide is not, and key heads that are fewer than the
    ranks stay fewer.
    """
    ranks, few = _model_ranks(mesh), _model_ranks(smaller_mesh(mesh))
    usual = _ALIASES.get(str(config.get("model_type")), {})
    found = {usual.get(key, key): key for key in config}

    def get(name: str, default: Any = None) -> Any:
        return config[found[name]] if name in found else default

    heads = int(get("num_attention_heads", 4))
    kv = int(get("num_key_value_heads") or heads)
    small_heads, small_kv = _heads(heads, kv, ranks, few)
    width = small_heads * _HEAD
    wanted = {
        "num_hidden_layers": 2,
        "num_attention_heads": small_heads,
        "num_key_value_heads": small_kv,
        "hidden_size": width,
        "head_dim": _HEAD,
        "intermediate_size": _like(int(get("intermediate_size") or 4), ranks, 32),
        "vocab_size": _like(int(get("vocab_size", 64)), ranks, 64),
        "word_embed_proj_dim": width,
        "num_local_experts": 4,
        "num_experts": 4,
        "sliding_window": 4,
    }
    small = dict(config)
    for name, value in wanted.items():
        if get(name) is not None:
            small[found[name]] = value
    if get("layer_types") is not None:
        small[found["layer_types"]] = list(get("layer_types"))[:2]
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if small.get(key) is not None:
            small[key] = 0
    return small


_ALIASES: dict[str, dict[str, str]] = {
    "gpt2": {
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
    },
    "opt": {"ffn_dim": "intermediate_size"},
}  # fmt: skip
"""Model type -> its own key -> the usual one."""


def _model_ranks(mesh: Mesh) -> int:
    return math.prod(axis.size for axis in mesh.axes if axis.name not in (DATA, STAGE))


def _heads(heads: int, kv: int, ranks: int, few: int) -> tuple[int, int]:
    """Query and key heads that fall in the same cases on `few` ranks as these on `ranks`."""
    if heads % ranks:
        return (few + 1, few + 1) if kv == heads else (few + 1, 1)
    whole = 2 * max(few, 2)
    if kv == heads:
        return whole, whole
    if kv % ranks == 0:
        return whole, max(few, 1)
    return (whole, 1) if kv < ranks else (few * (few + 1), few + 1)


def _like(size: int, ranks: int, small: int) -> int:
    """`small` if the ranks divide the size, else the odd number after it."""
    return small if size % ranks == 0 else small + 1
