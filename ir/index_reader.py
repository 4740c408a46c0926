"""Reads values of a graph as functions of their indices (ir/index_form.py), by one rule per kind.

`FormReader.form(ref)` is the form of a value, or raises `UnknownForm` with the reason: a kind
without a rule, or a value that depends on an input, a weight or a buffer. Rules stand in
ir/index_rules_shape.py (how indices move) and ir/index_rules_value.py (what elements are).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import sympy

from shardwise.ir.argument import Argument, Ref
from shardwise.ir.expression import Size
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.index_form import (
    FALSE,
    TRUE,
    Box,
    Choice,
    Form,
    Integers,
    Truth,
    UnknownForm,
    index,
    opposite,
    renamed,
)
from shardwise.ir.operator import Operator


@dataclass
class FormReader:
    """Forms of the values of one graph, each computed once."""

    graph: OperatorGraph
    box: Box
    _known: dict[Ref, Form | UnknownForm] = field(default_factory=dict)

    def form(self, ref: Ref) -> Form:
        """The form of a value; raises UnknownForm."""
        if ref not in self._known:
            try:
                self._known[ref] = self._make(ref)
            except UnknownForm as reason:
                self._known[ref] = reason
        found = self._known[ref]
        if isinstance(found, UnknownForm):
            raise found
        return found

    def shape(self, ref: Ref) -> tuple[Size, ...]:
        """Sizes of a value."""
        return self.graph.spec(ref).shape

    def simplified(self, truth: Truth, shape: tuple[Size, ...]) -> Truth:
        """The truth without atoms that always hold, FALSE if one never does."""
        if any(self.box.refutes(atom, shape) for atom in truth.atoms):
            return FALSE
        kept = (atom for atom in truth.atoms if not self.box.proves(atom, shape))
        return FALSE if truth.never else Truth(frozenset(kept))

    def _make(self, ref: Ref) -> Form:
        item = self.graph.producer(ref)
        if not isinstance(item, Operator):
            raise UnknownForm(f"depends on {ref.name}")
        name = item.kind.split(".")[1]
        rule = RULES.get(name)
        if rule is None or len(item.outputs) != 1:
            raise UnknownForm(f"uses {item.kind}")
        form = rule(self, item, name)
        shape = item.outputs[0].shape
        if isinstance(form, Truth):
            return self.simplified(form, shape)
        return form

    def operand(self, operator: Operator, position: int) -> Form:
        """The form of an argument, its indices those of the operator's output (broadcasting)."""
        value = operator.args[position]
        if not isinstance(value, Ref):
            return number(value)
        shape, output = self.shape(value), operator.outputs[0].shape
        shift = len(output) - len(shape)
        return renamed(self.form(value), {k: index(k + shift) for k in range(len(shape))})

    def source(self, operator: Operator) -> tuple[Form, tuple[Size, ...]]:
        """Form and sizes of the first argument, in its own indices."""
        value = operator.args[0]
        if not isinstance(value, Ref):
            raise UnknownForm(f"uses {operator.kind} of a number")
        return self.form(value), self.shape(value)


Rule = Callable[[FormReader, Operator, str], Form]
RULES: dict[str, Rule] = {}
"""Filled by the rule modules."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of these operators (names without overloads)."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def typed(form: Form, operator: Operator) -> Form:
    """The form cast to the operator's dtype, where bools are truths."""
    if operator.outputs[0].dtype == "bool":
        return truth_of(form)
    return form


def truth_of(form: Form) -> Truth:
    """The form as a condition; UnknownForm for an index."""
    if isinstance(form, Truth):
        return form
    if isinstance(form, Choice):
        if bool(form.inside) == bool(form.outside):
            return TRUE if form.inside else FALSE
        return form.where if form.inside else opposite(form.where)
    if isinstance(form, Integers) and form.expression.is_number:
        return TRUE if form.expression != 0 else FALSE
    raise UnknownForm("an index as a condition")


def expression_of(form: Form) -> sympy.Expr:
    """The form as a number or an index; UnknownForm for a condition."""
    if isinstance(form, Integers):
        return form.expression
    if form in (TRUE, FALSE):
        return sympy.Integer(form == TRUE)
    raise UnknownForm("arithmetic with a condition")


def constant(truth: Truth) -> Truth:
    """A truth that holds everywhere or nowhere; UnknownForm otherwise."""
    if truth.atoms and not truth.never:
        raise UnknownForm("an inequality of indices")
    return truth


def number(value: Argument) -> Integers:
    """An argument that is a number or a size; UnknownForm otherwise."""
    if isinstance(value, bool | int | float):
        return Integers(sympy.sympify(float(value) if isinstance(value, float) else int(value)))
    if isinstance(value, sympy.Expr):
        return Integers(value)
    raise UnknownForm("an argument that is no number")


def integer(value: Argument) -> int:
    """An argument that is an int; UnknownForm otherwise."""
    if not isinstance(value, int):
        raise UnknownForm("an argument that is no integer")
    return value
