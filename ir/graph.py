"""OperatorGraph: a traced model as frozen operators that work on whole (global) tensors."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import sympy

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.graph_items import Constant as Constant
from shardwise.ir.graph_items import GraphInput as GraphInput
from shardwise.ir.graph_items import Parameter as Parameter
from shardwise.ir.graph_items import Section as Section
from shardwise.ir.graph_items import SymbolRange as SymbolRange
from shardwise.ir.operator import Operator, Ref
from shardwise.ir.scanner import shown
from shardwise.ir.tensor import TensorSpec, symbol_names

Item: TypeAlias = GraphInput | Parameter | Constant | Operator


@dataclass(frozen=True, slots=True)
class OperatorGraph:
    """The operators of a model in an order that runs, and everything that they read.

    Invariants (InvalidValueError says which one broke, where, and what to change):
    - inputs, parameters, constants and operators share one namespace, aliases of parameters
      included;
    - a Ref names an item that stands before its reader, and an output that it has;
    - every symbol in a shape, an argument or a cost is declared, once;
    - the sections of one fused parameter tile one dim of it from 0, in order, alike in all
      else;
    - there is an output; `updates` write constants, each at most once, with a value of the same
      spec.

    Text: a line `graph 1`, then one line per item, see `shardwise.ir.graph_text`.
    """

    inputs: tuple[GraphInput, ...]
    parameters: tuple[Parameter, ...]
    constants: tuple[Constant, ...]
    operators: tuple[Operator, ...]
    outputs: tuple[Ref, ...]
    """What the model returns, flat and in order; may repeat, may name inputs."""
    symbols: tuple[SymbolRange, ...] = ()
    updates: tuple[tuple[str, Ref], ...] = ()
    """Buffers that a run overwrites with a value (running statistics), after all operators."""
    _items: dict[str, Item] = field(init=False, repr=False, compare=False)
    _positions: dict[str, int] = field(init=False, repr=False, compare=False)
    _readers: dict[str, list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for what, kind in _FIELDS.items():
            values = getattr(self, what)
            if type(values) is not tuple or not all(isinstance(value, kind) for value in values):
                raise InvalidValueError(
                    f"{what} of the graph are {shown(values)}: give a tuple of {kind.__name__}"
                )
        object.__setattr__(self, "_items", {})
        object.__setattr__(self, "_positions", {})
        object.__setattr__(self, "_readers", {})
        declared = self._declare_symbols()
        leaves: tuple[GraphInput | Parameter | Constant, ...] = (
            *self.inputs,
            *self.parameters,
            *self.constants,
        )
        for item in leaves:
            self._add(item.name, item)
            _check_symbols((item.spec,), declared, item.name)
        for position, operator in enumerate(self.operators):
            self._add_operator(position, operator, declared)
        self._check_sections(self._check_aliases())
        if not self.outputs:
            raise InvalidValueError(
                "the graph has no output: it computes nothing; give a Ref or more"
            )
        for ref in self.outputs:
            self._check_ref(ref, "the outputs of the graph")
        self._check_updates()

    # queries

    def producer(self, ref: Ref) -> Item:
        """The item that a reference reads; InvalidValueError if the graph has none such."""
        self._check_ref(ref, "a query")
        return self._items[ref.name]

    def spec(self, ref: Ref) -> TensorSpec:
        """Shape and dtype of a value; InvalidValueError if the graph has none such."""
        item = self.producer(ref)
        return item.outputs[ref.index] if isinstance(item, Operator) else item.spec

    def operator(self, name: str) -> Operator:
        """The operator of that name; InvalidValueError if there is none."""
        return self.operators[self.position(name)]

    def position(self, name: str) -> int:
        """Index of an operator in `operators`; InvalidValueError if none is called so."""
        if name not in self._positions:
            raise InvalidValueError(
                f"the graph has no operator {shown(name)}; use one of its names"
            )
        return self._positions[name]

    def users(self, name: str) -> tuple[Operator, ...]:
        """The operators that read any output of the item of that name, in order, each once."""
        if name not in self._items:
            raise InvalidValueError(f"the graph has no item {shown(name)}; use one of its names")
        return tuple(self.operators[position] for position in self._readers.get(name, ()))

    def total_flops(self) -> sympy.Expr:
        """Sum of the forward FLOPs of the operators, global, an expression in the symbols."""
        return sympy.Add(*(operator.flops for operator in self.operators))

    def digest(self) -> str:
        """SHA-256 (hex) of what the graph computes and of its parameters' and modules' names.

        Left out is what varies between traces of one model or follows from the rest: names of
        operators and of constants outside the state dict, source lines, costs.
        """
        from shardwise.ir.graph_text import graph_digest

        return graph_digest(self)

    def __str__(self) -> str:
        from shardwise.ir.graph_text import format_graph

        return format_graph(self)

    @classmethod
    def parse(cls, text: str) -> "OperatorGraph":
        """The graph that prints as `text`; raises ParseError that names the line."""
        from shardwise.ir.graph_text import parse_graph

        return parse_graph(text)

    # checks

    def _declare_symbols(self) -> frozenset[str]:
        declared = frozenset(entry.name for entry in self.symbols)
        if len(declared) != len(self.symbols):
            raise InvalidValueError(
                f"symbols {', '.join(map(str, self.symbols))}: each is declared once; drop the "
                "repeats"
            )
        return declared

    def _add(self, name: str, item: Item) -> None:
        if name in self._items:
            raise InvalidValueError(
                f"two items are called {shown(name)}: inputs, parameters, constants and "
                "operators share "
                "one namespace; rename one"
            )
        self._items[name] = item

    def _add_operator(self, position: int, operator: Operator, declared: frozenset[str]) -> None:
        _check_symbols(operator.outputs, declared, operator.name)
        expressions = [operator.flops, operator.moved_bytes, operator.saved_bytes]
        for leaf in operator.arguments():
            if type(leaf) is Ref:
                self._check_ref(leaf, operator.name)
                readers = self._readers.setdefault(leaf.name, [])
                if not readers or readers[-1] != position:
                    readers.append(position)
            elif isinstance(leaf, sympy.Expr):
                expressions.append(leaf)
        for expression in expressions:
            if expression is not sympy.S.Zero:
                _check_declared(symbol_names(expression), declared, operator.name)
        self._add(operator.name, operator)
        self._positions[operator.name] = position

    def _check_ref(self, ref: Ref, reader: str) -> None:
        item = self._items.get(ref.name)
        if item is None:
            raise InvalidValueError(
                f"{shown(reader)} reads {ref}, which no item before it defines; define it or "
                "reorder"
            )
        if ref.index and (not isinstance(item, Operator) or ref.index >= len(item.outputs)):
            count = len(item.outputs) if isinstance(item, Operator) else 1
            raise InvalidValueError(
                f"{shown(reader)} reads {ref}, but {shown(ref.name)} has {count} output(s), "
                "counted from "
                "0; correct the index"
            )

    def _check_aliases(self) -> set[str]:
        aliases: set[str] = set()
        for parameter in self.parameters:
            for alias in parameter.aliases:
                if alias in self._items or alias in aliases:
                    raise InvalidValueError(
                        f"alias {shown(alias)} of parameter {shown(parameter.name)} is the "
                        "name of another "
                        "item too; keep one"
                    )
                aliases.add(alias)
        return aliases

    def _check_sections(self, aliases: set[str]) -> None:
        ends: dict[str, Parameter] = {}
        for parameter in self.parameters:
            section = parameter.section
            if section is None:
                continue
            before = ends.get(section.source)
            taken = section.source in self._items or section.source in aliases
            if taken or section.start != _end(before):
                raise InvalidValueError(
                    f"section {section} of parameter {shown(parameter.name)}: the sections of "
                    "a fused "
                    f"parameter replace it and tile it in order, next from {_end(before)}; "
                    "correct them"
                )
            if before is not None and _frame(before) != _frame(parameter):
                raise InvalidValueError(
                    f"parameters {shown(before.name)} and {shown(parameter.name)} are sections "
                    "of "
                    f"{shown(section.source)}: dim, other sizes, dtype and trainable are "
                    "equal; correct one"
                )
            ends[section.source] = parameter

    def _check_updates(self) -> None:
        written: set[str] = set()
        for update in self.updates:
            if type(update) is not tuple or len(update) != 2 or not isinstance(update[1], Ref):
                raise InvalidValueError(f"update {shown(update)}: give (constant name, Ref) pairs")
            name, ref = update
            name = name if type(name) is str else ""
            constant = self._items.get(name)
            if not isinstance(constant, Constant) or name in written:
                raise InvalidValueError(
                    f"update of {shown(name)}: it writes a constant, each at most once; "
                    "correct the name"
                )
            if self.spec(ref) != constant.spec:
                raise InvalidValueError(
                    f"update of {shown(name)} is {self.spec(ref)} and the constant "
                    f"{constant.spec}: these "
                    "are equal; correct one"
                )
            written.add(name)


_FIELDS: dict[str, type] = {
    "inputs": GraphInput,
    "parameters": Parameter,
    "constants": Constant,
    "operators": Operator,
    "outputs": Ref,
    "symbols": SymbolRange,
    "updates": tuple,
}


def _check_symbols(specs: Iterable[TensorSpec], declared: frozenset[str], name: str) -> None:
    for spec in specs:
        for dim in spec.shape:
            if type(dim) is not int and isinstance(dim, sympy.Expr):
                _check_declared(symbol_names(dim), declared, name)


def _check_declared(names: frozenset[str], declared: frozenset[str], name: str) -> None:
    if not names <= declared:
        raise InvalidValueError(
            f"{shown(name)} uses the symbol(s) {', '.join(sorted(names - declared))}, which "
            "the graph does "
            "not declare; add a SymbolRange"
        )


def _end(before: Parameter | None) -> int:
    return before.section.stop if before is not None and before.section is not None else 0


def _frame(parameter: Parameter) -> tuple[object, ...]:
    """What the sections of one fused parameter have in common."""
    dim = -1 if parameter.section is None else parameter.section.dim
    sizes = parameter.spec.shape
    return sizes[:dim], sizes[dim + 1 :], parameter.spec.dtype, parameter.trainable
