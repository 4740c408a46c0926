"""What the units of a local program keep alive for the backward, before they are run.

The rules per operator are those of ir/saved_rules.py, applied to local shapes: each unit is
followed with the storages and strides that its values have on one rank. Needed to state three
things: bytes per rank that a slot keeps (planner/memory_model.py), which gathered weights a
backward opens again (runtime/regather.py), and where recomputation of a unit stops
(torch.utils.checkpoint stops as soon as it has the last tensor that the unit saved: before a
product's kernel, whose operands autograd saves first). Tests count all three on executed programs
(tests/planner/test_stated_work.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import sympy

from shardwise.ir.flops import is_product, nbytes
from shardwise.ir.layout import Layout, Shard
from shardwise.ir.lowering import lower
from shardwise.ir.mesh import Mesh
from shardwise.ir.operator import Operator, Ref
from shardwise.ir.program import (
    Call,
    LocalProgram,
    Move,
    Step,
    UnitProgram,
    Use,
    local_spec,
    made_by,
)
from shardwise.ir.redistribution import CollectiveStep, StepKind
from shardwise.ir.saved_rules import saved_items
from shardwise.ir.saved_tracker import Extra, Place, Saved, Tracker
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.unit_programs import read_by

_SAMPLE: Final = (1009, 2003, 3001, 4001)
"""Local sizes of the symbols at which strides are compared: products are equal there only if they
always are. Times the ranks of the mesh they are global sizes that every cut divides."""


@dataclass(frozen=True, slots=True)
class Followed:
    """Which storages a step reads, writes and lets autograd keep, by name."""

    step: Step
    reads: tuple[str, ...]
    """Of each operand; a use reads none."""
    writes: tuple[str, ...]
    """Of each result: a view's is that of its base."""
    saved: tuple[str, ...]
    """Kept for the backward; a parameter's compute copy goes by the name of its use."""
    extra: sympy.Expr
    """Bytes of tensors made only to be kept."""


@dataclass(frozen=True, slots=True)
class UnitSaves:
    """What autograd keeps of one unit, in bytes per rank as expressions of the global sizes."""

    own: sympy.Expr
    """Storages that the unit makes and no other unit reads, and tensors made only to be saved."""
    shared: Mapping[str, sympy.Expr]
    """Storages that other units read or make, by the name of a value of theirs."""
    roots: Mapping[str, tuple[str, sympy.Expr]]
    """Value that the unit writes -> (the value that names its storage, its bytes)."""
    inputs: Mapping[str, sympy.Expr]
    """Values that the unit reads, which a recomputed unit keeps."""
    opened: tuple[Use, ...]
    """Uses whose compute copy is saved, in the order of saving."""
    last: int
    """Index of the last step that a recomputation runs to its end; -1 if none."""
    steps: tuple[Followed, ...]
    storages: Mapping[str, sympy.Expr]
    """Bytes of every storage that the steps name."""


class SavesTable:
    """The saves of a program's units, each followed once; `trains` says what parameters train."""

    def __init__(self, program: LocalProgram, trains: Callable[[str], bool]) -> None:
        self.mesh = program.mesh
        self.gradients = frozenset(
            name
            for step in program.steps()
            if (trains(step.parameter) if isinstance(step, Use) else step.needs_gradient)
            for name in made_by(step)
        )
        """Values with a gradient."""
        self._known: dict[int, tuple[UnitProgram, UnitSaves]] = {}

    def of(self, unit: UnitProgram) -> UnitSaves:
        """The saves of a unit of the program, told by its identity."""
        known = self._known.get(id(unit))
        if known is None:
            saves = _Follower(unit, self.mesh, self.gradients).run()
            known = self._known[id(unit)] = (unit, saves)
        return known[1]


class _LocalTracker(Tracker):
    """Storages and strides of one unit's values on a rank, added as the steps make them."""

    def __init__(self, sizes: dict[str, int], trained: frozenset[str]) -> None:
        self.sizes, self.trained = sizes, trained
        self.places, self.storages = {}, {}
        self.specs: dict[Ref, TensorSpec] = {}

    def spec(self, ref: Ref) -> TensorSpec:
        """Local shape and dtype."""
        return self.specs[ref]

    def add(self, name: str, spec: TensorSpec, place: Place | None = None) -> None:
        """Note a value that a step or an earlier unit makes; in memory of its own by default."""
        self.specs[Ref(name)] = spec
        self._allocate(Ref(name), spec)
        if place is not None:
            del self.storages[name]
            self.places[Ref(name)] = place


class _Follower:
    """Follows the steps of one unit in order."""

    def __init__(self, unit: UnitProgram, mesh: Mesh, gradients: frozenset[str]) -> None:
        self.unit, self.mesh = unit, mesh
        symbols = {
            str(symbol)
            for spec in _specs(unit)
            for size in spec.shape
            if isinstance(size, sympy.Expr)
            for symbol in size.free_symbols
        }
        sizes = {
            name: mesh.world_size * sample
            for name, sample in zip(sorted(symbols), _SAMPLE, strict=False)
        }
        self.tracker = _LocalTracker(sizes, gradients)
        self.uses: dict[str, Use] = {}
        self.saved: dict[str, sympy.Expr] = {}
        self.opened: dict[str, Use] = {}
        self.extra: sympy.Expr = sympy.S.Zero
        self.steps: list[Followed] = []

    def run(self) -> UnitSaves:
        """What is saved."""
        last = -1
        for index, step in enumerate(self.unit.steps):
            items: list[Saved] = []
            if isinstance(step, Use):
                self.uses[step.name] = step
                self._add(step.name, step.spec, step.layout.forward)
            elif isinstance(step, Move):
                self._move(step)
            else:
                items = self._call(step)
                if items:
                    last = index if _has_run(step, items) else index - 1
            self._note(step, items)
        places = self.tracker.places
        roots = {
            name: places[Ref(name)].storage if Ref(name) in places else name
            for name in self.unit.writes
        }
        crossing = {*self.unit.reads, *roots.values()}
        own = (size for name, size in self.saved.items() if name not in crossing)
        return UnitSaves(
            sympy.Add(self.extra, *own),
            {name: size for name, size in self.saved.items() if name in crossing},
            {name: (root, self.tracker.storages[root]) for name, root in roots.items()},
            {name: nbytes(self.tracker.specs[Ref(name)]) for name in self.unit.reads},
            tuple(self.opened.values()),
            last,
            tuple(self.steps),
            dict(self.tracker.storages),
        )

    def _note(self, step: Step, items: Sequence[Saved]) -> None:
        """Note the storages of a step that has been followed."""
        places = self.tracker.places
        extra = (nbytes(item.spec) for item in items if isinstance(item, Extra))
        self.steps.append(
            Followed(
                step,
                tuple(places[Ref(name)].storage for name in read_by(step)),
                tuple(places[Ref(name)].storage for name in made_by(step)),
                tuple(places[item].storage for item in items if not isinstance(item, Extra)),
                sympy.Add(*extra),
            )
        )

    def _add(self, name: str, spec: TensorSpec, layout: Layout) -> None:
        if Ref(name) not in self.tracker.specs:
            self.tracker.add(name, local_spec(spec, layout, self.mesh))

    def _move(self, step: Move) -> None:
        """A cut in one piece is a view of what is cut; anything else is new memory."""
        source, target = step.source.forward, step.target.forward
        self._add(step.value, step.spec, source)
        place: Place | None = self.tracker.places[Ref(step.value)]
        size = self.tracker.storages[place.storage] if place else sympy.S.Zero
        for one in lower(source, target, self.mesh):
            copied = _copied(one) if one.kind is StepKind.SLICE else one.target
            if copied is not None:
                place, size = None, nbytes(local_spec(step.spec, copied, self.mesh))
        self.tracker.add(step.name, local_spec(step.spec, target, self.mesh), place)
        if place is None:
            self.tracker.storages[step.name] = size

    def _call(self, step: Call) -> list[Saved]:
        """Follow a call; what autograd saves of it."""
        tracker = self.tracker
        for ref, spec, layout in zip(
            step.operator.refs(), step.operand_specs, step.reads, strict=True
        ):
            self._add(ref.name, spec, layout.forward)
        outputs = tuple(
            local_spec(spec, layout.forward, self.mesh)
            for spec, layout in zip(step.operator.outputs, step.writes, strict=True)
        )
        operator = replace(step.operator, outputs=outputs)
        for index, name in enumerate(made_by(step)):
            tracker.specs[Ref(operator.name, index)] = tracker.specs[Ref(name)] = outputs[index]
        tracker.lay_out(operator)
        for index, name in enumerate(made_by(step)):
            tracker.places[Ref(name)] = tracker.places[Ref(operator.name, index)]
        if not step.needs_gradient:
            return []
        items = list(_saved(tracker, step, operator))
        for item in items:
            self._keep(item)
        return items

    def _keep(self, item: Saved) -> None:
        if isinstance(item, Extra):
            self.extra += nbytes(item.spec)
            return
        storage = self.tracker.places[item].storage
        if storage in self.uses:
            self.opened[storage] = self.uses[storage]
        else:
            self.saved[storage] = self.tracker.storages[storage]


def _saved(tracker: Tracker, step: Call, operator: Operator) -> Iterator[Saved]:
    """The items that a call saves; library functions have their own."""
    refs = operator.refs()
    if step.library == "vocabulary_embedding":
        shape = tracker.spec(refs[1]).shape
        yield from (Extra(TensorSpec(shape, dtype)) for dtype in ("int64", "bool"))
    elif step.library == "vocabulary_cross_entropy":
        logits = tracker.spec(refs[0])
        rows = logits.shape[:1]
        yield Extra(logits)
        yield Extra(TensorSpec((2, *rows), logits.dtype))  # sums and target's logits, one message
        yield from (Extra(TensorSpec(rows, dtype)) for dtype in ("int64", "bool", "bool"))
    else:
        yield from saved_items(tracker, operator)


def _copied(step: CollectiveStep) -> Layout | None:
    """The layout in which a slice has last copied: after its last cut that is not one stretch."""
    copied = None
    done = [(axis, cut) for axis, cut in step.target.entries if axis not in step.axes]
    for axis, cut in step.target.entries:
        if axis in step.axes:
            done.append((axis, cut))
            if not (isinstance(cut, Shard) and cut.outer == 1 and not cut.sections):
                copied = Layout(tuple(entry for entry in step.target.entries if entry in done))
    return copied


def _has_run(step: Call, items: Sequence[Saved]) -> bool:
    """Whether the kernel has run when the last item is saved: operands are saved before it."""
    if step.library is not None:
        return True
    product = is_product(step.operator.kind)
    return any(
        not product if isinstance(item, Extra) else item.name == step.operator.name
        for item in items
    )


def _specs(unit: UnitProgram) -> Iterator[TensorSpec]:
    for step in unit.steps:
        if isinstance(step, Call):
            yield from (*step.operand_specs, *step.operator.outputs)
        else:
            yield step.spec
