"""The registry of operator rules: how one operator computes when one mesh axis is split.

A rule sees one axis at a time. It is given the operator, the current state of each of its tensor
operands on that axis and the axis's `Setting` (size, role), and answers with the state in which it
reads each operand and the state of each output. Rules keep the GLOBAL meaning of the operator:
sharding lives in the states alone (docs/design/emission.md).

Rules of a family stand in one file (`rules_pointwise`, `rules_matmul`, `rules_view`, ...) and
register their operator kinds here. A kind without a rule reads and writes whole tensors; it is
listed by `coverage` and priced as such, never an error.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import sympy

from shardwise.ir.axis_state import ADDEND, READ, WHOLE, AxisState, Sharded, Size
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.operator import Argument, Operator, Ref
from shardwise.ir.strategy import Role
from shardwise.ir.tensor import TensorSpec

SEQUENCE_PREFIX = "S"
"""Symbols of sequence lengths start with S (S, S_src, S_tgt); the batch symbol is B."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor operand of an operator, as a rule sees it on one axis."""

    path: tuple[str | int, ...]
    """Where it stands: ("args", 0), ("args", 0, 2) inside a list, or ("kwargs", "attn_mask")."""
    spec: TensorSpec
    """The global shape and dtype."""
    state: AxisState
    needs_gradient: bool
    is_parameter: bool


@dataclass(frozen=True, slots=True)
class Setting:
    """One mesh axis of a strategy: its size and role, and the symbols padded to a multiple of
    it."""

    axis: str
    size: int
    role: Role
    sequence_home: bool = False
    """Hidden states rest sharded over the sequence on this axis (tensor_sequence, ulysses)."""

    def divides(self, length: Size) -> bool:
        """Whether a dim of this length can be cut evenly: a multiple, or a padded symbol in it.

        The batch symbol is a multiple of the axis where its role is batch, sequence symbols where
        hidden states rest sharded over the sequence; the executor pads to that.
        """
        if isinstance(length, int) or length.is_Integer:
            return int(length) % self.size == 0
        coefficient, factors = length.as_coeff_mul()
        if coefficient.is_Integer and int(coefficient) % self.size == 0:
            return all(factor.is_Symbol or factor.is_Pow for factor in factors)
        return coefficient.is_Integer is True and any(
            factor.is_Symbol and self._is_padded(factor.name) for factor in factors
        )

    def _is_padded(self, symbol: str) -> bool:
        if symbol == "B":
            return self.role is Role.BATCH
        return symbol.startswith(SEQUENCE_PREFIX) and self.sequence_home

    def home(self, spec: TensorSpec) -> AxisState:
        """Where a hidden state of this shape rests between operators on this axis."""
        if self.role is Role.BATCH:
            return self._home_of("B", spec)
        if self.sequence_home:
            return self._home_of(SEQUENCE_PREFIX, spec)
        return WHOLE

    def _home_of(self, prefix: str, spec: TensorSpec) -> AxisState:
        for dim, length in enumerate(spec.shape):
            if isinstance(length, int) or length.is_Integer:
                continue
            outer: Size = 1
            factors = length.as_ordered_factors()
            for factor in sorted(factors, key=lambda f: str(f) != "B"):
                if factor.is_Symbol and factor.name.startswith(prefix):
                    return Sharded(dim, outer)
                outer = factor * outer
        return WHOLE


@dataclass(frozen=True, slots=True)
class Decision:
    """How the operator computes on this axis."""

    reads: tuple[AxisState, ...]
    """One state per operand, in the order of the operands."""
    writes: tuple[AxisState, ...]
    """One state per output."""
    library: str | None = None
    """Name of the runtime library function that replaces the operator on this axis, if any."""
    afterwards: AxisState | None = None
    """State to which the (single) output is moved at once, where the strategy wants it there."""


@dataclass(frozen=True)
class Operands:
    """The operands of one operator, addressed by argument position or keyword."""

    operator: Operator
    values: tuple[Operand, ...]
    setting: Setting
    _by_path: dict[tuple[str | int, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, value in enumerate(self.values):
            self._by_path[value.path] = index

    def index(self, position: int, keyword: str | None = None) -> int | None:
        """Index of the tensor operand at this position (or keyword), None if it is not a tensor."""
        found = self._by_path.get(("args", position))
        if found is None and keyword is not None:
            found = self._by_path.get(("kwargs", keyword))
        return found

    def index_in(self, position: int, place: int) -> int:
        """Index of the tensor operand at this place of a list argument."""
        return self._by_path["args", position, place]

    def at(self, position: int, keyword: str | None = None) -> Operand:
        """The tensor operand at this position; InvalidValueError where there is none."""
        found = self.index(position, keyword)
        if found is None:
            raise InvalidValueError(
                f"{self.operator.kind} at {self.operator.source}: argument {position} is not a "
                "tensor; the rule of this kind must not be used here"
            )
        return self.values[found]

    def argument(self, position: int, keyword: str, default: Argument = None) -> Argument:
        """A non-tensor argument by position or keyword, or its default."""
        if position < len(self.operator.args):
            return self.operator.args[position]
        return dict(self.operator.kwargs).get(keyword, default)

    def decide(self, reads: dict[int, AxisState], *writes: AxisState, **extra: object) -> Decision:
        """A decision from a sparse dict of reads; operands that it leaves out are read whole."""
        states = tuple(reads.get(i, WHOLE) for i in range(len(self.values)))
        return Decision(states, writes, **extra)  # type: ignore[arg-type]


Rule = Callable[[Operands], Decision]
RULES: dict[str, Rule] = {}
"""Operator kind -> rule. Filled by the `rules_*` modules through `rule`."""


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Register a rule for these operator kinds; a kind registered twice is an error."""

    def register(function: Rule) -> Rule:
        for kind in kinds:
            if kind in RULES:
                raise InvalidValueError(
                    f"operator kind {kind} has two rules; keep one of {RULES[kind].__module__} "
                    f"and {function.__module__}"
                )
            RULES[kind] = function
        return function

    return register


def whole(operands: Operands) -> Decision:
    """The fallback: every operand is read whole and every output is written whole."""
    return operands.decide({}, *(WHOLE for _ in operands.operator.outputs))


def refs(
    value: Argument, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], Ref]]:
    """Every `Ref` inside an argument with its path, depth first."""
    if isinstance(value, Ref):
        yield path, value
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from refs(item, (*path, index))


def operator_refs(operator: Operator) -> Iterator[tuple[tuple[str | int, ...], Ref]]:
    """Every tensor operand of an operator with its path, positional arguments first."""
    for index, value in enumerate(operator.args):
        yield from refs(value, ("args", index))
    for keyword, value in operator.kwargs:
        yield from refs(value, ("kwargs", keyword))


def is_sharded(state: AxisState) -> bool:
    """Whether the state is a shard."""
    return isinstance(state, Sharded)


def resolved(operand: Operand, setting: Setting) -> AxisState:
    """The state after a pending sum is taken: an ADDEND goes home, anything else stays."""
    return setting.home(operand.spec) if operand.state is ADDEND else operand.state


def companion(state: AxisState) -> AxisState:
    """How a whole operand is read beside work in `state`: READ beside shards, else WHOLE."""
    return READ if is_sharded(state) else WHOLE


def product(sizes: tuple[Size, ...]) -> sympy.Expr:
    """Product of sizes as an expression."""
    total = sympy.Integer(1)
    for size in sizes:
        total = total * size
    return total
