"""Emit the steps of a unit as a torch.fx GraphModule of local operators.

Placeholders: the sizes (B, S, ...: global), then the values that the unit reads, then, for each use
of a parameter, a function that makes its compute copy. It is called right before the first step
that reads the copy: the copy lives no longer than it is read, and autograd, which runs what was
recorded last first, hands on its gradient as soon as that is made. A `Call` becomes its aten
operator (or a library module), a `Move` a module with its own autograd redistribution. Size
arguments are computed from the global sizes, so one emitted program runs at every length of its
bucket.
"""

import builtins
import keyword
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx

from shardwise.ir.errors import UnsupportedError
from shardwise.ir.operator import Argument, Dtype, Operator, Ref
from shardwise.ir.program import Call, Move, UnitProgram, Use, value_name

_FACTORY_KEYWORDS = ("device", "pin_memory", "layout")
"""Keywords of a traced call that name where it was traced; the executor's device replaces them."""


@dataclass(frozen=True)
class EmittedUnit:
    """A unit's code and the order of its arguments and results."""

    module: fx.GraphModule
    sizes: tuple[str, ...]
    reads: tuple[str, ...]
    uses: tuple[Use, ...]
    writes: tuple[str, ...]


MakeModule = Callable[[Move | Call], torch.nn.Module]
"""Makes the module of a move, or of a call that a library function replaces."""


class _Emitter:
    """Builds one fx graph."""

    def __init__(
        self, unit: UnitProgram, sizes: Sequence[str], device: torch.device, make: MakeModule
    ) -> None:
        self.unit, self.device, self.make = unit, device, make
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.nodes: dict[str, fx.Node] = {}
        self.expressions: dict[sympy.Expr, fx.Node | int | float] = {}
        self.size_names = tuple(sizes)
        self.taken: set[str] = set()
        for name in sizes:
            self.nodes[f"size {name}"] = self.graph.placeholder(self.fresh(name))

    def fresh(self, name: str) -> str:
        """An identifier in lower case (fx knows no other) that nothing in the unit has yet."""
        wanted = _identifier(name).lower()
        if keyword.iskeyword(wanted) or hasattr(builtins, wanted):
            wanted += "_value"
        text = wanted
        count = 1
        while text in self.taken:
            count += 1
            text = f"{wanted}_{count}"
        self.taken.add(text)
        return text

    def placeholder(self, name: str) -> None:
        self.nodes[name] = self.graph.placeholder(self.fresh(name))

    def size(self, expression: sympy.Expr | int) -> fx.Node | int | float:
        """A node that computes an expression in the sizes, made once."""
        if isinstance(expression, int):
            return expression
        if expression.is_Number:
            return int(expression) if expression.is_Integer else float(expression)
        if expression not in self.expressions:
            self.expressions[expression] = self._compute(expression)
        return self.expressions[expression]

    def _compute(self, e: sympy.Expr) -> fx.Node | int | float:
        if e.is_Symbol:
            return self.nodes[f"size {e.name}"]
        if isinstance(e, sympy.floor):
            numerator, denominator = sympy.fraction(sympy.together(e.args[0]))
            return self._binary(operator.floordiv, numerator, denominator)
        if isinstance(e, sympy.ceiling):
            up = self.size(sympy.floor(-e.args[0]))
            return self.graph.call_function(operator.neg, (up,))
        if e.is_Add or e.is_Mul or (e.is_Pow and e.exp.is_negative):
            function = operator.add if e.is_Add else operator.mul
            numerator, denominator = sympy.fraction(sympy.together(e))
            if denominator != 1:  # a number, not a size: those are floors
                return self._binary(operator.truediv, numerator, denominator)
            first, *rest = e.as_ordered_terms() if e.is_Add else e.as_ordered_factors()
            node = self.size(first)
            for term in rest:
                node = self.graph.call_function(function, (node, self.size(term)))
            return node
        if e.is_Pow and e.exp.is_Number:
            return self.graph.call_function(operator.pow, (self.size(e.base), self.size(e.exp)))
        if isinstance(e, sympy.Max | sympy.Min):
            function = max if isinstance(e, sympy.Max) else min
            return self.graph.call_function(function, tuple(self.size(a) for a in e.args))
        if isinstance(e, sympy.Mod):
            return self._binary(operator.mod, *e.args)
        raise UnsupportedError(
            f"size expression {e} in unit {self.unit.name}: sizes are sums, products, "
            "floors, ceilings, powers, Max, Min and Mod; rewrite the model's size computation"
        )

    def _binary(self, function: Callable[[int, int], int], a: sympy.Expr, b: sympy.Expr) -> fx.Node:
        return self.graph.call_function(function, (self.size(a), self.size(b)))

    def argument(self, value: Argument) -> Any:
        """An argument of an operator as fx takes it."""
        if isinstance(value, Ref):
            return self.nodes[value_name(value.name, value.index)]
        if isinstance(value, tuple):
            return [self.argument(item) for item in value]
        if isinstance(value, Dtype):
            return getattr(torch, value.name)
        if isinstance(value, sympy.Expr):
            return self.size(value)
        if isinstance(value, str):
            return torch_attribute(value, self.device)
        return value

    def call(self, step: Call) -> None:
        op = step.operator
        if step.library is not None:
            inputs = tuple(self.nodes[value_name(r.name, r.index)] for r in op.refs())
            node = self._module(op.name, self.make(step), inputs)
            self.nodes[op.name] = node
            return
        kwargs: dict[str, Any] = {
            k: self.argument(v) for k, v in op.kwargs if k not in _FACTORY_KEYWORDS
        }
        target = aten(op)
        if any(a.name == "device" for a in target._schema.arguments) and not op.refs():
            kwargs["device"] = self.device
        node = self.graph.create_node(
            "call_function",
            target,
            tuple(self.argument(a) for a in op.args),
            kwargs,
            name=self.fresh(op.name),
        )
        if len(op.outputs) == 1 and not returns_list(target):
            self.nodes[op.name] = node
            return
        for index in range(len(op.outputs)):
            self.nodes[value_name(op.name, index)] = self.graph.call_function(
                operator.getitem, (node, index)
            )

    def use(self, step: Use) -> None:
        make = self.nodes[step.name]
        self.nodes[step.name] = self.graph.create_node(
            "call_function", operator.call, (make,), {}, name=self.fresh(f"{step.name}_copy")
        )

    def move(self, step: Move) -> None:
        sizes = tuple(self.nodes[f"size {name}"] for name in self.size_names)
        self.nodes[step.name] = self._module(
            step.name, self.make(step), (self.nodes[step.value], *sizes)
        )

    def _module(self, name: str, module: torch.nn.Module, inputs: tuple[fx.Node, ...]) -> fx.Node:
        target = self.fresh(name)
        self.root.add_module(target, module)
        return self.graph.create_node("call_module", target, inputs, {}, name=f"{target}_out")


def emit_unit(
    unit: UnitProgram, sizes: Sequence[str], device: torch.device, make: MakeModule
) -> EmittedUnit:
    """The unit's GraphModule; `sizes` are the graph's symbols, `make` builds moves and calls.

    Raises UnsupportedError for a size expression or an operator that torch does not know.
    """
    emitter = _Emitter(unit, sizes, device, make)
    uses = tuple(step for step in unit.steps if isinstance(step, Use))
    for name in unit.reads:
        emitter.placeholder(name)
    for use in uses:
        emitter.placeholder(use.name)
    for step in unit.steps:
        if isinstance(step, Call):
            emitter.call(step)
        elif isinstance(step, Move):
            emitter.move(step)
        else:
            emitter.use(step)
    emitter.graph.output(tuple(emitter.nodes[name] for name in unit.writes))
    module = fx.GraphModule(
        emitter.root, emitter.graph, class_name=f"Unit_{_identifier(unit.name)}"
    )
    return EmittedUnit(module, tuple(sizes), unit.reads, uses, unit.writes)


def aten(op: Operator) -> torch._ops.OpOverload:
    """The torch operator of a kind such as aten.linear.default; UnsupportedError if there is
    none."""
    target: object = torch.ops
    for part in op.kind.split("."):
        target = getattr(target, part, None)
    if not isinstance(target, torch._ops.OpOverload):
        raise UnsupportedError(
            f"operator {op.name} ({op.source}) has the kind {op.kind}, which this torch does not "
            "have; trace the model again with the installed torch"
        )
    return target


def returns_list(target: torch._ops.OpOverload) -> bool:
    """Whether an operator returns a list or several tensors."""
    returns = target._schema.returns
    return len(returns) > 1 or str(returns[0].type).startswith("List")


_ATTRIBUTES: Mapping[str, object] = {
    "torch.strided": torch.strided,
    "torch.contiguous_format": torch.contiguous_format,
    "torch.preserve_format": torch.preserve_format,
    "torch.channels_last": torch.channels_last,
}


def torch_attribute(text: str, device: torch.device) -> object:
    """A string argument as torch takes it: a layout or memory format, the device, or a string."""
    if text in _ATTRIBUTES:
        return _ATTRIBUTES[text]
    if re.fullmatch(r"(cpu|cuda|meta)(:\d+)?", text):
        return device
    return text


def _identifier(name: str) -> str:
    text = re.sub(r"\W", "_", name)
    return text if not text[:1].isdigit() else f"v{text}"
