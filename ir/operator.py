"""Operator: one frozen node of an OperatorGraph."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import sympy

from shardwise.ir.argument import Argument as Argument
from shardwise.ir.argument import Dtype as Dtype
from shardwise.ir.argument import Ref as Ref
from shardwise.ir.argument import argument_text, check_argument, leaves, map_refs, scan_call
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.expression import format_expression, parse_expression
from shardwise.ir.scanner import Scanner, check_name, made, quote_name, shown
from shardwise.ir.tensor import TensorSpec, spec_of

_COSTS: Final = ("flops", "moved", "saved")
_BRACED: Final = re.compile(r"\{[^{}]*\}")
_SPEC: Final = re.compile(r"[a-z][a-z0-9_]*\[[^\[\]]*\]")
_FORM: Final = (
    "'add = aten.add.Tensor(%x, %y, alpha=2) -> float32[B, S] flops={B*S} module=layers.0'"
)


@dataclass(frozen=True, slots=True)
class Operator:
    """One call of the traced program, with its meaning on whole (global) tensors.

    `kind` is the aten target as printed ("aten.linear.default"). `outputs` are the tensors it
    returns, flat and in order, at least one; `Ref(name, index)` reads them. Whether the call
    returns a tensor or a list of one follows from the schema of its kind. Costs are of the
    whole operator on whole tensors, forward only. Raises InvalidValueError where a field is not
    of the stated form.

    Text: `add = aten.add.Tensor(%x, %y, alpha=2) -> float32[B, S] flops={B*S} moved={12*B*S}
    saved={...} module=layers.0 source="model.py:12"` on one line; zero costs and empty strings
    are left out, size expressions stand in braces.
    """

    name: str
    kind: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...]
    """Keyword arguments in the order of the call; keys are identifiers, each once."""
    outputs: tuple[TensorSpec, ...]
    module_path: str = ""
    """Dotted path of the module that made the call ("layers.0.attention"); "" is the model."""
    source: str = ""
    """Where the model's code made the call ("model.py:12"); never part of a digest."""
    flops: sympy.Expr = sympy.S.Zero
    """Floating point operations, forward, global."""
    moved_bytes: sympy.Expr = sympy.S.Zero
    """Bytes read plus bytes written, forward, global."""
    saved_bytes: sympy.Expr = sympy.S.Zero
    """Bytes that stay alive for the backward, global."""

    def __post_init__(self) -> None:
        check_name(self.name, "an operator")
        check_name(self.kind, f"the kind of operator {shown(self.name)}")
        where = f"operator {shown(self.name)}"
        if type(self.args) is not tuple or type(self.kwargs) is not tuple:
            raise InvalidValueError(
                f"{where} has args {shown(self.args)} and kwargs {shown(self.kwargs)}: both "
                "are tuples, "
                "kwargs of (key, argument) pairs; convert them"
            )
        args = check_argument(self.args, where, depth=-1)
        object.__setattr__(self, "args", args)
        if self.kwargs:
            object.__setattr__(self, "kwargs", _checked_kwargs(self.kwargs, where))
        if (
            type(self.outputs) is not tuple
            or not self.outputs
            or not all(isinstance(spec, TensorSpec) for spec in self.outputs)
        ):
            raise InvalidValueError(
                f"{where} has outputs {shown(self.outputs)}: an operator has one TensorSpec or "
                "more in a "
                "tuple; drop calls that return no tensor"
            )
        if type(self.module_path) is not str or type(self.source) is not str:
            raise InvalidValueError(
                f"{where} has module_path {shown(self.module_path)} and source "
                f"{shown(self.source)}: "
                'both are str; use "" where unknown'
            )
        for cost in (self.flops, self.moved_bytes, self.saved_bytes):
            _check_cost(cost, where)

    def arguments(self) -> Iterator[Argument]:
        """All leaves of args, then of kwargs, in order."""
        yield from leaves(self.args)
        for _, argument in self.kwargs:
            yield from leaves(argument)

    def refs(self) -> tuple[Ref, ...]:
        """The values that it reads, in order, repeats included."""
        return tuple(leaf for leaf in self.arguments() if type(leaf) is Ref)

    def with_refs(self, change: Callable[[Ref], Argument]) -> "Operator":
        """The operator that reads `change(ref)` in place of every reference."""
        return replace(
            self,
            args=tuple(map_refs(argument, change) for argument in self.args),
            kwargs=tuple((key, map_refs(argument, change)) for key, argument in self.kwargs),
        )

    def call_text(self, write_ref: Callable[[Ref], str] = str) -> str:
        """`kind(args, key=arg)`, references written by `write_ref`."""
        parts = [argument_text(argument, write_ref) for argument in self.args]
        parts += [f"{key}={argument_text(value, write_ref)}" for key, value in self.kwargs]
        return f"{quote_name(self.kind)}({', '.join(parts)})"

    def __str__(self) -> str:
        parts = [f"{quote_name(self.name)} = {self.call_text()} -> "]
        parts.append(", ".join(map(str, self.outputs)))
        for key, cost in zip(_COSTS, (self.flops, self.moved_bytes, self.saved_bytes), strict=True):
            if cost != 0:
                parts.append(f" {key}={{{format_expression(cost)}}}")
        if self.module_path:
            parts.append(f" module={quote_name(self.module_path)}")
        if self.source:
            parts.append(f" source={quote_name(self.source)}")
        return "".join(parts)

    @classmethod
    def parse(cls, text: str) -> "Operator":
        """The operator that prints as `text`; raises ParseError."""
        scanner = Scanner(text, _FORM)
        name = scanner.name()
        scanner.expect(" = ")
        kind = scanner.name()
        args, kwargs = scan_call(scanner)
        scanner.expect(" -> ")
        outputs = [spec_of(scanner.need(_SPEC, "a tensor such as float32[B, S]"))]
        while scanner.take(", "):
            outputs.append(spec_of(scanner.need(_SPEC, "a tensor such as float32[B, S]")))
        costs = [
            parse_expression(scanner.need(_BRACED, "{expression}")[1:-1])
            if scanner.take(f" {key}=")
            else sympy.S.Zero
            for key in _COSTS
        ]
        module_path = scanner.name() if scanner.take(" module=") else ""
        source = scanner.name() if scanner.take(" source=") else ""
        scanner.end()
        return made(
            text, cls, name, kind, args, kwargs, tuple(outputs), module_path, source, *costs
        )


def _checked_kwargs(kwargs: tuple[object, ...], where: str) -> tuple[tuple[str, Argument], ...]:
    checked: list[tuple[str, Argument]] = []
    for pair in kwargs:
        if type(pair) is not tuple or len(pair) != 2:
            raise InvalidValueError(
                f"{where} has the keyword argument {shown(pair)}: give (key, argument) pairs"
            )
        key, value = pair
        if type(key) is not str or not (key.isidentifier() and key.isascii()):
            raise InvalidValueError(
                f"{where} has the keyword {shown(key)}: keywords are ASCII identifiers; rename it"
            )
        checked.append((key, check_argument(value, f"{where}, {key}=")))
    if len({key for key, _ in checked}) != len(checked):
        raise InvalidValueError(
            f"{where} has the keywords {shown([key for key, _ in checked])}: each may come "
            "once; "
            "drop the repeats"
        )
    return tuple(checked)


def _check_cost(cost: object, where: str) -> None:
    if cost is sympy.S.Zero:
        return
    if not isinstance(cost, sympy.Expr):
        raise InvalidValueError(
            f"{where} has the cost {shown(cost)}: costs are sympy expressions; use sympy.Integer"
        )
    if cost.is_number and not cost.is_nonnegative:
        raise InvalidValueError(
            f"{where} has the cost {shown(cost)}: costs are finite and not negative; correct it"
        )
    format_expression(cost)
