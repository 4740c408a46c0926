"""Forms of operators: how each kind's element follows from its operands' elements.

`FormReader.form(ref)` is the form of a value of a graph, or raises `UnknownForm` with the reason: a
kind without a rule here, or a value that depends on an input, a weight or a buffer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

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
    at_least,
    both,
    either,
    index,
    opposite,
    renamed,
)
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import argument

_COMPARE: Final = {
    "ge": lambda a, b: at_least(a, b),
    "le": lambda a, b: at_least(b, a),
    "gt": lambda a, b: at_least(a - 1, b),
    "lt": lambda a, b: at_least(b - 1, a),
    "eq": lambda a, b: both(at_least(a, b), at_least(b, a)),
    "ne": lambda a, b: opposite(_constant(both(at_least(a, b), at_least(b, a)))),
}
_AND: Final = ("__and__", "bitwise_and", "logical_and")
_OR: Final = ("__or__", "bitwise_or", "logical_or")
_NOT: Final = ("logical_not", "bitwise_not")
_ONES: Final = ("ones", "new_ones", "ones_like")
_ZEROS: Final = ("zeros", "new_zeros", "zeros_like")


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
        rule = _RULES.get(name)
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
            return _number(value)
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
_RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


@_rule("arange")
def _arange(reader: FormReader, operator: Operator, name: str) -> Form:
    ends = [_number(value).expression for value in operator.args]
    start = ends[0] if len(ends) > 1 else sympy.S.Zero
    step = ends[2] if len(ends) > 2 else sympy.S.One
    return Integers(sympy.expand(start + step * index(0)))


@_rule("full", "new_full", "full_like", "scalar_tensor", *_ONES, *_ZEROS)
def _filled(reader: FormReader, operator: Operator, name: str) -> Form:
    if name in _ONES:
        value: Argument = 1
    elif name in _ZEROS:
        value = 0
    else:
        value = operator.args[{"full": 1, "full_like": 1, "new_full": 2}.get(name, 0)]
    return _typed(_number(value), operator)


@_rule("unsqueeze")
def _unsqueeze(reader: FormReader, operator: Operator, name: str) -> Form:
    form, shape = reader.source(operator)
    dim = _integer(operator.args[1]) % (len(shape) + 1)
    return renamed(form, {k: index(k + (k >= dim)) for k in range(len(shape))})


@_rule("reshape")
def _reshape(reader: FormReader, operator: Operator, name: str) -> Form:
    """Only dims of size 1 may come and go."""
    form, shape = reader.source(operator)
    output = operator.outputs[0].shape
    before = [k for k, size in enumerate(shape) if size != 1]
    after = [k for k, size in enumerate(output) if size != 1]
    if [shape[k] for k in before] != [output[k] for k in after]:
        raise UnknownForm("a reshape that merges or splits dims")
    return renamed(form, {k: index(j) for k, j in zip(before, after, strict=True)})


@_rule("expand")
def _expand(reader: FormReader, operator: Operator, name: str) -> Form:
    return reader.operand(operator, 0)


@_rule("transpose")
def _transpose(reader: FormReader, operator: Operator, name: str) -> Form:
    form, shape = reader.source(operator)
    first, second = (_integer(operator.args[k]) % len(shape) for k in (1, 2))
    return renamed(form, {first: index(second), second: index(first)})


@_rule("slice", "select")
def _slice(reader: FormReader, operator: Operator, name: str) -> Form:
    form, shape = reader.source(operator)
    dim = _integer(argument(operator, 1, "dim", 0)) % len(shape)
    start = _number(argument(operator, 2, "start", 0)).expression
    if start.is_negative:
        start = shape[dim] + start
    if name == "slice":
        step = _integer(argument(operator, 4, "step", 1))
        place = start + step * index(dim) if operator.outputs[0].shape[dim] != 1 else start
        return renamed(form, {dim: place})
    places: dict[int, sympy.Expr | int] = {k: index(k - (k > dim)) for k in range(len(shape))}
    places[dim] = start
    return renamed(form, places)


@_rule("add", "sub", "mul")
def _arithmetic(reader: FormReader, operator: Operator, name: str) -> Form:
    left, right = reader.operand(operator, 0), reader.operand(operator, 1)
    if argument(operator, 2, "alpha", 1) != 1:
        raise UnknownForm("a scaled sum")
    if name == "mul" and isinstance(left, Truth) and isinstance(right, Truth):
        return both(left, right)
    a, b = _expression(left), _expression(right)
    if name == "mul":
        if not (a.is_number or b.is_number):
            raise UnknownForm("a product of two indices")
        return Integers(sympy.expand(a * b))
    return Integers(sympy.expand(a + b if name == "add" else a - b))


@_rule("rsub")
def _reversed(reader: FormReader, operator: Operator, name: str) -> Form:
    form = reader.operand(operator, 0)
    other = _number(operator.args[1]).expression
    if isinstance(form, Choice):
        return Choice(form.where, float(other) - form.inside, float(other) - form.outside)
    if isinstance(form, Truth) and other == 1:
        return Choice(form, 0.0, 1.0)
    return Integers(sympy.expand(other - _expression(form)))


@_rule("neg")
def _negative(reader: FormReader, operator: Operator, name: str) -> Form:
    return Integers(-_expression(reader.operand(operator, 0)))


@_rule("diff")
def _diff(reader: FormReader, operator: Operator, name: str) -> Form:
    """value[j] - value[j - 1], with one value prepended, where that is the same for all j."""
    form, shape = reader.source(operator)
    dim = _integer(argument(operator, 2, "dim", -1)) % len(shape)
    prepend = argument(operator, 3, "prepend")
    if _integer(argument(operator, 1, "n", 1)) != 1 or len(operator.args) > 4:
        raise UnknownForm("a higher difference")
    if not isinstance(prepend, Ref):
        raise UnknownForm("a difference of fewer elements")
    if reader.shape(prepend)[dim] != 1:
        raise UnknownForm("a difference with several elements prepended")
    value = _expression(form)
    step = sympy.expand(value - value.subs(index(dim), index(dim) - 1))
    first = sympy.expand(value.subs(index(dim), 0) - _expression(reader.form(prepend)))
    if step != first or index(dim) in step.free_symbols:
        raise UnknownForm("a difference that varies")
    return Integers(step)


@_rule("cumsum")
def _cumsum(reader: FormReader, operator: Operator, name: str) -> Form:
    """Of zeros only."""
    form, _ = reader.source(operator)
    if form == FALSE or form == Integers(sympy.S.Zero):
        return Integers(sympy.S.Zero)
    raise UnknownForm("a running sum")


@_rule("index")
def _index(reader: FormReader, operator: Operator, name: str) -> Form:
    """Gathering by forms of indices that cannot be negative; all dims indexed."""
    form, shape = reader.source(operator)
    indices = operator.args[1]
    if not isinstance(indices, tuple) or len(indices) != len(shape):
        raise UnknownForm("an index of some dims")
    output = operator.outputs[0].shape
    places: dict[int, sympy.Expr | int] = {}
    for dim, item in enumerate(indices):
        if not isinstance(item, Ref):
            raise UnknownForm("an index of some dims")
        own = reader.shape(item)
        shift = len(output) - len(own)
        place = _expression(
            renamed(reader.form(item), {k: index(k + shift) for k in range(len(own))})
        )
        if not reader.box.proves(place, output):
            raise UnknownForm("an index that may be negative")
        places[dim] = place
    return renamed(form, places)


@_rule(*_COMPARE)
def _compare(reader: FormReader, operator: Operator, name: str) -> Form:
    left, right = reader.operand(operator, 0), reader.operand(operator, 1)
    if isinstance(left, Truth | Choice) and isinstance(right, Integers) and name in ("eq", "ne"):
        return _equal_to(left, right.expression, positive=name == "eq")
    return _COMPARE[name](_expression(left), _expression(right))


def _equal_to(form: Truth | Choice, value: sympy.Expr, *, positive: bool) -> Truth:
    """Which elements of a two-valued tensor equal a number."""
    inside, outside = (1.0, 0.0) if isinstance(form, Truth) else (form.inside, form.outside)
    where = form if isinstance(form, Truth) else form.where
    if not value.is_number:
        raise UnknownForm("a comparison with a size")
    matches = {inside == float(value): where, outside == float(value): opposite(where)}
    if (inside == float(value)) == (outside == float(value)):
        result = TRUE if inside == float(value) else FALSE
    else:
        result = matches[True]
    return result if positive else opposite(result)


@_rule(*_AND, *_OR)
def _logic(reader: FormReader, operator: Operator, name: str) -> Form:
    left, right = (_truth(reader.operand(operator, k)) for k in (0, 1))
    return both(left, right) if name in _AND else either(left, right)


@_rule(*_NOT)
def _not(reader: FormReader, operator: Operator, name: str) -> Form:
    return opposite(_truth(reader.operand(operator, 0)))


@_rule("to")
def _cast(reader: FormReader, operator: Operator, name: str) -> Form:
    return _typed(reader.operand(operator, 0), operator)


@_rule("tril", "triu")
def _triangle(reader: FormReader, operator: Operator, name: str) -> Form:
    form, shape = reader.source(operator)
    row, column = index(len(shape) - 2), index(len(shape) - 1)
    diagonal = _number(argument(operator, 1, "diagonal", 0)).expression
    inside = (
        at_least(row + diagonal, column) if name == "tril" else at_least(column, row + diagonal)
    )
    if isinstance(form, Truth):
        return both(form, inside)
    value = _expression(form)
    if not value.is_number:
        raise UnknownForm(f"{name} of indices")
    return Choice(inside, float(value), 0.0)


@_rule("where", "masked_fill")
def _select(reader: FormReader, operator: Operator, name: str) -> Form:
    if name == "where":
        where, inside, outside = (reader.operand(operator, k) for k in (0, 1, 2))
    else:
        outside, where, inside = (reader.operand(operator, k) for k in (0, 1, 2))
    condition = _truth(where)
    if isinstance(inside, Truth) and isinstance(outside, Truth):
        return either(both(condition, inside), both(opposite(condition), outside))
    if isinstance(outside, Choice) and outside.outside == float(_expression(inside)):
        return Choice(both(outside.where, opposite(condition)), outside.inside, outside.outside)
    a, b = _expression(inside), _expression(outside)
    if not (a.is_number and b.is_number):
        raise UnknownForm("a choice between indices")
    return Choice(condition, float(a), float(b))


def _typed(form: Form, operator: Operator) -> Form:
    """The form cast to the operator's dtype, where bools are truths."""
    if operator.outputs[0].dtype == "bool":
        return _truth(form)
    return form


def _truth(form: Form) -> Truth:
    if isinstance(form, Truth):
        return form
    if isinstance(form, Choice):
        if bool(form.inside) == bool(form.outside):
            return TRUE if form.inside else FALSE
        return form.where if form.inside else opposite(form.where)
    if form.expression.is_number:
        return TRUE if form.expression != 0 else FALSE
    raise UnknownForm("an index as a condition")


def _expression(form: Form) -> sympy.Expr:
    if isinstance(form, Integers):
        return form.expression
    if form in (TRUE, FALSE):
        return sympy.Integer(form == TRUE)
    raise UnknownForm("arithmetic with a condition")


def _constant(truth: Truth) -> Truth:
    if truth.atoms and not truth.never:
        raise UnknownForm("an inequality of indices")
    return truth


def _number(value: Argument) -> Integers:
    if isinstance(value, bool | int | float):
        return Integers(sympy.sympify(float(value) if isinstance(value, float) else int(value)))
    if isinstance(value, sympy.Expr):
        return Integers(value)
    raise UnknownForm("an argument that is no number")


def _integer(value: Argument) -> int:
    if not isinstance(value, int):
        raise UnknownForm("an argument that is no integer")
    return value
