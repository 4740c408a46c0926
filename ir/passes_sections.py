"""Fused linears become one linear per section of their weight.

    split(linear(x, W), [a, b, c])  ->  linear(x, W#q), linear(x, W#k), linear(x, W#v)

A fused weight cut over heads or features is not a contiguous shard of it; its sections are. The
masters are the sections, each a Parameter called `weight#name`, and are merged again in the state
dict. Found by structure: what reads a product (through a reshape that keeps the last dim) only cuts
that dim, by split, chunk or slices that tile it. Sections that become the query, key and value of
one attention are called q, k, v; others are numbered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardwise.ir.argument import Argument, Ref
from shardwise.ir.expression import Size
from shardwise.ir.graph import OperatorGraph, Parameter, Section
from shardwise.ir.operator import Operator
from shardwise.ir.passes_mask import ATTENTION
from shardwise.ir.rewrite import Rewriter, argument, without_dead_code
from shardwise.ir.tensor import TensorSpec

_SPLITS: Final = frozenset({
    "aten.split.Tensor", "aten.split_with_sizes.default", "aten.chunk.default",
})  # fmt: skip
_LETTERS: Final = ("q", "k", "v")
_FAR: Final = 64
"""Operators after a section that are searched for its attention."""


@dataclass(frozen=True)
class _Fused:
    """A product, what cuts its last dim, and where."""

    product: Operator
    weight: Parameter
    bias: Parameter | None
    reshapes: tuple[Operator, ...]
    pieces: tuple[tuple[int, int, tuple[Ref, ...]], ...]
    """(start, stop, the values that are this piece), in order, tiling the last dim."""

    def reading(self) -> set[str]:
        """Names of the operators between the product and its pieces."""
        cuts = {value.name for _, _, values in self.pieces for value in values}
        return cuts | {reshape.name for reshape in self.reshapes}


@dataclass(frozen=True)
class SplitFused:
    """The pass; products that it does not recognise stay fused."""

    name: str = "split_fused"

    def apply(self, graph: OperatorGraph) -> OperatorGraph:
        """The graph with sections in place of fused parameters."""
        found = [fused for o in graph.operators if (fused := _fused(o, graph)) is not None]
        if not found:
            return graph
        by_product = {fused.product.name: fused for fused in found}
        gone = {name for fused in found for name in fused.reading()}
        replaced: dict[str, tuple[Parameter, ...]] = {}
        rewriter = Rewriter(graph)
        for operator in graph.operators:
            fused = by_product.get(operator.name)
            if fused is None:
                if operator.name not in gone:
                    rewriter.keep(operator)
            else:
                replaced.update(_split(fused, graph, rewriter))
        parameters = tuple(part for p in graph.parameters for part in replaced.get(p.name, (p,)))
        return without_dead_code(rewriter.finish(parameters=parameters))


def _fused(operator: Operator, graph: OperatorGraph) -> _Fused | None:
    if operator.kind == "aten.linear.default":
        weight, bias = operator.args[1], argument(operator, 2, "bias")
    elif operator.kind == "aten.addmm.default" and not operator.kwargs:
        weight, bias = operator.args[2], operator.args[0]
    else:
        return None
    matrix = _own_parameter(weight, graph)
    vector = _own_parameter(bias, graph) if bias is not None else None
    if matrix is None or (bias is not None and (vector is None or len(vector.spec.shape) != 1)):
        return None
    value, reshapes = Ref(operator.name), []
    while len(readers := graph.users(value.name)) == 1 and _keeps_last(readers[0], value, graph):
        reshapes.append(readers[0])
        value = Ref(readers[0].name)
    between = {operator.name, *(reshape.name for reshape in reshapes)}
    if not between.isdisjoint(ref.name for ref in graph.outputs):
        return None
    pieces = _pieces(value, graph)
    return None if pieces is None else _Fused(operator, matrix, vector, tuple(reshapes), pieces)


def _keeps_last(operator: Operator, value: Ref, graph: OperatorGraph) -> bool:
    """Whether an operator is a reshape of other dims than the last."""
    return (
        operator.kind == "aten.reshape.default"
        and operator.outputs[0].shape[-1:] == graph.spec(value).shape[-1:]
    )


def _own_parameter(value: object, graph: OperatorGraph) -> Parameter | None:
    """The parameter, if it is not tied, no section yet, and read by one operator only."""
    if not isinstance(value, Ref):
        return None
    item = graph.producer(value)
    if not isinstance(item, Parameter) or item.aliases or item.section is not None:
        return None
    return item if len(graph.users(item.name)) == 1 else None


def _pieces(
    value: Ref, graph: OperatorGraph
) -> tuple[tuple[int, int, tuple[Ref, ...]], ...] | None:
    """How the readers of a value cut its last dim; None if they do anything else."""
    shape = graph.spec(value).shape
    last, size = len(shape) - 1, shape[-1]
    readers = graph.users(value.name)
    cuts: dict[tuple[int, int], list[Ref]] = {}
    if len(readers) == 1 and readers[0].kind in _SPLITS:
        if not _is_last(argument(readers[0], 2, "dim", 0), last):
            return None
        start = 0
        for index, output in enumerate(readers[0].outputs):
            width = output.shape[-1]
            if not isinstance(width, int):
                return None
            cuts[start, start + width] = [Ref(readers[0].name, index)]
            start += width
    else:
        for reader in readers:
            if reader.kind != "aten.slice.Tensor" or len(reader.args) != 4:
                return None
            ends = reader.args[2], reader.args[3]
            if not _is_last(reader.args[1], last) or not all(type(end) is int for end in ends):
                return None
            cuts.setdefault((int(str(ends[0])), int(str(ends[1]))), []).append(Ref(reader.name))
    ordered = sorted(cuts)
    bounds = [0, *(stop for _, stop in ordered)]
    if len(ordered) < 2 or bounds[-1] != size or [a for a, _ in ordered] != bounds[:-1]:
        return None
    return tuple((start, stop, tuple(cuts[start, stop])) for start, stop in ordered)


def _is_last(dim: object, last: int) -> bool:
    return isinstance(dim, int) and dim in (last, -1)


def _split(
    fused: _Fused, graph: OperatorGraph, rewriter: Rewriter
) -> dict[str, tuple[Parameter, ...]]:
    """Emit one product per section; the new parameters by the name of the fused one."""
    product = fused.product
    n_dim = 0 if product.kind == "aten.linear.default" else 1
    names = _names(fused, graph)
    weights = _sections(fused.weight, n_dim, fused.pieces, names)
    biases = _sections(fused.bias, 0, fused.pieces, names) if fused.bias is not None else None
    for number, (start, stop, values) in enumerate(fused.pieces):
        weight = Ref(weights[number].name)
        bias = Ref(biases[number].name) if biases is not None else None
        args: tuple[Argument, ...] = (product.args[0], weight)
        if n_dim == 1:
            args = (bias, product.args[1], weight)
        elif bias is not None:
            args = (product.args[0], weight, bias)
        spec = _narrowed(product.outputs[0], stop - start)
        result = rewriter.add(
            product.kind, args, spec, like=product, name=f"{product.name}_{names[number]}"
        )
        for reshape in fused.reshapes[-1:]:
            spec = _narrowed(reshape.outputs[0], stop - start)
            result = rewriter.add(reshape.kind, (result, spec.shape), spec, like=reshape)
        for value in values:
            rewriter.forward(value, result)
    replaced = {fused.weight.name: weights}
    if fused.bias is not None and biases is not None:
        replaced[fused.bias.name] = biases
    return replaced


def _narrowed(spec: TensorSpec, width: int) -> TensorSpec:
    shape: tuple[Size, ...] = (*spec.shape[:-1], width)
    return TensorSpec(shape, spec.dtype)


def _sections(
    parameter: Parameter,
    dim: int,
    pieces: Sequence[tuple[int, int, tuple[Ref, ...]]],
    names: Sequence[str],
) -> tuple[Parameter, ...]:
    sections = []
    for (start, stop, _), name in zip(pieces, names, strict=True):
        shape = list(parameter.spec.shape)
        shape[dim] = stop - start
        sections.append(
            Parameter(
                f"{parameter.name}#{name}",
                TensorSpec(tuple(shape), parameter.spec.dtype),
                parameter.trainable,
                section=Section(parameter.name, dim, start, stop),
            )
        )
    return tuple(sections)


def _names(fused: _Fused, graph: OperatorGraph) -> tuple[str, ...]:
    """q, k and v where the sections are those of one attention, numbers otherwise."""
    found = [_place_in_attention(values, graph) for _, _, values in fused.pieces]
    attentions = {place[0] for place in found if place is not None}
    if len(attentions) == 1 and sorted(place[1] for place in found if place) == [0, 1, 2]:
        return tuple(_LETTERS[place[1]] for place in found if place is not None)
    return tuple(str(number) for number in range(len(fused.pieces)))


def _place_in_attention(values: tuple[Ref, ...], graph: OperatorGraph) -> tuple[str, int] | None:
    """The first attention that a value reaches, and as which argument, if that is clear."""
    reached = set(values)
    names = {value.name for value in values}
    start = max(graph.position(name) for name in names) + 1
    for operator in graph.operators[start : start + _FAR]:
        places = [k for k, arg in enumerate(operator.args[:3]) if arg in reached]
        if operator.kind == ATTENTION and places:
            return (operator.name, places[0]) if len(places) == 1 else None
        if any(ref in reached for ref in operator.refs()):
            reached.update(Ref(operator.name, k) for k in range(len(operator.outputs)))
    return None
