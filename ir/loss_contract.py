"""The loss contract: a trained graph returns (loss_sum, weight), and the loss is their ratio.

A mean over a shard is not the mean, so no program may average: the sum of the loss and the sum of
the weights are both added over documents and ranks, and divided once, at the end of the step.
Documents without a target contribute 0 to both, never nan.

Recognised at the output and rewritten: mean cross-entropy and negative log-likelihood (weight: the
number of targets that are not ignored), mean squared error and its like, a mean over all elements,
a sum divided by a sum that has no gradient; under casts, signs and constant factors. All else is
refused: the meaning of an unknown reduction is never guessed.
"""

from dataclasses import dataclass
from typing import Final

import sympy

from shardwise.ir.argument import Argument, Dtype, Ref
from shardwise.ir.dtype import FLOAT_DTYPES
from shardwise.ir.errors import UnsupportedError
from shardwise.ir.expression import symbol
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import Rewriter, argument, gradient_values, without_dead_code
from shardwise.ir.tensor import TensorSpec

_ROWS: Final = frozenset({
    "aten.cross_entropy_loss.default", "aten.nll_loss.default", "aten.nll_loss_nd.default",
})  # fmt: skip
_ELEMENTWISE: Final = {
    "aten.mse_loss.default": 2,
    "aten.l1_loss.default": 2,
    "aten.smooth_l1_loss.default": 2,
    "aten.huber_loss.default": 2,
    "aten.soft_margin_loss.default": 2,
    "aten.binary_cross_entropy.default": 3,
    "aten.binary_cross_entropy_with_logits.default": 4,
}
"""Losses that are a mean over all elements -> position of `reduction`."""
_MEAN, _SUM = 1, 2
_REMEDY: Final = (
    "let the model return a mean cross-entropy, or pass loss=, a function of (outputs, inputs) "
    "that returns (loss_sum, weight)"
)
SCALAR: Final = TensorSpec((), "int64")


@dataclass(frozen=True)
class ApplyLossContract:
    """The pass; raises UnsupportedError for a loss whose reduction is not known."""

    name: str = "loss_contract"

    def apply(self, graph: OperatorGraph) -> OperatorGraph:
        """The graph with the outputs (loss_sum, weight); the mean is gone."""
        scalars = [ref for ref in graph.outputs if graph.spec(ref).shape == ()]
        if len(graph.outputs) > 2 or len(scalars) != len(graph.outputs):
            shapes = ", ".join(str(graph.spec(ref)) for ref in graph.outputs)
            raise UnsupportedError(
                f"the model returns {shapes} where a scalar loss is needed: {_REMEDY}"
            )
        trained = gradient_values(graph)
        if graph.outputs[0].name not in trained:
            raise UnsupportedError(
                "the loss does not depend on any trainable parameter: pass the targets (labels) in "
                "inputs=, or unfreeze parameters"
            )
        if len(graph.outputs) == 2:
            if graph.outputs[1].name in trained:
                raise UnsupportedError(
                    "the weight, the second output of the loss, depends on parameters: it counts "
                    "targets, so compute it from inputs alone"
                )
            return graph
        rewriter = Rewriter(graph)
        for operator in graph.operators:
            rewriter.keep(operator)
        parts = _Splitter(graph, rewriter, trained).split(graph.outputs[0])
        return without_dead_code(rewriter.finish(parts))


_SUMS = frozenset({"aten.sum.default", "aten.sum.dim_IntList", "aten.count_nonzero.default"})
_CASTS = frozenset({"aten.to.dtype", "aten._to_copy.default", "aten.reshape.default",
                    "aten.detach.default", "aten.alias.default"})  # fmt: skip
_FLOORS = frozenset({"aten.clamp.default", "aten.clamp_min.default"})


@dataclass
class _Splitter:
    graph: OperatorGraph
    rewriter: Rewriter
    trained: frozenset[str]

    def split(self, loss: Ref) -> tuple[Ref, Ref]:
        """(sum, weight) whose ratio is `loss`."""
        operator = self.graph.producer(loss)
        if not isinstance(operator, Operator):
            raise UnsupportedError(f"the loss is {loss.name}, no result of the model: {_REMEDY}")
        kind = operator.kind
        if kind in _ROWS:
            return self._rows(operator)
        if kind in _ELEMENTWISE:
            return self._elementwise(operator, _ELEMENTWISE[kind])
        if kind in ("aten.mean.default", "aten.mean.dim"):
            return self._mean(operator)
        if kind == "aten.div.Tensor" and self._is_weight(operator.args[1]):
            return self._ratio(operator)
        if kind in ("aten.neg.default", "aten.to.dtype", "aten.reshape.default") or (
            kind in ("aten.mul.Tensor", "aten.div.Tensor", "aten.mul.Scalar", "aten.div.Scalar")
            and type(operator.args[1]) in (int, float)
        ):
            first = operator.args[0]
            assert isinstance(first, Ref)
            total, weight = self.split(first)
            return self._again(operator, (total, *operator.args[1:])), weight
        raise self._refused(operator, "its reduction is not known")

    def _refused(self, operator: Operator, why: str) -> UnsupportedError:
        return UnsupportedError(
            f"the loss ends in {operator.kind} at {operator.source or 'an unknown line'}, {why}: "
            f"{_REMEDY}"
        )

    def _again(self, operator: Operator, args: tuple[Argument, ...]) -> Ref:
        """The operator on other arguments, all positional."""
        return self.rewriter.add(
            operator.kind, args, operator.outputs[0], like=operator, kwargs=operator.kwargs
        )

    def _rows(self, operator: Operator) -> tuple[Ref, Ref]:
        """Cross-entropy and likelihood: a target per row, some ignored."""
        scores, target = operator.args[0], operator.args[1]
        assert isinstance(scores, Ref) and isinstance(target, Ref)
        if argument(operator, 2, "weight") is not None:
            raise self._refused(operator, "with weights of classes")
        if argument(operator, 3, "reduction", _MEAN) != _MEAN:
            raise self._refused(operator, "a sum over rows that says nothing of their number")
        ignored = argument(operator, 4, "ignore_index", -100)
        args: tuple[Argument, ...] = (scores, target, None, _SUM, ignored)
        if operator.kind.startswith("aten.cross"):
            args = (*args, argument(operator, 5, "label_smoothing", 0.0))
        total = self.rewriter.add(operator.kind, args, operator.outputs[0], like=operator)
        spec = self.graph.spec(target)
        if spec.dtype in FLOAT_DTYPES:
            rows = sympy.sympify(self.graph.spec(scores).element_count()) / spec.shape[1]
            return total, self._count(rows, operator)
        valid = self.rewriter.add(
            "aten.ne.Scalar", (target, ignored), TensorSpec(spec.shape, "bool"), like=operator,
            name="counted_targets",
        )  # fmt: skip
        weight = self.rewriter.add(
            "aten.sum.default", (valid,), SCALAR, like=operator, name="loss_weight"
        )
        return total, weight

    def _elementwise(self, operator: Operator, position: int) -> tuple[Ref, Ref]:
        if argument(operator, position, "reduction", _MEAN) != _MEAN:
            raise self._refused(operator, "a sum over elements that says nothing of their number")
        value = operator.args[0]
        assert isinstance(value, Ref)
        args = list(operator.args) + [None] * (position + 1 - len(operator.args))
        args[position] = _SUM
        kwargs = dict(operator.kwargs)
        for name, place in (("pos_weight", 3), ("weight", 2)):
            if name in kwargs and place < position:
                args[place] = kwargs.pop(name)
        kwargs.pop("reduction", None)
        total = self.rewriter.add(
            operator.kind, tuple(args), operator.outputs[0], like=operator,
            kwargs=tuple(kwargs.items()),
        )  # fmt: skip
        return total, self._count(sympy.sympify(self.graph.spec(value).element_count()), operator)

    def _mean(self, operator: Operator) -> tuple[Ref, Ref]:
        value = operator.args[0]
        assert isinstance(value, Ref)
        spec = self.graph.spec(value)
        total = self.rewriter.add(
            "aten.sum.default", (value,), operator.outputs[0], like=operator,
            kwargs=(("dtype", Dtype(operator.outputs[0].dtype)),),
        )  # fmt: skip
        return total, self._count(sympy.sympify(spec.element_count()), operator)

    def _ratio(self, operator: Operator) -> tuple[Ref, Ref]:
        """A sum divided by a count."""
        total, weight = operator.args[0], operator.args[1]
        assert isinstance(total, Ref)
        if not self._is_sum(total):
            if isinstance(weight, Ref | sympy.Expr):
                raise self._refused(operator, "a division of what is not a sum over all elements")
            parts = self.split(total)
            return self._again(operator, (parts[0], weight)), parts[1]
        if isinstance(weight, Ref):
            return total, self._counted(weight, operator)
        assert isinstance(weight, int | float | sympy.Expr)
        return total, self._count(sympy.sympify(weight), operator)

    def _counted(self, weight: Ref, operator: Operator) -> Ref:
        """A divisor as a sum over documents, which adds up over micro-batches and ranks.

        A floor of at most 1 is left out: it only keeps a batch without targets from a division by
        zero, and such a micro-batch has to count nothing.
        """
        maker = self.graph.producer(weight)
        if isinstance(maker, Operator):
            if maker.kind in _SUMS:
                return weight
            first = maker.args[0] if maker.args else None
            if maker.kind in _CASTS and isinstance(first, Ref):
                counted = self._counted(first, operator)
                return (
                    weight if counted == first else self._again(maker, (counted, *maker.args[1:]))
                )
            floor = argument(maker, 1, "min")
            if (
                maker.kind in _FLOORS
                and isinstance(first, Ref)
                and isinstance(floor, int | float)
                and floor <= 1
                and argument(maker, 2, "max") is None
            ):
                return self._counted(first, operator)
        what = maker.kind if isinstance(maker, Operator) else weight.name
        raise self._refused(operator, f"by {what}, which is no sum over documents")

    def _is_sum(self, ref: Ref) -> bool:
        operator = self.graph.producer(ref)
        while isinstance(operator, Operator) and operator.kind in (
            "aten.neg.default", "aten.to.dtype", "aten.reshape.default",
        ):  # fmt: skip
            first = operator.args[0]
            assert isinstance(first, Ref)
            operator = self.graph.producer(first)
        if not isinstance(operator, Operator):
            return False
        if operator.kind in _ROWS:
            return argument(operator, 3, "reduction", _MEAN) == _SUM
        if operator.kind in _ELEMENTWISE:
            return argument(operator, _ELEMENTWISE[operator.kind], "reduction", _MEAN) == _SUM
        return operator.kind == "aten.sum.default"

    def _is_weight(self, value: Argument) -> bool:
        """Whether a divisor may be a weight: a number, a size, or a scalar without gradient."""
        if isinstance(value, Ref):
            return value.name not in self.trained and self.graph.spec(value).shape == ()
        return isinstance(value, int | float | sympy.Expr) and not isinstance(value, bool)

    def _count(self, number: sympy.Expr, operator: Operator) -> Ref:
        """A scalar of a size that grows with the batch, as counts of documents or elements do."""
        batch = symbol("B")
        if any(entry.name == "B" for entry in self.graph.symbols) and (
            batch not in number.free_symbols or batch in sympy.cancel(number / batch).free_symbols
        ):
            raise self._refused(operator, f"a division by {number}, which does not count documents")
        dtype = "int64" if number.is_integer else "float32"
        value: Argument = number
        if number.is_number:
            value = int(number) if number.is_integer else float(number)
        return self.rewriter.add(
            "aten.full.default", ((), value), TensorSpec((), dtype), like=operator,
            kwargs=(("dtype", Dtype(dtype)),), name="loss_weight",
        )  # fmt: skip
