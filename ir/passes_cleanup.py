"""No-ops removed, and one kind where torch has many: casts, reshapes, transposes.

After this pass a graph has no `contiguous`, `clone`, `alias`, no cast to the same dtype and no
`view`: every change of shape in row-major order is `reshape` to sizes written out, every cast is
`to.dtype`. `reshape` copies where strides demand it, so strides no longer matter to what a graph
means.
"""

from dataclasses import dataclass
from typing import Final

from shardwise.ir.argument import Argument, Dtype, Ref
from shardwise.ir.dtype import FLOAT_DTYPES
from shardwise.ir.graph import OperatorGraph
from shardwise.ir.operator import Operator
from shardwise.ir.rewrite import Rewriter, argument, gradient_values

_IDENTITIES: Final = frozenset({
    "aten.contiguous.default", "aten.clone.default", "aten.alias.default",
    "aten.lift_fresh_copy.default", "aten.lift_fresh.default", "aten.positive.default",
    "aten.resolve_conj.default", "aten.resolve_neg.default", "aten.conj.default",
})  # fmt: skip
"""Kinds that return what they are given, once nothing writes in place."""
_CASTS: Final = frozenset({
    "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten.to.other",
    "aten._to_copy.default", "aten.type_as.default",
})  # fmt: skip
_RESHAPES: Final = frozenset({
    "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default",
    "aten.flatten.using_ints", "aten.unflatten.int", "aten.view_as.default",
    "aten.reshape_as.default", "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims",
})  # fmt: skip
_DROPOUTS: Final = frozenset({
    "aten.dropout.default", "aten.feature_dropout.default", "aten.alpha_dropout.default",
})  # fmt: skip
_TRANSPOSES: Final = frozenset({
    "aten.t.default", "aten.numpy_T.default", "aten.swapaxes.default", "aten.swapdims.default",
    "aten.mT.default",
})  # fmt: skip
MAX_INDEX: Final = 2**62
"""Ends of slices from here on mean the end of the dim."""


@dataclass(frozen=True)
class CleanUp:
    """The pass; it never fails."""

    name: str = "clean_up"

    def apply(self, graph: OperatorGraph) -> OperatorGraph:
        """The graph in fewer kinds and operators, with equal values."""
        rewriter = Rewriter(graph)
        with_gradient = gradient_values(graph)
        for operator in graph.operators:
            if operator.kind == "aten.broadcast_tensors.default":
                _expand_each(operator, rewriter)
                continue
            operator = _without_empty(operator, rewriter)
            same = _identity_of(operator, rewriter, with_gradient)
            if same is not None:
                rewriter.forward(Ref(operator.name), same)
            else:
                rewriter.keep(_canonical(operator, rewriter))
        return rewriter.finish()


def _expand_each(operator: Operator, rewriter: Rewriter) -> None:
    """Tensors broadcast against each other: each is expanded where it has to be."""
    tensors = operator.args[0]
    assert isinstance(tensors, tuple)
    for index, (source, output) in enumerate(zip(tensors, operator.outputs, strict=True)):
        assert isinstance(source, Ref)
        if rewriter.spec(source) != output:
            source = rewriter.add(
                "aten.expand.default", (source, output.shape), output, like=operator
            )
        rewriter.forward(Ref(operator.name, index), source)


def _without_empty(operator: Operator, rewriter: Rewriter) -> Operator:
    """A join without the tensors that have nothing along its dim; of one tensor, that tensor."""
    if operator.kind != "aten.cat.default" or not isinstance(operator.args[0], tuple):
        return operator
    dim = argument(operator, 1, "dim", 0)
    assert isinstance(dim, int)
    parts = [part for part in operator.args[0] if isinstance(part, Ref)]
    kept = tuple(part for part in parts if rewriter.spec(part).shape[dim] != 0)
    if not kept or len(kept) == len(parts):
        return operator
    if len(kept) == 1:
        return _with(operator, "aten.alias.default", kept)
    return _with(operator, operator.kind, (kept, dim))


def _identity_of(
    operator: Operator, rewriter: Rewriter, with_gradient: frozenset[str]
) -> Ref | None:
    """The value that an operator returns unchanged, or None."""
    if not operator.args or not isinstance(operator.args[0], Ref) or len(operator.outputs) != 1:
        return None
    source, output = operator.args[0], operator.outputs[0]
    kind = operator.kind
    if rewriter.spec(source) != output:
        return None
    same = (
        kind in _IDENTITIES
        or kind in _CASTS
        or kind in _RESHAPES
        or kind in ("aten.expand.default", "aten.expand_as.default")
        or (kind == "aten.slice.Tensor" and argument(operator, 4, "step", 1) == 1)
        or (kind in _DROPOUTS and (operator.args[1] == 0 or operator.args[2] is False))
        or (kind == "aten.detach.default" and source.name not in with_gradient)
        or _adds_nothing(operator)
    )
    return source if same else None


def _adds_nothing(operator: Operator) -> bool:
    """x * 1 and x / 1 always, x + 0 for integers (for floats it changes the sign of -0)."""
    if len(operator.args) < 2:
        return False
    other = operator.args[1]
    if isinstance(other, bool) or not isinstance(other, int | float):
        return False
    if operator.kind in ("aten.mul.Tensor", "aten.div.Tensor", "aten.mul.Scalar"):
        return other == 1
    is_float = operator.outputs[0].dtype in FLOAT_DTYPES
    return operator.kind in ("aten.add.Tensor", "aten.sub.Tensor") and other == 0 and not is_float


def _canonical(operator: Operator, rewriter: Rewriter) -> Operator:
    kind, output = operator.kind, operator.outputs[0]
    if kind in _CASTS:
        return _with(operator, "aten.to.dtype", (operator.args[0], Dtype(output.dtype)))
    if kind in _RESHAPES:
        return _with(operator, "aten.reshape.default", (operator.args[0], output.shape))
    if kind in ("aten.expand.default", "aten.expand_as.default"):
        return _with(operator, "aten.expand.default", (operator.args[0], output.shape))
    if kind in _TRANSPOSES:
        return _transposed(operator, rewriter)
    if kind == "aten.slice.Tensor":
        return _sliced(operator, rewriter)
    return operator


def _transposed(operator: Operator, rewriter: Rewriter) -> Operator:
    source = operator.args[0]
    assert isinstance(source, Ref)
    rank = len(rewriter.spec(source).shape)
    dims = operator.args[1:] if len(operator.args) == 3 else (rank - 2, rank - 1)
    if rank < 2 or (operator.kind == "aten.numpy_T.default" and rank != 2):
        return operator
    return _with(operator, "aten.transpose.int", (source, *dims))


def _sliced(operator: Operator, rewriter: Rewriter) -> Operator:
    """Dim and ends written out: dim and start not negative, the end at most the size."""
    source = operator.args[0]
    assert isinstance(source, Ref)
    shape = rewriter.spec(source).shape
    dim = argument(operator, 1, "dim", 0)
    start, end = argument(operator, 2, "start"), argument(operator, 3, "end")
    step = argument(operator, 4, "step", 1)
    if not isinstance(dim, int):
        return operator
    dim %= len(shape)
    size = shape[dim]
    start = 0 if start is None else start
    end = size if end is None or (isinstance(end, int) and end >= MAX_INDEX) else end
    if isinstance(start, int) and start < 0:
        start = size + start
    if isinstance(end, int) and end < 0:
        end = size + end
    args = (source, dim, start, end)
    return _with(operator, "aten.slice.Tensor", args if step == 1 else (*args, step))


def _with(operator: Operator, kind: str, args: tuple[Argument, ...]) -> Operator:
    return Operator(
        operator.name,
        kind,
        args,
        (),
        operator.outputs,
        operator.module_path,
        operator.source,
    )
