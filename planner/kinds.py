"""Parameters that are alike, so that each kind is priced once.

Two parameters are alike when their shapes, the uses that every implementation makes of them and
whether they train are equal: then any scheme rests them alike, and all that a price reads is equal.
A decoder of 32 layers has a dozen kinds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.ir.graph import OperatorGraph
from shardwise.ir.program import Use
from shardwise.ir.training import TrainingSpec


@dataclass(frozen=True)
class Kinds:
    """The first parameter of every kind stands for all of it."""

    first: Mapping[str, str]
    """Parameter -> the first one like it, in the order of the graph."""
    counts: Mapping[str, int]
    """The first of each kind -> how many there are."""
    uses: Mapping[str, tuple[Use, ...]]
    """Implementation -> the uses of the first ones."""


def parameter_kinds(
    graph: OperatorGraph,
    uses: Mapping[str, Sequence[Use]],
    dims: Mapping[str, int],
    training: TrainingSpec,
) -> Kinds:
    """Group the parameters of a graph: `uses` by implementation, `dims` that schemes cut."""
    signatures: dict[str, list[object]] = {parameter.name: [] for parameter in graph.parameters}
    for implementation, steps in uses.items():
        for use in steps:
            signatures[use.parameter].append((implementation, str(use.spec), use.layout))
    known: dict[object, str] = {}
    first: dict[str, str] = {}
    counts: dict[str, int] = {}
    for parameter in graph.parameters:
        name = parameter.name
        key = (
            parameter.spec.shape, dims.get(name), training.trains(name), tuple(signatures[name]),
        )  # fmt: skip
        first[name] = known.setdefault(key, name)
        counts[first[name]] = counts.get(first[name], 0) + 1
    return Kinds(
        first,
        counts,
        {
            implementation: tuple(use for use in steps if use.parameter in counts)
            for implementation, steps in uses.items()
        },
    )
