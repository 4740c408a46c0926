"""What a program communicates: every message of a slot and of a step, before it is run.

The runtime runs the same steps through the same lowering, so these messages are EQUAL to those that
a communicator records (tests/planner/test_stated_is_executed.py). A slot is one micro-batch,
forward and backward; a step adds, once, the copies that live for a step and the reductions that
wait for its end.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from shardwise.ir.autograd_saves import SavesTable, UnitSaves
from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.layout import Layout, Shard
from shardwise.ir.lowering import lower
from shardwise.ir.mesh import Mesh
from shardwise.ir.parameter_choice import Lifetime
from shardwise.ir.program import Call, LocalProgram, Move, Step, UnitProgram, Use
from shardwise.ir.redistribution import CollectiveStep, step_bytes
from shardwise.ir.rest import Rest, copy_layout, stored_layout, uses_by_parameter
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.training import TrainingSpec
from shardwise.planner.sizes import number


@dataclass(frozen=True, slots=True)
class Message:
    """One collective over one group. Text: `all_gather x0,data 65536`."""

    kind: str
    axes: tuple[str, ...]
    """Axes of the group, in the flat order."""
    message_bytes_per_rank: int

    def __str__(self) -> str:
        return f"{self.kind} {','.join(self.axes)} {self.message_bytes_per_rank}"


Messages = Counter[Message]


@dataclass(frozen=True, slots=True)
class AtRest:
    """One parameter with the two layouts that follow from all buckets' uses of it."""

    rest: Rest
    stored: Layout
    copy: Layout


def at_rest(rests: Sequence[Rest], uses: Iterable[Use], mesh: Mesh) -> dict[str, AtRest]:
    """Parameters by name, the derived layouts taken over all buckets' uses."""
    of = uses_by_parameter(uses)
    return {
        rest.name: AtRest(
            rest,
            stored_layout(rest, of.get(rest.name, ()), mesh),
            copy_layout(of.get(rest.name, ())),
        )
        for rest in rests
    }


@dataclass(frozen=True)
class Traffic:
    """Counts messages of one bucket's program at concrete sizes."""

    program: LocalProgram
    parameters: Mapping[str, AtRest]
    training: TrainingSpec
    counts: Mapping[str, int] = field(default_factory=dict)
    """Where some parameters are alike: the name of one of each kind -> how many there are."""
    saves: SavesTable | None = None
    """Of the program; made where none is shared."""

    def __post_init__(self) -> None:
        if self.saves is None:
            table = SavesTable(self.program, self.training.trains)
            object.__setattr__(self, "saves", table)

    @property
    def mesh(self) -> Mesh:
        """The mesh of the program."""
        return self.program.mesh

    def slot(self, sizes: Mapping[str, int], recompute: Sequence[bool]) -> Messages:
        """All messages of one micro-batch; `recompute[i]` says whether unit i is recomputed."""
        total: Messages = Counter()
        for unit, again in zip(self.program.units, recompute, strict=True):
            total += self.unit(unit, sizes, recompute=again)
        return total

    def unit(self, unit: UnitProgram, sizes: Mapping[str, int], *, recompute: bool) -> Messages:
        """Messages of one unit in a micro-batch, forward and backward."""
        return self.activations(unit, sizes, recompute=recompute) + self.weights(
            unit, recompute=recompute
        )

    def activations(
        self, unit: UnitProgram, sizes: Mapping[str, int], *, recompute: bool
    ) -> Messages:
        """Messages of values; they depend on the sizes and on no parameter's rest."""
        total = self.forward_values(unit.steps, sizes) + self.backward_values(unit.steps, sizes)
        return total + self.forward_values(self.recomputed(unit), sizes) if recompute else total

    def forward_values(self, steps: Sequence[Step], sizes: Mapping[str, int]) -> Messages:
        """Messages of values in one forward of these steps."""
        total: Messages = Counter()
        for step in steps:
            if isinstance(step, Move):
                total.update(self._value(step, sizes, *_forward(step)))
            elif isinstance(step, Call) and step.library == "vocabulary_cross_entropy":
                total.update(self._class_parallel_loss(step, sizes))
        return total

    def backward_values(self, steps: Sequence[Step], sizes: Mapping[str, int]) -> Messages:
        """Messages of gradients of values in one backward of these steps."""
        total: Messages = Counter()
        for step in steps:
            if isinstance(step, Move) and step.needs_gradient:
                total.update(self._value(step, sizes, *_backward(step)))
        return total

    def weights(self, unit: UnitProgram, *, recompute: bool) -> Messages:
        """Messages of parameters; they depend on no size. Step-long copies are not among them."""
        total: Messages = Counter()
        uses = [step for step in unit.steps if isinstance(step, Use)]
        again = self.unit_saves(unit).opened
        if recompute:
            again = tuple(step for step in self.recomputed(unit) if isinstance(step, Use))
        for use in (*uses, *again):
            if self.parameters[use.parameter].rest.lifetime is Lifetime.USE:
                one = self.parameters[use.parameter]
                total.update(self._route(one.rest.master, use.layout.forward, use.spec))
        for use in uses:
            if self.training.trains(use.parameter):
                spec = TensorSpec(use.spec.shape, self.training.reduce_dtype)
                stored = self.parameters[use.parameter].stored
                total.update(self._route(use.layout.gradient, stored, spec))
        return total

    def step_copies(self) -> Messages:
        """Copies that live for a step, gathered once a step if any slot runs this bucket."""
        total: Messages = Counter()
        for name, dtype in sorted(self.copies()):
            one = self.parameters[name]
            spec = TensorSpec(one.rest.shape, dtype)
            for message in self._route(one.rest.master, one.copy, spec):
                total[message] += self.counts.get(name, 1)
        return total

    def entries(self) -> Iterator[tuple[AtRest, int]]:
        """One parameter of each kind, and how many there are."""
        for name, one in self.parameters.items():
            if not self.counts or name in self.counts:
                yield one, self.counts.get(name, 1)

    def copies(self) -> set[tuple[str, str]]:
        """(parameter, dtype) of the copies that live for a step or a micro-batch; one of a kind."""
        return {
            (step.parameter, step.spec.dtype)
            for step in self.program.steps()
            if isinstance(step, Use)
            and (not self.counts or step.parameter in self.counts)
            and self.parameters[step.parameter].rest.lifetime is not Lifetime.USE
        }

    def step_end(self) -> Messages:
        """Reductions that wait for the end of the step, accumulator to master."""
        total: Messages = Counter()
        for one, count in self.entries():
            if self.training.trains(one.rest.name):
                spec = TensorSpec(one.rest.shape, self.training.accumulate_dtype)
                for message in self._route(one.stored, one.rest.master, spec):
                    total[message] += count
        return total

    def unit_saves(self, unit: UnitProgram) -> UnitSaves:
        """What autograd keeps of a unit."""
        assert self.saves is not None
        return self.saves.of(unit)

    @property
    def gradients(self) -> frozenset[str]:
        """Values of the program that have a gradient."""
        assert self.saves is not None
        return self.saves.gradients

    def needs(self, call: Call) -> tuple[bool, ...]:
        """Which operands of a call need a gradient."""
        return tuple(ref.name in self.gradients for ref in call.operator.refs())

    def recomputed(self, unit: UnitProgram) -> tuple[Step, ...]:
        """The steps that a recomputed unit runs again: up to the last that saves."""
        return unit.steps[: self.unit_saves(unit).last + 1]

    def _value(
        self, move: Move, sizes: Mapping[str, int], source: Layout, target: Layout
    ) -> Iterator[Message]:
        if _is_symbolic(source) or _is_symbolic(target):
            source, target = source.at(sizes), target.at(sizes)
        shape = tuple(int(number(length, sizes)) for length in move.spec.shape)
        yield from _messages(source, target, shape, DTYPE_BYTES[move.spec.dtype], self.mesh)

    def _route(self, source: Layout, target: Layout, spec: TensorSpec) -> tuple[Message, ...]:
        shape = tuple(int(length) for length in spec.shape)
        return _messages(source, target, shape, DTYPE_BYTES[spec.dtype], self.mesh)

    def _class_parallel_loss(self, call: Call, sizes: Mapping[str, int]) -> Iterator[Message]:
        """The largest logit of each row, then the sum of exponentials and the target's logit."""
        assert call.library_axis is not None
        logits = call.operand_specs[0].at(sizes)
        layout = call.reads[0].forward.at(sizes)
        shape = tuple(int(length) for length in logits.shape)
        rows = layout.local_shape(shape, self.mesh, 0)[0]
        size = rows * DTYPE_BYTES[logits.dtype]
        yield Message("all_reduce", (call.library_axis,), size)
        yield Message("all_reduce", (call.library_axis,), 2 * size)


@lru_cache(maxsize=1 << 17)
def _messages(
    source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int, mesh: Mesh
) -> tuple[Message, ...]:
    """Messages of one redistribution of a tensor of concrete shape."""
    return tuple(
        Message(str(step.kind), step.axes, step_bytes(step, shape, itemsize, mesh))
        for step in _steps(source, target, mesh)
    )


@lru_cache(maxsize=1 << 14)
def _steps(source: Layout, target: Layout, mesh: Mesh) -> tuple[CollectiveStep, ...]:
    """The steps of a redistribution that send something."""
    return tuple(step for step in lower(source, target, mesh) if not step.is_local)


@lru_cache(maxsize=1 << 14)
def _is_symbolic(layout: Layout) -> bool:
    """Whether a cut depends on the sizes."""
    return any(
        isinstance(placement, Shard) and not isinstance(placement.outer, int)
        for _, placement in layout.entries
    )


def _forward(move: Move) -> tuple[Layout, Layout]:
    return move.source.forward, move.target.forward


def _backward(move: Move) -> tuple[Layout, Layout]:
    return move.target.gradient, move.source.gradient
