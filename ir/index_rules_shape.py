"""Forms of operators that make, view or gather: how the indices of the result map to those read."""

import sympy

from shardwise.ir.argument import Argument, Ref
from shardwise.ir.index_form import FALSE, Form, Integers, UnknownForm, index, renamed
from shardwise.ir.index_reader import FormReader, expression_of, integer, number, rule, typed
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import argument

_ONES = ("ones", "new_ones", "ones_like")
_ZEROS = ("zeros", "new_zeros", "zeros_like")


@rule("arange")
def _arange(reader: FormReader, operator: Operator, name: str) -> Form:
    ends = [number(value).expression for value in operator.args]
    start = ends[0] if len(ends) > 1 else sympy.S.Zero
    step = ends[2] if len(ends) > 2 else sympy.S.One
    return Integers(sympy.expand(start + step * index(0)))


@rule("full", "new_full", "full_like", "scalar_tensor", *_ONES, *_ZEROS)
def _filled(reader: FormReader, operator: Operator, name: str) -> Form:
    if name in _ONES:
        value: Argument = 1
    elif name in _ZEROS:
        value = 0
    else:
        value = operator.args[{"full": 1, "full_like": 1, "new_full": 2}.get(name, 0)]
    return typed(number(value), operator)


@rule("unsqueeze")
def _unsqueeze(reader: FormReader, operator: Operator, name: str) -> Form:
    form, shape = reader.source(operator)
    dim = integer(operator.args[1]) % (len(shape) + 1)
    return renamed(form, {k: index(k + (k >= dim)) for k in range(len(shape))})


@rule("reshape")
def _reshape(reader: FormReader, operator: Operator, name: str) -> Form:
    """Only dims of size 1 may come and go."""
    form, shape = reader.source(operator)
    output = operator.outputs[0].shape
    before = [k for k, size in enumerate(shape) if size != 1]
    after = [k for k, size in enumerate(output) if size != 1]
    if [shape[k] for k in before] != [output[k] for k in after]:
        raise UnknownForm("a reshape that merges or splits dims")
    return renamed(form, {k: index(j) for k, j in zip(before, after, strict=True)})


@rule("permute")
def _permute(reader: FormReader, operator: Operator, name: str) -> Form:
    form, shape = reader.source(operator)
    dims = operator.args[1]
    if not isinstance(dims, tuple):
        raise UnknownForm("a permutation of unknown dims")
    order = [integer(dim) % len(shape) for dim in dims]
    return renamed(form, {dim: index(place) for place, dim in enumerate(order)})


@rule("repeat")
def _repeat(reader: FormReader, operator: Operator, name: str) -> Form:
    """Of dims of size 1 only, which is what expand does."""
    _, shape = reader.source(operator)
    counts = operator.args[1]
    if not isinstance(counts, tuple):
        raise UnknownForm("a repetition of unknown dims")
    own = counts[len(counts) - len(shape) :]
    if any(size != 1 and count != 1 for size, count in zip(shape, own, strict=True)):
        raise UnknownForm("a repetition of more than one element")
    return reader.operand(operator, 0)


@rule("expand")
def _expand(reader: FormReader, operator: Operator, name: str) -> Form:
    return reader.operand(operator, 0)


@rule("transpose")
def _transpose(reader: FormReader, operator: Operator, name: str) -> Form:
    form, shape = reader.source(operator)
    first, second = (integer(operator.args[k]) % len(shape) for k in (1, 2))
    return renamed(form, {first: index(second), second: index(first)})


@rule("slice", "select")
def _slice(reader: FormReader, operator: Operator, name: str) -> Form:
    form, shape = reader.source(operator)
    dim = integer(argument(operator, 1, "dim", 0)) % len(shape)
    start = number(argument(operator, 2, "start", 0)).expression
    if start.is_negative:
        start = shape[dim] + start
    if name == "slice":
        step = integer(argument(operator, 4, "step", 1))
        place = start + step * index(dim) if operator.outputs[0].shape[dim] != 1 else start
        return renamed(form, {dim: place})
    places: dict[int, sympy.Expr | int] = {k: index(k - (k > dim)) for k in range(len(shape))}
    places[dim] = start
    return renamed(form, places)


@rule("diff")
def _diff(reader: FormReader, operator: Operator, name: str) -> Form:
    """value[j] - value[j - 1], with one value prepended, where that is the same for all j."""
    form, shape = reader.source(operator)
    dim = integer(argument(operator, 2, "dim", -1)) % len(shape)
    prepend = argument(operator, 3, "prepend")
    if integer(argument(operator, 1, "n", 1)) != 1 or len(operator.args) > 4:
        raise UnknownForm("a higher difference")
    if not isinstance(prepend, Ref):
        raise UnknownForm("a difference of fewer elements")
    if reader.shape(prepend)[dim] != 1:
        raise UnknownForm("a difference with several elements prepended")
    value = expression_of(form)
    step = sympy.expand(value - value.subs(index(dim), index(dim) - 1))
    first = sympy.expand(value.subs(index(dim), 0) - expression_of(reader.form(prepend)))
    if step != first or index(dim) in step.free_symbols:
        raise UnknownForm("a difference that varies")
    return Integers(step)


@rule("cumsum")
def _cumsum(reader: FormReader, operator: Operator, name: str) -> Form:
    """Of zeros only."""
    form, _ = reader.source(operator)
    if form == FALSE or form == Integers(sympy.S.Zero):
        return Integers(sympy.S.Zero)
    raise UnknownForm("a running sum")


@rule("index")
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
        place = expression_of(
            renamed(reader.form(item), {k: index(k + shift) for k in range(len(own))})
        )
        if not reader.box.proves(place, output):
            raise UnknownForm("an index that may be negative")
        places[dim] = place
    return renamed(form, places)
