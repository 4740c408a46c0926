"""`shardwise plan`: from files and a model's name to a plan; no weights are made."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shardwise.ir.config_files import load_machine
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.lengths_file import read_lengths
from shardwise.ir.plan import Plan
from shardwise.ir.training import TrainingSpec
from shardwise.planner.api import plan
from shardwise.planner.edges import last_edge
from shardwise.planner.score import score_plan

_POSITIONS: Final = re.compile(r"\b(?:wpe|position_embeddings|embed_positions)\.weight$")
"""Names of tables of learned positions in transformers."""


def plan_language_model(
    spec: str,
    *,
    training: TrainingSpec,
    cluster: Path,
    lengths: Path,
    tokens_per_step: int,
    memory_limit_bytes_per_rank: int | None = None,
    say: Callable[[str], None] = print,
) -> Plan:
    """The plan of the model that `spec` names (`hf:config.json`, `module:function`).

    `say` is given the coverage of the model by operator rules before the search begins. Raises
    ShardwiseError for bad files, a model that cannot be traced, or when nothing fits.
    """
    from shardwise.ir.trace_language import trace_language_model
    from shardwise.ir.trace_models import load_model

    machine = load_machine(cluster)
    histogram = read_lengths(lengths)
    longest = last_edge(histogram, machine[0].world_size)
    traced = trace_language_model(
        load_model(spec), compute_dtype=training.compute_dtype, longest=longest
    )
    _check_positions(traced.graph, longest)
    say(str(traced.coverage()))
    return plan(
        traced,
        cluster=machine,
        lengths=histogram,
        tokens_per_step=tokens_per_step,
        training=training,
        memory_limit_bytes_per_rank=memory_limit_bytes_per_rank,
    )


def _check_positions(graph: OperatorGraph, longest: int) -> None:
    """Raise InvalidValueError where a table of learned positions is too short for the slots."""
    for item in graph.parameters:
        shape = item.spec.shape
        if len(shape) == 2 and _POSITIONS.search(item.name) and int(shape[0]) < longest:
            raise InvalidValueError(
                f"documents are padded to {longest} tokens and {item.name} has {shape[0]} "
                "positions; measure the lengths with a --max-length that a multiple of the ranks "
                "does not take over it"
            )


def batcher_line(made: Plan, lengths: Path) -> str:
    """What the real batcher makes of a plan, beside its objective: one line for people."""
    return f"{score_plan(made, read_lengths(lengths))} (64 sampled steps, empty seats filled)"
