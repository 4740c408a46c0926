"""Where a concrete parameter rests under a plan, and what follows for its gradient and copies.

The plan states master, accumulator and lifetime for patterns of names; a `Rest` is that for one
parameter of a graph. Two layouts follow from all uses of the parameter in all buckets together, and
are derived here, once, for the planner's prices and the runtime alike (docs/design/accumulator.md):

stored  the layout in which gradients are summed over the micro-batches of a step. On the axes that
        cut the accumulator it is the accumulator. On any other axis the least state, in the order
        replicated < cut < Partial, into which every use's gradient goes without a message: a
        replicated gradient is an addend of the first rank, a cut one an addend among zeros. What is
        Partial is reduced once, at the end of the step;
copy    the layout in which a compute copy that lives for a step is kept: the one that all uses
        share, else whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shardwise.ir.dtype import FLOAT_DTYPES
from shardwise.ir.errors import MismatchError, UnsupportedError
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.layout import Entry, Layout, Partial, Replicate
from shardwise.ir.mesh import Mesh
from shardwise.ir.parameter_choice import Lifetime, ParameterChoice
from shardwise.ir.program import Use
from shardwise.ir.training import TrainingSpec

WHOLE = Layout(())
"""Replicated on every axis."""


@dataclass(frozen=True, slots=True)
class Rest:
    """One parameter at rest."""

    name: str
    shape: tuple[int, ...]
    """Global shape."""
    master: Layout
    accumulator: Layout
    lifetime: Lifetime


def check_trained(graph: OperatorGraph, training: TrainingSpec) -> None:
    """Raise UnsupportedError where what the recipe trains and what the model lets train differ.

    Also for buffers that a forward writes and later ones would read: no run carries them over.
    """
    trained = [item for item in graph.parameters if training.trains(item.name)]
    if graph.parameters and not trained:
        raise UnsupportedError(
            f"trainable {','.join(training.trainable)} matches none of the model's parameters; "
            "correct the globs"
        )
    for item in trained:
        if not item.trainable or item.spec.dtype not in FLOAT_DTYPES:
            raise UnsupportedError(
                f"parameter {item.name} ({item.spec.dtype}) is frozen and the recipe trains it: "
                "unfreeze it, or give TrainingSpec.trainable globs that leave it out"
            )
    for name, ref in graph.updates:
        if graph.spec(ref).dtype in FLOAT_DTYPES:
            raise UnsupportedError(
                f"the forward writes the buffer {name}, which steps would have to carry over; "
                "freeze it (eval mode of that module), or compute it from the inputs"
            )


def rests(graph: OperatorGraph, choices: Sequence[ParameterChoice]) -> tuple[Rest, ...]:
    """The rest of every parameter of the graph; MismatchError for one that no choice names."""
    by_name: dict[str, ParameterChoice] = {
        name: choice for choice in choices for name in choice.names.names()
    }
    result = []
    for parameter in graph.parameters:
        choice = by_name.get(parameter.name)
        if choice is None:
            raise MismatchError(
                f"at parameters: the plan has no choice for {parameter.name}; make the plan again "
                "for this model"
            )
        shape = tuple(int(length) for length in parameter.spec.shape)
        for what, layout in (("master", choice.master), ("accumulator", choice.accumulator)):
            if any(getattr(cut, "dim", 0) >= max(1, len(shape)) for _, cut in layout.entries):
                raise MismatchError(
                    f"at parameters: {what} {layout} of {parameter.name} cuts a dim that shape "
                    f"{shape} lacks; make the plan again for this model"
                )
        result.append(
            Rest(parameter.name, shape, choice.master, choice.accumulator, choice.lifetime)
        )
    return tuple(result)


def uses_by_parameter(uses: Iterable[Use]) -> Mapping[str, tuple[Use, ...]]:
    """The uses of each parameter, over all buckets."""
    result: dict[str, list[Use]] = {}
    for use in uses:
        result.setdefault(use.parameter, []).append(use)
    return {name: tuple(found) for name, found in result.items()}


def stored_layout(rest: Rest, uses: Sequence[Use], mesh: Mesh) -> Layout:
    """The layout in which gradients are summed over a step's micro-batches."""
    entries: list[Entry] = list(rest.accumulator.entries)
    for axis in mesh.axis_names:
        if axis in rest.accumulator.axes:
            continue
        left = {use.layout.gradient.placement(axis) for use in uses} - {Replicate()}
        if len(left) == 1 and not rest.accumulator.axes:
            entries.append((axis, left.pop()))
        elif left:
            entries.append((axis, Partial()))
    return Layout(tuple(entries))


def copy_layout(uses: Sequence[Use]) -> Layout:
    """The layout in which a copy that lives for a step is kept."""
    layouts = {use.layout.forward for use in uses}
    only = layouts.pop() if len(layouts) == 1 else WHOLE
    return WHOLE if any(isinstance(p, Partial) for _, p in only.entries) else only
