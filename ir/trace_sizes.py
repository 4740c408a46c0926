"""Sizes of a trace as expressions in named symbols: torch's s72 becomes B, its FloorDiv a floor."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from shardwise.ir.errors import UntraceableModelError
from shardwise.ir.expression import format_expression, symbol

Where = Callable[[], str]
"""Says where in the model something stands; called only for an error."""


@dataclass
class Sizes:
    """The symbols of a trace and what they are called."""

    names: dict[sympy.Symbol, str]
    """torch's symbol -> name."""
    _known: dict[Any, int | sympy.Expr] = field(default_factory=dict)

    def size(self, expression: Any, where: Where) -> int | sympy.Expr:
        """An int, or an expression in the named symbols; UntraceableModelError otherwise."""
        if isinstance(expression, torch.SymInt):
            expression = expression.node.expr
        if type(expression) is int:
            return expression
        if expression not in self._known:
            made = self._rebuilt(expression, where)
            self._known[expression] = int(made) if made.is_Integer else made
        return self._known[expression]

    def number(self, expression: Any, where: Where) -> float | sympy.Expr:
        """A float that does not depend on sizes, or an expression that can be written."""
        made = self._rebuilt(expression, where)
        if made.is_number:
            return float(made)
        try:
            format_expression(made)
        except ValueError:
            raise UntraceableModelError(
                f"cannot trace {where()}: the number {expression} depends on a size in a way that "
                "no size expression holds; compute it as a tensor"
            ) from None
        return made

    def _rebuilt(self, e: sympy.Basic, where: Where) -> sympy.Expr:
        if isinstance(e, sympy.Symbol):
            if e not in self.names:
                raise UntraceableModelError(
                    f"cannot trace {where()}: a size ({e}) depends on the values of a tensor; use "
                    "shapes that follow from the shapes of the inputs"
                )
            return symbol(self.names[e])
        if isinstance(e, sympy.Number | sympy.NumberSymbol):
            return e
        args = [self._rebuilt(arg, where) for arg in e.args]
        if isinstance(e, sympy.Add | sympy.Mul | sympy.Pow | sympy.floor | sympy.ceiling):
            return e.func(*args)
        name = type(e).__name__
        if name in ("FloorDiv", "CleanDiv"):
            return sympy.floor(args[0] / args[1])
        if name in ("CeilDiv", "CeilToInt"):
            return sympy.ceiling(args[0] / args[1] if len(args) == 2 else args[0])
        if name in ("IntTrueDiv", "FloatTrueDiv"):
            return args[0] / args[1]
        if name in ("Mod", "PythonMod"):
            return sympy.Mod(args[0], args[1])
        if name == "ModularIndexing":
            return sympy.Mod(sympy.floor(args[0] / args[1]), args[2])
        if name in ("Max", "Min"):
            return (sympy.Max if name == "Max" else sympy.Min)(*args)
        if name in ("ToFloat", "TruncToInt", "FloorToInt", "Identity"):
            return sympy.floor(args[0]) if name.endswith("ToInt") else args[0]
        raise UntraceableModelError(
            f"cannot trace {where()}: the size {e} uses {name}, which no size expression holds; "
            "compute sizes with + - * // % min max"
        )
