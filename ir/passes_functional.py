"""In-place operators become functional ones; writes through views become scatters.

Each value of the trace has a current version. Writing to a view makes new versions of what it is a
view of (`slice_scatter`, `select_scatter`, the inverse reshape), and its other views are taken
anew when they are read next. Buffers that were written become `updates` of the graph.

Whether `reshape`, `contiguous` or a cast gave a view depends on strides, which a graph does not
hold: writing to the result is fine, and reading the original afterwards is refused.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Final

from shardwise.ir.argument import Argument, Dtype, Ref
from shardwise.ir.errors import UnsupportedError
from shardwise.ir.graph import OperatorGraph, Parameter
from shardwise.ir.operator import Operator
from shardwise.ir.promotion import promoted
from shardwise.ir.rewrite import Rewriter, argument
from shardwise.ir.tensor import TensorSpec

_IN_PLACE: Final = re.compile(r"(aten)\.([a-z]\w*[a-z0-9])_\.(\w+)")
_RESHAPING: Final = frozenset({
    "aten.view.default", "aten._unsafe_view.default", "aten.unsqueeze.default",
    "aten.squeeze.dim", "aten.squeeze.dims", "aten.squeeze.default",
})  # fmt: skip
_SAME: Final = frozenset({"aten.alias.default", "aten.detach.default"})
_CASTS: Final = frozenset({
    "aten.to.dtype", "aten.to.device", "aten.to.dtype_layout", "aten.to.other",
    "aten.type_as.default",
})  # fmt: skip
_VIEWS: Final = _RESHAPING | _SAME | {
    "aten.slice.Tensor", "aten.select.int", "aten.transpose.int", "aten.t.default",
    "aten.permute.default", "aten.expand.default", "aten.split.Tensor", "aten.chunk.default",
    "aten.split_with_sizes.default", "aten.unbind.int", "aten.narrow.int",
    "aten.diagonal.default", "aten.movedim.int", "aten.swapaxes.default",
}  # fmt: skip
_MAYBE_VIEWS: Final = frozenset({
    "aten.reshape.default", "aten.contiguous.default", "aten.flatten.using_ints",
    "aten.unflatten.int", "aten.view_as.default", "aten.reshape_as.default",
    "aten.numpy_T.default", "aten.matrix_H.default",
})  # fmt: skip
_RANDOM: Final = frozenset({"bernoulli", "normal", "uniform", "random", "exponential", "cauchy"})


@dataclass(frozen=True)
class Functionalise:
    """The pass; raises UnsupportedError for writes that it cannot express, with the source line."""

    name: str = "functionalise"

    def apply(self, graph: OperatorGraph) -> OperatorGraph:
        """The graph without in-place operators; unchanged if it has none."""
        if not any(is_in_place(operator.kind) for operator in graph.operators):
            return graph
        return _Run(graph).run()


def is_in_place(kind: str) -> bool:
    """Whether an aten kind writes to its first argument."""
    return _IN_PLACE.fullmatch(kind) is not None


@dataclass
class _Run:
    graph: OperatorGraph
    current: dict[Ref, Ref] = field(default_factory=dict)
    views: dict[Ref, tuple[Ref, Operator]] = field(default_factory=dict)
    children: dict[Ref, list[Ref]] = field(default_factory=dict)
    stale: set[Ref] = field(default_factory=set)
    poisoned: dict[Ref, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rewriter = Rewriter(self.graph)

    def run(self) -> OperatorGraph:
        for operator in self.graph.operators:
            if is_in_place(operator.kind):
                self._write(operator)
            else:
                self._keep(operator)
        outputs = [self.read(ref) for ref in self.graph.outputs]
        updates = tuple(
            (constant.name, self.read(Ref(constant.name)))
            for constant in self.graph.constants
            if self.current.get(Ref(constant.name), Ref(constant.name)) != Ref(constant.name)
        )
        return replace(self.rewriter.finish(outputs), updates=updates)

    def read(self, ref: Ref) -> Ref:
        """The current version of a value."""
        if ref in self.poisoned:
            raise UnsupportedError(
                f"{self.poisoned[ref]}: whether this writes to the original, which is read later, "
                "depends on strides; write out of place (x = x + y), or clone() first"
            )
        if ref in self.stale:
            _, operator = self.views[ref]
            self.stale.discard(ref)
            again = self._read_operator(operator)
            name = self.rewriter.fresh(f"{operator.name}_again")
            self.current[ref] = replace(
                self.rewriter.keep(replace(again, name=name)), index=ref.index
            )
        return self.current.get(ref, ref)

    def _read_operator(self, operator: Operator) -> Operator:
        return operator.with_refs(self.read)

    def _keep(self, operator: Operator) -> None:
        self.rewriter.keep(self._read_operator(operator))
        base = operator.args[0] if operator.args else None
        if not isinstance(base, Ref):
            return
        if _is_identity(operator, self.rewriter.spec(self.current.get(base, base))):
            operator = replace(operator, kind="aten.alias.default", args=(base,), kwargs=())
        if operator.kind in _VIEWS | _MAYBE_VIEWS:
            for index in range(len(operator.outputs)):
                view = Ref(operator.name, index)
                self.views[view] = (base, operator)
                self.children.setdefault(base, []).append(view)

    def _write(self, operator: Operator) -> None:
        target = operator.args[0]
        assert isinstance(target, Ref)
        if isinstance(self.graph.producer(target), Parameter):
            raise UnsupportedError(
                f"{_where(operator)} writes to the parameter {target.name} in the model's forward; "
                "only optimizers may change parameters"
            )
        new = self._functional(operator, target)
        result = Ref(operator.name)
        alias = replace(operator, kind="aten.alias.default", args=(target,), kwargs=())
        self.views[result] = (target, alias)
        self.children.setdefault(target, []).append(result)
        self._assign(target, new, operator)
        self.current[result] = new
        self.stale.discard(result)

    def _assign(self, target: Ref, new: Ref, operator: Operator) -> None:
        """`new` is the value of `target` now, and of everything that shares its memory."""
        self.current[target] = new
        self.stale.discard(target)
        self._spoil(target, {target}, operator)
        seen = {target}
        while target in self.views:
            base, view = self.views[target]
            if view.kind in _MAYBE_VIEWS:
                self.poisoned[base] = _where(operator)
                break
            new = self._scatter(base, view, target, new, operator)
            self.current[base] = new
            self.stale.discard(base)
            seen.add(base)
            self._spoil(base, seen, operator)
            target = base

    def _spoil(self, base: Ref, keep: set[Ref], operator: Operator) -> None:
        for child in self.children.get(base, ()):
            if child in keep:
                continue
            if self.views[child][1].kind in _MAYBE_VIEWS:
                self.poisoned[child] = _where(operator)
            else:
                self.stale.add(child)
            self._spoil(child, keep, operator)

    def _scatter(self, base: Ref, view: Operator, target: Ref, new: Ref, operator: Operator) -> Ref:
        """The value of `base` after its view `target` has become `new`."""
        old = self.read(base)
        spec = self.rewriter.spec(old)
        add = self.rewriter.add
        if view.kind in _SAME:
            return new
        if view.kind in _RESHAPING:
            return add("aten.reshape.default", (new, spec.shape), spec, like=operator)
        if view.kind == "aten.transpose.int":
            return add("aten.transpose.int", (new, *view.args[1:]), spec, like=operator)
        if view.kind == "aten.t.default":
            return add("aten.t.default", (new,), spec, like=operator)
        if view.kind == "aten.permute.default":
            order = [_place(dim, len(spec.shape)) for dim in _tuple(view.args[1])]
            inverse = tuple(order.index(dim) for dim in range(len(order)))
            return add("aten.permute.default", (new, inverse), spec, like=operator)
        if view.kind == "aten.slice.Tensor":
            return add(
                "aten.slice_scatter.default", (old, new, *view.args[1:]), spec, like=operator
            )
        if view.kind == "aten.select.int":
            return add(
                "aten.select_scatter.default", (old, new, *view.args[1:]), spec, like=operator
            )
        if view.kind in (
            "aten.split.Tensor",
            "aten.chunk.default",
            "aten.split_with_sizes.default",
        ):
            dim = argument(view, 2, "dim", 0)
            assert isinstance(dim, int)
            sizes = [output.shape[dim] for output in view.outputs]
            start = sum(sizes[: target.index])
            stop = start + sizes[target.index]
            return add(
                "aten.slice_scatter.default", (old, new, dim, start, stop), spec, like=operator
            )
        raise UnsupportedError(
            f"{_where(operator)} writes through {view.kind}, which cannot be undone; write out of "
            "place"
        )

    def _functional(self, operator: Operator, target: Ref) -> Ref:
        """The new value of `target`, as functional operators."""
        found = _IN_PLACE.fullmatch(operator.kind)
        assert found is not None
        base, overload = found.group(2), found.group(3)
        spec = operator.outputs[0]
        if base in _RANDOM:
            raise UnsupportedError(
                f"{_where(operator)} fills a tensor with random numbers; a sharded program cannot "
                "repeat these; use dropout, or pass them as an input"
            )
        if base in ("zero", "fill") and overload != "Tensor":
            value = 0 if base == "zero" else operator.args[1]
            return self._full(spec, value, operator)
        if base in ("copy", "fill"):
            source = operator.args[1]
            if isinstance(source, Ref):
                return self._spread(self.read(source), spec, operator)
            return self._full(spec, source, operator)
        functional = self._read_operator(operator)
        kinds = [self.rewriter.spec(ref) for ref in functional.refs()]
        dtype = promoted(kinds) if len(kinds) > 1 and base in _PROMOTING else spec.dtype
        result = self.rewriter.keep(
            replace(
                functional,
                kind=f"aten.{base}.{overload}",
                outputs=(TensorSpec(spec.shape, dtype),),
            )
        )
        return result if dtype == spec.dtype else self._spread(result, spec, operator)

    def _full(self, spec: TensorSpec, value: Argument, operator: Operator) -> Ref:
        return self.rewriter.add(
            "aten.full.default", (spec.shape, value), spec, like=operator,
            kwargs=(("dtype", Dtype(spec.dtype)),),
        )  # fmt: skip

    def _spread(self, source: Ref, spec: TensorSpec, operator: Operator) -> Ref:
        """`source` cast and expanded to `spec`, as `copy_` does."""
        given = self.rewriter.spec(source)
        if given.dtype != spec.dtype:
            given = TensorSpec(given.shape, spec.dtype)
            source = self.rewriter.add(
                "aten.to.dtype", (source, Dtype(spec.dtype)), given, like=operator
            )
        if given.shape != spec.shape:
            source = self.rewriter.add(
                "aten.expand.default", (source, spec.shape), spec, like=operator
            )
        return source


_PROMOTING: Final = frozenset({"add", "sub", "mul", "div", "pow", "addcmul", "addcdiv", "lerp"})
"""In-place operators whose functional form promotes to the wider operand."""


def _tuple(value: Argument) -> tuple[Argument, ...]:
    assert isinstance(value, tuple)
    return value


def _place(value: Argument, rank: int) -> int:
    assert isinstance(value, int)
    return value % rank


def _is_identity(operator: Operator, given: TensorSpec) -> bool:
    """Whether torch returns the very tensor it was given: a cast to the same, dropout when off."""
    if operator.kind in _CASTS:
        return (
            operator.outputs[0].dtype == given.dtype and argument(operator, 4, "copy") is not True
        )
    if operator.kind == "aten.dropout.default":
        return operator.args[1] == 0 or argument(operator, 2, "train") is False
    return False


def _where(operator: Operator) -> str:
    return f"{operator.kind} in {operator.module_path or 'the model'} at {operator.source or '?'}"
