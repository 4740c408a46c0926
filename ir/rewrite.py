"""What graph passes share: rebuilding a graph operator by operator, dead code, gradients."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from shardwise.ir.argument import Argument, Ref
from shardwise.ir.dtype import FLOAT_DTYPES
from shardwise.ir.graph import Constant, GraphInput, OperatorGraph, Parameter
from shardwise.ir.operator import Operator
from shardwise.ir.tensor import TensorSpec

Keywords = tuple[tuple[str, Argument], ...]


@dataclass
class Rewriter:
    """Builds the next graph from the operators of one, in order; local to a pass.

    A pass calls `keep` for what stays, `add` for what is new, and `forward` where readers of a
    value shall read another one. References in what is kept or added are to values of the old
    graph or to new ones; both are mapped.
    """

    graph: OperatorGraph
    operators: list[Operator] = field(default_factory=list)
    _forwarded: dict[Ref, Ref] = field(default_factory=dict)
    _specs: dict[Ref, TensorSpec] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for item in leaves(self.graph):
            self._specs[Ref(item.name)] = item.spec
            self._taken.add(item.name)
        for parameter in self.graph.parameters:
            self._taken.update(parameter.aliases)
        self._taken.update(operator.name for operator in self.graph.operators)

    def read(self, ref: Ref) -> Ref:
        """What stands for a value now."""
        return self._forwarded.get(ref, ref)

    def spec(self, ref: Ref) -> TensorSpec:
        """Shape and dtype of a value."""
        return self._specs[self.read(ref)]

    def keep(self, operator: Operator) -> Ref:
        """Append an operator under its own name."""
        if any(ref in self._forwarded for ref in operator.refs()):
            operator = operator.with_refs(self.read)
        self.operators.append(operator)
        for index, spec in enumerate(operator.outputs):
            self._specs[Ref(operator.name, index)] = spec
        return Ref(operator.name)

    def add(
        self,
        kind: str,
        args: tuple[Argument, ...],
        spec: TensorSpec,
        *,
        like: Operator,
        kwargs: Keywords = (),
        name: str = "",
    ) -> Ref:
        """Append a new operator with one output, at the place in the model of `like`."""
        name = self.fresh(name or kind.split(".")[1].strip("_"))
        return self.keep(Operator(name, kind, args, kwargs, (spec,), like.module_path, like.source))

    def fresh(self, wanted: str) -> str:
        """A name that no item has."""
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name

    def forward(self, old: Ref, new: Ref) -> None:
        """Later readers of `old` read `new`."""
        self._forwarded[old] = self.read(new)

    def finish(
        self,
        outputs: Iterable[Ref] | None = None,
        *,
        parameters: tuple[Parameter, ...] | None = None,
    ) -> OperatorGraph:
        """The new graph, its outputs and parameters if they change; all references are mapped."""
        return replace(
            self.graph,
            parameters=self.graph.parameters if parameters is None else parameters,
            operators=tuple(self.operators),
            outputs=tuple(
                self.read(ref) for ref in (self.graph.outputs if outputs is None else outputs)
            ),
            updates=tuple((name, self.read(ref)) for name, ref in self.graph.updates),
        )


def leaves(graph: OperatorGraph) -> tuple[GraphInput | Parameter | Constant, ...]:
    """What stands in a graph before its operators: inputs, parameters, constants."""
    return (*graph.inputs, *graph.parameters, *graph.constants)


def argument(operator: Operator, position: int, keyword: str, default: Argument = None) -> Argument:
    """An argument by position or by keyword, or its default."""
    if position < len(operator.args):
        return operator.args[position]
    return next((value for key, value in operator.kwargs if key == keyword), default)


def without_dead_code(graph: OperatorGraph) -> OperatorGraph:
    """The graph without operators that nothing reads, and without their unread constants.

    Parameters and persistent constants stay: they are the model's state.
    """
    needed = {ref.name for ref in (*graph.outputs, *(ref for _, ref in graph.updates))}
    kept = []
    for operator in reversed(graph.operators):
        if operator.name in needed:
            kept.append(operator)
            needed.update(ref.name for ref in operator.refs())
    written = {name for name, _ in graph.updates}
    return replace(
        graph,
        operators=tuple(reversed(kept)),
        constants=tuple(
            constant
            for constant in graph.constants
            if constant.persistent or constant.name in needed or constant.name in written
        ),
    )


def gradient_values(graph: OperatorGraph) -> frozenset[str]:
    """Names of parameters and operators whose (floating) values depend on a trainable parameter."""
    found = {parameter.name for parameter in graph.parameters if parameter.trainable}
    for operator in graph.operators:
        if operator.kind in NO_GRADIENT:
            continue
        if any(spec.dtype in FLOAT_DTYPES for spec in operator.outputs) and any(
            ref.name in found for ref in operator.refs()
        ):
            found.add(operator.name)
    return frozenset(found)


NO_GRADIENT = frozenset({
    "aten.detach.default", "aten.zeros_like.default", "aten.ones_like.default",
    "aten.full_like.default", "aten.new_zeros.default", "aten.new_ones.default",
    "aten.new_full.default", "aten.new_empty.default", "aten.empty_like.default",
    "aten.sign.default", "aten.floor.default", "aten.ceil.default", "aten.round.default",
})  # fmt: skip
"""Kinds whose result has no gradient (or a zero one) although they read floating tensors."""
