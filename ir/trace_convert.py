"""From the fx graph of `torch.export` to frozen operators, at once and for good.

Sizes become expressions in the named symbols and are folded into the arguments that use them, so
no node computes a size; regions without gradient are inlined, with a `detach` on what leaves them;
assertions are dropped. Meaning and order are otherwise those of the trace.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import getitem
from pathlib import PurePath
from typing import Any, Final

import torch
from torch import fx

from shardwise.ir.argument import Argument, Dtype, Ref
from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.errors import UntraceableModelError
from shardwise.ir.operator import Operator
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.trace_sizes import Sizes

_DROPPED: Final = frozenset({
    "aten._assert_tensor_metadata.default", "aten._assert_scalar.default",
    "aten._assert_async.msg", "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default", "aten.sym_size.int", "aten.sym_numel.default",
    "aten.sym_stride.int", "aten._local_scalar_dense.default",
})  # fmt: skip
"""Calls without a tensor result: checks of the trace, and sizes, which become expressions."""
_SCALARS: Final = (torch.SymInt, torch.SymFloat, torch.SymBool, int)
_PLACES: Final = frozenset({"device", "pin_memory", "layout"})
"""Keywords that say where a tensor lives; the emitter decides that."""
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_LIBRARY: Final = re.compile(
    r"[/\\]torch[/\\](?!.*[/\\]tests?[/\\])|[/\\]shardwise[/\\]ir[/\\]trace"
)
_REPEATED: Final = re.compile(r"@\d+")


@dataclass
class Converter:
    """Turns the nodes of one fx graph, and of the graphs inside it, into operators.

    `sources` maps a placeholder to what it stands for. Raises UntraceableModelError for what the
    frozen form cannot hold, with the source line.
    """

    sizes: Sizes
    sources: Mapping[str, Ref]
    module_prefix: str
    """Prefix of module paths that is not the model's own ("model."), cut off."""
    taken: set[str]
    """Names that operators may not have."""
    operators: list[Operator] = field(default_factory=list)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    _specs: dict[Any, TensorSpec] = field(default_factory=dict)
    _places: dict[str, str] = field(default_factory=dict)

    def convert(self, graph: fx.Graph) -> list[Any]:
        """Convert a whole graph; returns its outputs as references, constants or lists of them."""
        for node in graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self.sources[node.name]
        outputs = self._walk(graph)
        return [
            item if isinstance(item, Ref) else self.constant("output", item, TensorSpec((), kind))
            for item in outputs
            if item is not None
            for kind in ["float32" if isinstance(item, float) else "int64"]
        ]

    def constant(self, name: str, value: Argument, spec: TensorSpec) -> Ref:
        """A new operator that makes a tensor of one value, a number or a size."""
        name = self._name(name)
        self.operators.append(
            Operator(
                name,
                "aten.full.default",
                (spec.shape, value),
                (("dtype", Dtype(spec.dtype)),),
                (spec,),
            )
        )
        return Ref(name)

    def _walk(self, graph: fx.Graph) -> list[Any]:
        outputs: list[Any] = []
        for node in graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "get_attr":
                self.values[node] = getattr(graph.owning_module, str(node.target))
            elif node.op == "output":
                outputs = [self._output(item, node) for item in node.args[0]]
        return outputs

    def _output(self, item: Any, node: fx.Node) -> Any:
        return self._argument(item, node) if isinstance(item, fx.Node) else item

    def _call(self, node: fx.Node) -> None:
        target = node.target
        kind = str(target)
        if target is getitem:
            self.values[node] = self._item(node)
        elif kind in _DROPPED or isinstance(node.meta.get("val"), _SCALARS):
            return
        elif kind in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            self._inline(node, kind)
        elif isinstance(target, torch._ops.OpOverload):
            self._operator(node, target)
        else:
            raise UntraceableModelError(
                f"cannot trace {self._where(node)}: {kind} is control flow that the frozen graph "
                "does not hold; write it with tensor operators such as torch.where"
            )

    def _item(self, node: fx.Node) -> Any:
        base, index = node.args
        assert isinstance(base, fx.Node) and isinstance(index, int)
        value = self.values.get(base)
        if isinstance(value, list):
            return value[index]
        assert isinstance(value, Ref)
        return Ref(value.name, index)

    def _inline(self, node: fx.Node, kind: str) -> None:
        """Nodes of a region without gradient, or of one with autocast off, one by one."""
        if kind == "wrap_with_autocast":
            _, _, enabled, _, body, *operands = node.args
            if enabled:
                assert isinstance(body, fx.Node)
                inside: fx.Graph = self.values[body].graph
                place = next(n for n in inside.nodes if n.meta.get("stack_trace"))
                raise UntraceableModelError(
                    f"cannot trace {self._where(place)}: autocast is on inside the model; train in "
                    "a compute dtype (TrainingSpec.compute_dtype) instead"
                )
            detaches = False
        else:
            enabled, body, *operands = node.args
            detaches = not enabled
        assert isinstance(body, fx.Node)
        inner: fx.GraphModule = self.values[body]
        holders = [n for n in inner.graph.nodes if n.op == "placeholder"]
        for holder, operand in zip(holders, operands, strict=True):
            assert isinstance(operand, fx.Node)
            if operand in self.values:
                self.values[holder] = self.values[operand]
        first = len(self.operators)
        outputs = self._walk(inner.graph)
        made = {operator.name for operator in self.operators[first:]}
        if detaches:
            outputs = [
                self._detached(ref, node) if isinstance(ref, Ref) and ref.name in made else ref
                for ref in outputs
            ]
        self.values[node] = outputs

    def _detached(self, ref: Ref, node: fx.Node) -> Ref:
        spec = next(o for o in reversed(self.operators) if o.name == ref.name).outputs[ref.index]
        name = self._name(f"{ref.name}_detached")
        self.operators.append(
            Operator(
                name,
                "aten.detach.default",
                (ref,),
                (),
                (spec,),
                self._path(node),
                self._place(node),
            )
        )
        return Ref(name)

    def _operator(self, node: fx.Node, target: Any) -> None:
        outputs = self._outputs(node)
        if not outputs:
            return
        kwargs = tuple(
            (key, self._argument(value, node))
            for key, value in node.kwargs.items()
            if key not in _PLACES
        )
        name = self._name(node.name)
        self.operators.append(
            Operator(
                name,
                str(target),
                tuple(self._argument(value, node) for value in node.args),
                kwargs,
                outputs,
                self._path(node),
                self._place(node),
            )
        )
        self.values[node] = Ref(name)

    def _name(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self.taken:
            count += 1
            name = f"{wanted}_{count}"
        self.taken.add(name)
        return name

    def _outputs(self, node: fx.Node) -> tuple[TensorSpec, ...]:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            return (self.spec(value, node),)
        if value is None:
            return ()
        if isinstance(value, tuple | list) and all(isinstance(v, torch.Tensor) for v in value):
            return tuple(self.spec(item, node) for item in value)
        raise UntraceableModelError(
            f"cannot trace {self._where(node)}: {node.target} returns {type(value).__name__} with "
            "more than tensors; use an operator that returns tensors"
        )

    def spec(self, tensor: torch.Tensor, node: fx.Node) -> TensorSpec:
        """Shape and dtype of a fake tensor, in the named symbols."""
        sizes: tuple[Any, ...] = tuple(tensor.shape)
        dims = tuple(size if type(size) is int else size.node.expr for size in sizes)
        key = (dims, tensor.dtype)
        if key not in self._specs:
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in DTYPE_BYTES:
                raise UntraceableModelError(
                    f"cannot trace {self._where(node)}: dtype {dtype} is not one of "
                    f"{', '.join(DTYPE_BYTES)}; cast to one of these"
                )
            self._specs[key] = TensorSpec(
                tuple(self.sizes.size(dim, lambda: self._where(node)) for dim in dims), dtype
            )
        return self._specs[key]

    def _argument(self, value: Any, node: fx.Node) -> Argument:
        if isinstance(value, fx.Node):
            found = self.values.get(value)
            if found is not None:
                assert isinstance(found, Ref)
                return found
            return self._scalar(value.meta.get("val"), node)
        if isinstance(value, tuple | list):
            return tuple(self._argument(item, node) for item in value)
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, torch.dtype):
            return Dtype(str(value).removeprefix("torch."))
        if isinstance(value, torch.device | torch.layout | torch.memory_format):
            return str(value)
        return self._scalar(value, node)

    def _scalar(self, value: Any, node: fx.Node) -> Argument:
        """A size as an expression; other symbolic scalars have no place in a frozen graph."""
        if type(value) in (bool, int, float):
            return value
        if isinstance(value, torch.SymInt):
            return self.sizes.size(value.node.expr, lambda: self._where(node))
        if isinstance(value, torch.SymFloat):
            return self.sizes.number(value.node.expr, lambda: self._where(node))
        raise UntraceableModelError(
            f"cannot trace {self._where(node)}: the argument {value!r} of {node.target} is no "
            "tensor, size, number or dtype; use tensor operators"
        )

    def _path(self, node: fx.Node) -> str:
        stack = node.meta.get("nn_module_stack")
        if not stack:
            return ""
        path = _REPEATED.sub("", str(list(stack.values())[-1][0]))
        if path + "." == self.module_prefix:
            return ""
        return path.removeprefix(self.module_prefix) if path.isprintable() else ""

    def _place(self, node: fx.Node) -> str:
        """The innermost line of the model's own code, as file name and line number."""
        trace = node.meta.get("stack_trace") or ""
        if trace not in self._places:
            self._places[trace] = source_line(trace)
        return self._places[trace]

    def _where(self, node: fx.Node) -> str:
        path, place = self._path(node), self._place(node)
        return f"module {path or '(the model)'} at {place or 'an unknown line'}"


def source_line(trace: str) -> str:
    """`file.py:12` of the innermost frame that is not torch's or ours; "" if there is none."""
    frames: Sequence[tuple[str, str, str]] = _FRAME.findall(trace)
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    return f"{PurePath(own[-1][0]).name}:{own[-1][1]}" if own else ""
