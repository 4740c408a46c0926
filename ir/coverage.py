"""Coverage: how much of a model the operator rules can shard, and what they cannot.

An operator is covered if its rule cuts it in some role: it is asked about every dim of every
operand, with the axis as batch, tensor and sequence axis, as `localise` asks it. An operator of a
kind without a rule, or whose rule keeps it whole in every case, runs whole on every rank. That is
never wrong, but it does not get faster with more ranks, so the report stands before the search.

Factories (operators that read no tensor, or only the shape and dtype of one) are not counted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.ir.axis_state import ADDEND, WHOLE, AxisState, Sharded
from shardwise.ir.decide import without_names
from shardwise.ir.expression import evaluate
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import gradient_values
from shardwise.ir.rules import RULES, Operand, Operands, Setting, operator_refs
from shardwise.ir.strategy import Role

_AXIS = "x0"
_SETTINGS = (
    Setting(_AXIS, 2, Role.BATCH),
    Setting(_AXIS, 2, Role.TENSOR, sequence_home=True),
    Setting(_AXIS, 2, Role.SEQUENCE, sequence_home=True),
    Setting(_AXIS, 2, Role.TENSOR),
)
_WORST = 5
"""Lines of the report about operators that are not covered."""


@dataclass(frozen=True, slots=True)
class Uncovered:
    """Operators of one kind, at one source line, that run whole on every rank."""

    kind: str
    count: int
    flops_global: float
    """Forward FLOPs of all of them at the sizes of the report."""
    module_path: str
    """Of the first of them."""
    source: str
    has_rule: bool
    """True: its rule keeps it whole here (a mean over the batch, say); False: there is none."""

    def __str__(self) -> str:
        why = "kept whole by its rule" if self.has_rule else "no rule"
        where = ", ".join(part for part in (self.module_path, self.source) if part)
        return f"{self.count} x {self.kind} ({why}): {where or 'the model'}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the rules can shard of a model. `str` is the report, one line if that is everything."""

    calls: int
    """Operators that compute: factories are left out."""
    covered_calls: int
    flops_global: float
    """Forward FLOPs at `sizes`."""
    covered_flops_global: float
    sizes: tuple[tuple[str, int], ...]
    """The sizes at which FLOPs are counted."""
    uncovered: tuple[Uncovered, ...]
    """Most FLOPs first, then most operators."""

    @property
    def flops_share(self) -> float:
        """Share of the FLOPs that some rule can shard, 0 to 1; 1 without FLOPs."""
        return self.covered_flops_global / self.flops_global if self.flops_global else 1.0

    @property
    def call_share(self) -> float:
        """Share of the operators that some rule can shard, 0 to 1; 1 without operators."""
        return self.covered_calls / self.calls if self.calls else 1.0

    def __str__(self) -> str:
        if not self.uncovered:
            return f"coverage: rules can shard all of {self.calls} operators"
        lines = [
            f"coverage: rules can shard {_percent(self.flops_share)} of the FLOPs and "
            f"{self.covered_calls} of {self.calls} operators; the others run whole on every rank:"
        ]
        for one in self.uncovered[:_WORST]:
            share = one.flops_global / self.flops_global if self.flops_global else 0.0
            lines.append(f"  {_percent(share):>8} of FLOPs  {one}")
        if len(self.uncovered) > _WORST:
            lines.append(f"  and {len(self.uncovered) - _WORST} more places")
        return "\n".join(lines)


def coverage(graph: OperatorGraph, sizes: Mapping[str, int] | None = None) -> Coverage:
    """The coverage of a normalised graph with costs.

    FLOPs are counted at `sizes` (default: every length at the largest of its range, or 1024 where
    it has none; one document).
    """
    at = {**_default_sizes(graph), **(sizes or {})}
    gradients = gradient_values(graph)
    parameters = {parameter.name for parameter in graph.parameters}
    known: dict[tuple[object, ...], bool] = {}
    calls = covered = 0
    flops = covered_flops = 0.0
    found: dict[tuple[str, str, bool], list[tuple[Operator, float]]] = {}
    for operator in graph.operators:
        if is_factory(operator):
            continue
        work = float(evaluate(operator.flops, at))
        operands = tuple(
            Operand(path, spec, WHOLE, ref.name in gradients, ref.name in parameters)
            for path, ref in operator_refs(operator)
            for spec in (graph.spec(ref),)
        )
        key = (operator.kind, *map(without_names, (operator.args, operator.kwargs)), operands)
        if key not in known:
            known[key] = can_shard(operator, operands)
        calls, flops = calls + 1, flops + work
        if known[key]:
            covered, covered_flops = covered + 1, covered_flops + work
        else:
            place = (operator.kind, operator.source, operator.kind in RULES)
            found.setdefault(place, []).append((operator, work))
    uncovered = [
        Uncovered(
            kind, len(ones), sum(work for _, work in ones), ones[0][0].module_path, source, has_rule
        )
        for (kind, source, has_rule), ones in found.items()
    ]
    uncovered.sort(key=lambda one: (-one.flops_global, -one.count))
    return Coverage(calls, covered, flops, covered_flops, tuple(at.items()), tuple(uncovered))


def is_factory(operator: Operator) -> bool:
    """Whether an operator reads no tensor, or of a tensor only shape and dtype."""
    name = operator.kind.split(".")[1]
    return not any(True for _ in operator_refs(operator)) or (
        name.startswith("new_") or name.endswith("_like")
    )


def can_shard(operator: Operator, operands: tuple[Operand, ...]) -> bool:
    """Whether the operator's rule cuts its work on some axis of two ranks.

    True also where it has a rule and no dim can be cut in two: then there is nothing to shard.
    """
    rule = RULES.get(operator.kind)
    if rule is None:
        return False
    tried = False
    for setting in _SETTINGS:
        for states in _arrivals(operands, setting):
            tried = tried or any(isinstance(state, Sharded) for state in states)
            arrived = tuple(
                Operand(one.path, one.spec, state, one.needs_gradient, one.is_parameter)
                for one, state in zip(operands, states, strict=True)
            )
            made = rule(Operands(operator, arrived, setting))
            if any(isinstance(s, Sharded) for s in (*made.reads, *made.writes)):
                return True
            if ADDEND in made.writes:
                return True
    return not tried


def _arrivals(operands: tuple[Operand, ...], setting: Setting) -> Iterator[tuple[AxisState, ...]]:
    """Ways in which the operands may arrive: all home, one of them cut on one dim, all whole."""
    whole: tuple[AxisState, ...] = tuple(WHOLE for _ in operands)
    yield tuple(WHOLE if one.is_parameter else setting.home(one.spec) for one in operands)
    for index, one in enumerate(operands):
        for dim, length in enumerate(one.spec.shape):
            if not one.is_parameter and length != 1 and setting.divides(length):
                yield (*whole[:index], Sharded(dim), *whole[index + 1 :])
    yield whole


def _default_sizes(graph: OperatorGraph) -> dict[str, int]:
    return {
        one.name: one.low if one.name.startswith("B") else one.high or max(one.low, 1024)
        for one in graph.symbols
    }


def _percent(share: float) -> str:
    """Three digits that never round to 100 % what is less."""
    return f"{min(share * 100, 99.999) if share < 1 else 100:.3f} %"
