"""The shift between logits and labels moves to the labels.

    CE(logits[:, :-1], labels[:, 1:])  ->  CE(logits, pad(labels[:, 1:], ignore_index))

Equal, because rows with the ignored label count neither in the sum nor in the mean; and a cut of
the logits along the sequence would force a gather of them where they are sharded.
"""

from dataclasses import dataclass, replace
from typing import Final

from shardwise.ir.argument import Argument, Ref
from shardwise.ir.expression import Size
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import Rewriter, argument, without_dead_code
from shardwise.ir.tensor import TensorSpec

LOSSES: Final = {
    "aten.cross_entropy_loss.default": 4,
    "aten.nll_loss.default": 4,
    "aten.nll_loss_nd.default": 4,
}
"""Losses over rows with a target each -> position of `ignore_index`."""
_THROUGH: Final = frozenset({"aten.reshape.default", "aten.to.dtype", "aten.transpose.int"})


@dataclass(frozen=True)
class _Shifted:
    """A chain of operators that starts by cutting one position off a sequence dim."""

    source: Ref
    cut: Operator
    dim: int
    size: Size
    rest: tuple[Operator, ...]
    """From the cut to the loss, in order."""


@dataclass(frozen=True)
class MoveShift:
    """The pass; losses that it does not recognise stay as they are."""

    name: str = "move_shift"

    def apply(self, graph: OperatorGraph) -> OperatorGraph:
        """The graph whose losses read whole logits."""
        rewriter = Rewriter(graph)
        changed = False
        for operator in graph.operators:
            moved = _moved(operator, graph, rewriter) if operator.kind in LOSSES else None
            changed = changed or moved is not None
            rewriter.keep(operator if moved is None else moved)
        return without_dead_code(rewriter.finish()) if changed else graph


def _moved(loss: Operator, graph: OperatorGraph, rewriter: Rewriter) -> Operator | None:
    ignored = argument(loss, LOSSES[loss.kind], "ignore_index", -100)
    logits = _shifted(loss.args[0], graph)
    labels = _shifted(loss.args[1], graph)
    if logits is None or labels is None or not isinstance(ignored, int):
        return None
    if logits.size != labels.size or _ends(logits.cut) != (0, logits.size - 1):
        return None
    if _ends(labels.cut) != (1, labels.size) or labels.dim != len(_shape(labels, graph)) - 1:
        return None
    shape = list(_shape(labels, graph))
    shape[labels.dim] = labels.size
    spec = TensorSpec(tuple(shape), graph.spec(labels.source).dtype)
    padded = rewriter.add(
        "aten.pad.default", (Ref(labels.cut.name), (0, 1), "constant", float(ignored)), spec,
        like=loss,
    )  # fmt: skip
    target = _replayed(labels.rest, padded, rewriter)
    scores = _replayed(logits.rest, logits.source, rewriter)
    if target is None or scores is None:
        return None
    return replace(loss, args=(scores, target, *loss.args[2:]))


def _shifted(value: Argument, graph: OperatorGraph) -> _Shifted | None:
    rest: list[Operator] = []
    while isinstance(value, Ref):
        operator = graph.producer(value)
        if not isinstance(operator, Operator):
            return None
        if operator.kind == "aten.slice.Tensor" and len(operator.args) == 4:
            source, dim = operator.args[0], operator.args[1]
            assert isinstance(source, Ref) and isinstance(dim, int)
            size = graph.spec(source).shape[dim]
            if operator.outputs[0].shape[dim] != size - 1:
                return None
            return _Shifted(source, operator, dim, size, tuple(reversed(rest)))
        if operator.kind not in _THROUGH:
            return None
        rest.append(operator)
        value = operator.args[0]
    return None


def _ends(cut: Operator) -> tuple[Argument, Argument]:
    return cut.args[2], cut.args[3]


def _shape(shifted: _Shifted, graph: OperatorGraph) -> tuple[Size, ...]:
    return graph.spec(shifted.source).shape


def _replayed(operators: tuple[Operator, ...], value: Ref, rewriter: Rewriter) -> Ref | None:
    """The operators again on a value that is one position longer; None for other reshapes."""
    for operator in operators:
        before, after = rewriter.spec(value).shape, operator.outputs[0].shape
        args = operator.args[1:]
        if operator.kind == "aten.to.dtype":
            shape = before
        elif operator.kind == "aten.transpose.int":
            first, second = (int(dim) % len(before) for dim in args)  # type: ignore[arg-type]
            order = list(range(len(before)))
            order[first], order[second] = order[second], order[first]
            shape = tuple(before[dim] for dim in order)
        else:
            kept = len(after) - 1
            if kept and (len(before) <= kept or before[-kept:] != after[1:]):
                return None
            shape = (_product(before[: len(before) - kept]), *after[1:])
            args = (shape,)
        value = rewriter.add(
            operator.kind, (value, *args), TensorSpec(shape, operator.outputs[0].dtype),
            like=operator,
        )  # fmt: skip
    return value


def _product(sizes: tuple[Size, ...]) -> Size:
    result: Size = 1
    for size in sizes:
        result = result * size
    return result
