"""Forms of operators on elements: arithmetic, comparisons, logic and choices."""

from typing import Final

import sympy

from shardwise.ir.index_form import (
    FALSE,
    TRUE,
    Choice,
    Form,
    Integers,
    Magnitude,
    Truth,
    UnknownForm,
    at_least,
    both,
    either,
    index,
    opposite,
)
from shardwise.ir.index_reader import (
    FormReader,
    constant,
    expression_of,
    number,
    rule,
    truth_of,
    typed,
)
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import argument

_COMPARE: Final = {
    "ge": lambda a, b: at_least(a, b),
    "le": lambda a, b: at_least(b, a),
    "gt": lambda a, b: at_least(a - 1, b),
    "lt": lambda a, b: at_least(b - 1, a),
    "eq": lambda a, b: both(at_least(a, b), at_least(b, a)),
    "ne": lambda a, b: opposite(constant(both(at_least(a, b), at_least(b, a)))),
}
_AND: Final = ("__and__", "bitwise_and", "logical_and")
_OR: Final = ("__or__", "bitwise_or", "logical_or")
_NOT: Final = ("logical_not", "bitwise_not")


@rule("abs")
def _abs(reader: FormReader, operator: Operator, name: str) -> Form:
    return Magnitude(expression_of(reader.operand(operator, 0)))


@rule("add", "sub", "mul")
def _arithmetic(reader: FormReader, operator: Operator, name: str) -> Form:
    left, right = reader.operand(operator, 0), reader.operand(operator, 1)
    if argument(operator, 2, "alpha", 1) != 1:
        raise UnknownForm("a scaled sum")
    if name == "mul" and isinstance(left, Truth) and isinstance(right, Truth):
        return both(left, right)
    a, b = expression_of(left), expression_of(right)
    if name == "mul":
        if not (a.is_number or b.is_number):
            raise UnknownForm("a product of two indices")
        return Integers(sympy.expand(a * b))
    return Integers(sympy.expand(a + b if name == "add" else a - b))


@rule("rsub")
def _reversed(reader: FormReader, operator: Operator, name: str) -> Form:
    form = reader.operand(operator, 0)
    other = number(operator.args[1]).expression
    if isinstance(form, Choice):
        return Choice(form.where, float(other) - form.inside, float(other) - form.outside)
    if isinstance(form, Truth) and other == 1:
        return Choice(form, 0.0, 1.0)
    return Integers(sympy.expand(other - expression_of(form)))


@rule("neg")
def _negative(reader: FormReader, operator: Operator, name: str) -> Form:
    return Integers(-expression_of(reader.operand(operator, 0)))


@rule(*_COMPARE)
def _compare(reader: FormReader, operator: Operator, name: str) -> Form:
    left, right = reader.operand(operator, 0), reader.operand(operator, 1)
    if isinstance(left, Magnitude):
        return _within(left.expression, expression_of(right), name)
    if isinstance(left, Truth | Choice) and isinstance(right, Integers) and name in ("eq", "ne"):
        return _equal_to(left, right.expression, positive=name == "eq")
    return _COMPARE[name](expression_of(left), expression_of(right))


def _within(value: sympy.Expr, bound: sympy.Expr, name: str) -> Truth:
    """|value| <= bound or |value| < bound."""
    if name not in ("le", "lt"):
        raise UnknownForm("a distance that is large enough")
    most = bound if name == "le" else bound - 1
    return both(at_least(most, value), at_least(value, -most))


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


@rule(*_AND, *_OR)
def _logic(reader: FormReader, operator: Operator, name: str) -> Form:
    left, right = (truth_of(reader.operand(operator, k)) for k in (0, 1))
    return both(left, right) if name in _AND else either(left, right)


@rule(*_NOT)
def _not(reader: FormReader, operator: Operator, name: str) -> Form:
    return opposite(truth_of(reader.operand(operator, 0)))


@rule("to")
def _cast(reader: FormReader, operator: Operator, name: str) -> Form:
    return typed(reader.operand(operator, 0), operator)


@rule("tril", "triu")
def _triangle(reader: FormReader, operator: Operator, name: str) -> Form:
    form, shape = reader.source(operator)
    row, column = index(len(shape) - 2), index(len(shape) - 1)
    diagonal = number(argument(operator, 1, "diagonal", 0)).expression
    inside = (
        at_least(row + diagonal, column) if name == "tril" else at_least(column, row + diagonal)
    )
    if isinstance(form, Truth):
        return both(form, inside)
    value = expression_of(form)
    if not value.is_number:
        raise UnknownForm(f"{name} of indices")
    return Choice(inside, float(value), 0.0)


@rule("where", "masked_fill")
def _select(reader: FormReader, operator: Operator, name: str) -> Form:
    if name == "where":
        where, inside, outside = (reader.operand(operator, k) for k in (0, 1, 2))
    else:
        outside, where, inside = (reader.operand(operator, k) for k in (0, 1, 2))
    condition = truth_of(where)
    if isinstance(inside, Truth) and isinstance(outside, Truth):
        return either(both(condition, inside), both(opposite(condition), outside))
    if isinstance(outside, Choice) and outside.outside == float(expression_of(inside)):
        return Choice(both(outside.where, opposite(condition)), outside.inside, outside.outside)
    a, b = expression_of(inside), expression_of(outside)
    if not (a.is_number and b.is_number):
        raise UnknownForm("a choice between indices")
    return Choice(condition, float(a), float(b))
