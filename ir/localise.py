"""From an operator graph and one strategy per unit to the local program.

One pass in topological order. For every operator each axis is decided on its own by the operator's
rule (ir/rules.py); the states per axis then make the layouts in which operands are read, and a
`Move` stands wherever a value is not there yet. Four habits make the collectives few:

- a move is cached by (value, target), so q, k and v share one gather and autograd adds the three
  gradients before the one reduction;
- once a pending sum is taken, later readers use the result;
- an addend that leaves its unit goes home there, so that identical layers stay identical;
- a slice of a whole value without gradient (positions, rotary tables) stands in the unit that made
  the value, and is shared by all layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from shardwise.ir.axis_state import ADDEND, READ, WHOLE, value_layout
from shardwise.ir.decide import States as States
from shardwise.ir.decide import batch_degree as batch_degree
from shardwise.ir.decide import decide, parts
from shardwise.ir.decide import settings as settings
from shardwise.ir.dtype import FLOAT_DTYPES
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.mesh import Mesh
from shardwise.ir.operator import Argument, Operator, Ref
from shardwise.ir.program import (
    Call,
    LocalProgram,
    Move,
    Step,
    Use,
    local_spec,
    value_name,
)
from shardwise.ir.rewrite import NO_GRADIENT
from shardwise.ir.rules import Decision, Operand, Setting, operator_refs
from shardwise.ir.rules_view import RESHAPE_KINDS
from shardwise.ir.strategy import Role, Strategy
from shardwise.ir.template import Unit
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.unit_programs import unit_programs
from shardwise.ir.value_layout import ValueLayout


@dataclass
class _Value:
    """A value while the pass runs: where it stands now and which other states it has been moved
    to."""

    spec: TensorSpec
    states: States
    name: str
    unit: int
    needs_gradient: bool
    parameter: bool = False
    copies: dict[States, str] | None = None


class _Pass:
    """The state of one run of `localise`."""

    def __init__(self, graph: OperatorGraph, mesh: Mesh, units: Sequence[Unit]) -> None:
        self.graph, self.mesh = graph, mesh
        self.values: dict[str, _Value] = {}
        self.steps: list[list[Step]] = [[] for _ in units]
        self.uses: dict[tuple[int, str, States], str] = {}
        self.counter: dict[str, int] = {}
        self.layouts: dict[States, ValueLayout] = {}
        self.decided: dict[tuple[object, ...], list[Decision]] = {}
        self.whole: States = tuple(WHOLE for _ in mesh.axes)

    def layout(self, states: States) -> ValueLayout:
        """The pair of layouts of one state per axis."""
        if states not in self.layouts:
            names = (axis.name for axis in self.mesh.axes)
            by_axis = dict(zip(names, states, strict=True))
            self.layouts[states] = value_layout(by_axis, self.mesh)
        return self.layouts[states]

    def fresh(self, base: str, suffix: str) -> str:
        number = self.counter[base] = self.counter.get(base, 0) + 1
        return f"{base}__{suffix}{number}"

    def read(self, name: str, states: States, unit: int) -> str:
        """The local name under which a value stands in these states, moving it where needed."""
        value = self.values[name]
        if not value.needs_gradient:
            states = tuple(WHOLE if s is READ else s for s in states)
        if value.parameter:
            return self._use(name, value, states, unit)
        if states == value.states:
            return value.name
        assert value.copies is not None
        if ADDEND in value.states and ADDEND not in states:
            # the sum is taken once, and later readers start from it
            resolved = tuple(WHOLE if s is READ else s for s in states)
            value.name = self._move(value, resolved, unit)
            value.states = resolved
        if states == value.states:
            return value.name
        return self._move(value, states, unit)

    def _move(self, value: _Value, states: States, unit: int) -> str:
        """Name of the value moved to these states: moved once for all readers."""
        assert value.copies is not None
        if states not in value.copies:
            target_unit = unit
            if not value.needs_gradient and all(s is WHOLE for s in value.states):
                target_unit = value.unit
            move = Move(
                self.fresh(value.name, "move"),
                value.name,
                value.spec,
                self.layout(value.states),
                self.layout(states),
                value.needs_gradient,
            )
            self.steps[target_unit].append(move)
            value.copies[states] = move.name
        return value.copies[states]

    def _use(self, name: str, value: _Value, states: States, unit: int) -> str:
        key = (unit, name, states)
        if key not in self.uses:
            use = Use(
                self.fresh(name, "use"),
                name,
                value.spec,
                self.layout(states),
            )
            self.steps[unit].append(use)
            self.uses[key] = use.name
        return self.uses[key]


def localise(
    graph: OperatorGraph, units: Sequence[Unit], mesh: Mesh, strategies: Sequence[Strategy]
) -> LocalProgram:
    """The program that every rank runs: `strategies[i]` computes `units[i]`.

    `units` cover `graph.operators` in order. Every strategy gives the same axes the batch role (all
    ranks run the same documents through all units). Raises InvalidValueError otherwise. The last
    few programs are kept: all ranks of a process, and all buckets of a strategy, share them.
    """
    return _localised(graph, tuple(units), mesh, tuple(strategies))


@lru_cache(maxsize=16)
def _localised(
    graph: OperatorGraph, units: tuple[Unit, ...], mesh: Mesh, strategies: tuple[Strategy, ...]
) -> LocalProgram:
    if len(units) != len(strategies):
        raise InvalidValueError(
            f"{len(units)} units but {len(strategies)} strategies; give one strategy per unit"
        )
    per_unit = [settings(strategy, mesh) for strategy in strategies]
    batch = [tuple(s.role is Role.BATCH for s in setting) for setting in per_unit]
    if len(set(batch)) > 1:
        raise InvalidValueError(
            "strategies of one bucket differ in the axes that split the batch; give every unit the "
            "same batch axes"
        )
    run = _Pass(graph, mesh, units)
    inputs = _enter(run, per_unit[0])
    needed = _last_reader(graph, units)
    for index, unit in enumerate(units):
        for operator in graph.operators[slice(*unit.operators)]:
            _place(run, operator, per_unit[index], index)
        _leave(run, graph, unit, index, needed, per_unit[index])
    outputs = tuple(run.read(_key(ref), run.whole, len(units) - 1) for ref in graph.outputs)
    return LocalProgram(
        mesh, inputs, unit_programs([unit.name for unit in units], run.steps, outputs), outputs
    )


def _key(ref: Ref) -> str:
    return value_name(ref.name, ref.index)


def _enter(run: _Pass, setting: tuple[Setting, ...]) -> tuple[tuple[str, ValueLayout], ...]:
    """Graph inputs arrive with the batch already split; parameters and constants are whole."""
    inputs = []
    for item in run.graph.inputs:
        states: States = tuple(
            s.home(item.spec) if s.role is Role.BATCH else WHOLE for s in setting
        )
        run.values[item.name] = _Value(item.spec, states, item.name, 0, False, copies={})
        inputs.append((item.name, run.layout(states)))
    for parameter in run.graph.parameters:
        run.values[parameter.name] = _Value(
            parameter.spec, run.whole, parameter.name, 0, parameter.trainable, True, {}
        )
    for constant in run.graph.constants:
        run.values[constant.name] = _Value(
            constant.spec, run.whole, constant.name, 0, False, copies={}
        )
    return tuple(inputs)


def _last_reader(graph: OperatorGraph, units: Sequence[Unit]) -> dict[str, int]:
    """Value -> index of the last unit that reads it (the number of units for outputs)."""
    last: dict[str, int] = {}
    for index, unit in enumerate(units):
        for operator in graph.operators[slice(*unit.operators)]:
            for ref in operator.refs():
                last[_key(ref)] = index
    for ref in graph.outputs:
        last[_key(ref)] = len(units)
    return last


def _place(run: _Pass, operator: Operator, setting: tuple[Setting, ...], unit: int) -> None:
    """Decide one operator on every axis, move its operands, add its call."""
    operands = list(operator_refs(operator))
    seen = [run.values[_key(ref)] for _, ref in operands]
    decisions = decide(
        operator,
        [
            tuple(
                Operand(path, v.spec, v.states[axis], v.needs_gradient, v.parameter)
                for (path, _), v in zip(operands, seen, strict=True)
            )
            for axis in range(len(setting))
        ],
        setting,
        run.mesh,
        run.decided,
    )
    reads = [tuple(decision.reads[i] for decision in decisions) for i in range(len(operands))]
    names = [
        run.read(_key(ref), states, unit) for (_, ref), states in zip(operands, reads, strict=True)
    ]
    writes = [
        tuple(decision.writes[i] for decision in decisions) for i in range(len(operator.outputs))
    ]
    needs = (
        any(run.values[_key(ref)].needs_gradient for _, ref in operands)
        and operator.kind not in NO_GRADIENT
    )
    library = [(d.library, s.axis) for d, s in zip(decisions, setting, strict=True) if d.library]
    if len(library) > 1:
        raise InvalidValueError(
            f"{operator.name} ({operator.source}) needs a library function on the axes "
            f"{[axis for _, axis in library]}; one axis at most may do that: change the strategy"
        )
    local = _local_operator(run, operator, iter(names), writes)
    run.steps[unit].append(
        Call(
            local,
            tuple(
                run.layout(_real(r, run, ref)) for r, (_, ref) in zip(reads, operands, strict=True)
            ),
            tuple(run.values[_key(ref)].spec for _, ref in operands),
            tuple(run.layout(w) for w in writes),
            parts(decisions, setting),
            library=library[0][0] if library else None,
            library_axis=library[0][1] if library else None,
            needs_gradient=needs and any(s.dtype in FLOAT_DTYPES for s in operator.outputs),
        )
    )
    for i, spec in enumerate(operator.outputs):
        name = value_name(operator.name, i)
        gradient = needs and spec.dtype in FLOAT_DTYPES
        run.values[name] = _Value(spec, writes[i], name, unit, gradient, copies={})
    after = tuple(decision.afterwards or decision.writes[0] for decision in decisions)
    if after != writes[0]:
        value = run.values[operator.name]
        moved = run.read(operator.name, after, unit)
        value.states, value.name = after, moved


def _real(states: States, run: _Pass, ref: Ref) -> States:
    if run.values[_key(ref)].needs_gradient:
        return states
    return tuple(WHOLE if s is READ else s for s in states)


def _local_operator(
    run: _Pass, operator: Operator, names: object, writes: Sequence[States]
) -> Operator:
    """The operator with local names and, where it states its output's shape, the local shape."""
    local = operator.with_refs(lambda _: Ref(next(names)))  # type: ignore[call-overload]
    layout = run.layout(writes[0]).forward
    shape: Argument = local_spec(operator.outputs[0], layout, run.mesh).shape
    if operator.kind in RESHAPE_KINDS:
        return replace(local, kind="aten.reshape.default", args=(local.args[0], shape), kwargs=())
    if operator.kind == "aten.embedding.default":  # a sparse gradient has no layout
        return replace(
            local, args=local.args[:4], kwargs=tuple(kv for kv in local.kwargs if kv[0] != "sparse")
        )
    if operator.kind == "aten.expand.default":
        return replace(local, args=(local.args[0], shape), kwargs=())
    return local


def _leave(
    run: _Pass,
    graph: OperatorGraph,
    unit: Unit,
    index: int,
    needed: Mapping[str, int],
    setting: tuple[Setting, ...],
) -> None:
    """Addends that later units read go home before the unit ends."""
    for operator in graph.operators[slice(*unit.operators)]:
        for i in range(len(operator.outputs)):
            value = run.values[value_name(operator.name, i)]
            if needed.get(value_name(operator.name, i), -1) <= index:
                continue
            if any(s is ADDEND for s in value.states):
                home = tuple(
                    one.home(value.spec) if state is ADDEND else state
                    for one, state in zip(setting, value.states, strict=True)
                )
                run.read(value_name(operator.name, i), home, index)
