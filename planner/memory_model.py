"""Peak bytes of one rank while a slot runs, and at the end of a step.

    peak = max(rest + kept + moment, rest at the end of the step) + reserve

    rest        masters, optimizer state, accumulators, copies that live for a step
    kept        what autograd keeps of every unit (ir/autograd_saves.py); of a recomputed unit its
                inputs. A storage counts once however many operators and units keep it
    moment      what else is alive at a point of a unit's forward, recomputation or backward
                (planner/memory_walk.py), with short-lived copies of parameters and what the
                reduction of a gradient takes
    reserve     context and process groups, from the hardware profile

The backward frees what it has used, so the sum is taken at each kind of unit (`Phase`) and the
largest is the peak.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import sympy

from shardwise.ir.autograd_saves import UnitSaves
from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.flops import nbytes
from shardwise.ir.layout import Layout
from shardwise.ir.mesh import Mesh
from shardwise.ir.parameter_choice import Lifetime
from shardwise.ir.program import (
    Call,
    LocalProgram,
    Move,
    UnitProgram,
    Use,
    local_spec,
    made_by,
)
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.unit_programs import read_by
from shardwise.planner.memory_walk import UnitWalk, route
from shardwise.planner.moment import Bytes, Moment, Sum, largest
from shardwise.planner.sizes import local_bytes, number
from shardwise.planner.traffic import Traffic

Terms = tuple[tuple[sympy.Expr, int], ...]
"""Bytes per rank as expressions of the global sizes, and how often each counts."""


@dataclass(frozen=True)
class Phase:
    """Both passes of the last unit of one kind: what later units kept is not made yet, or free."""

    kept: Terms
    """Of this unit and those before it."""
    inputs: sympy.Expr
    """Of the program, as far as they are not among what is kept: the caller holds them."""
    moments: tuple[Moment, ...]
    """The largest of the unit, beside what is kept."""
    uses: tuple[Use, ...]

    @property
    def transient(self) -> tuple[sympy.Expr, ...]:
        """Bytes of values at the moments, without gradients of weights, which published stacks
        add straight to their accumulators."""
        return tuple(
            sympy.Add(*(count * key for key, count in one.values.items() if key != 1))
            for one in self.moments
        )


@dataclass(frozen=True)
class SlotMemory:
    """What a program holds while a slot runs, under one choice of recomputation."""

    phases: tuple[Phase, ...]
    """Of each kind of unit, in the order of the groups."""

    def kept_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes per rank that autograd keeps between forward and backward."""
        return max(total_bytes(phase.kept, sizes) for phase in self.phases)

    def under(self, traffic: Traffic) -> tuple[Bytes, ...]:
        """Linear forms, one of which is the most that a slot adds to what rests, under the
        parameter scheme of `traffic`."""
        found = []
        for phase in self.phases:
            costs = {use.name: use_bytes(use, traffic) for use in phase.uses}
            kept = Sum().add(phase.inputs)
            for size, count in phase.kept:
                kept.add(size, count)
            for moment in phase.moments:
                total = kept.plus(moment.values).add(sympy.Integer(added_bytes(moment, costs)))
                found.append(Moment(total))
        return tuple(moment.values for moment in largest(found))


def slot_bytes(forms: Sequence[Bytes], sizes: Mapping[str, int]) -> int:
    """Bytes per rank that a slot adds to what rests: the largest of the forms."""
    values = {key: number(key, sizes) for key in dict.fromkeys(key for one in forms for key in one)}
    return round(max(sum(count * values[key] for key, count in one.items()) for one in forms))


def total_bytes(terms: Terms, sizes: Mapping[str, int]) -> int:
    """Bytes per rank of all terms at concrete sizes."""
    return int(sum(count * number(size, sizes) for size, count in terms))


def slot_memory(traffic: Traffic, like: Sequence[int], again: Sequence[bool]) -> SlotMemory:
    """The memory of a program whose unit i is like unit `like[i]`.

    `again[i]` says whether unit i is recomputed.
    """
    program = traffic.program
    saves = {index: traffic.unit_saves(program.units[index]) for index in set(like)}
    shared = _Shared(saves)
    made = {name for step in program.steps() for name in made_by(step)}
    inputs = _input_bytes(program)
    own: Counter[sympy.Expr] = Counter()
    last = {first: index for index, first in enumerate(like)}
    phases: dict[int, Phase] = {}
    for index, first in enumerate(like):
        unit, model = program.units[index], program.units[first]
        shared.add(unit, first, model, again=again[index])
        if not again[index]:
            own[saves[first].own] += 1
        if last[first] == index:
            counted = frozenset(
                name
                for name, actual in zip(model.reads, unit.reads, strict=True)
                if actual in inputs or actual not in made or shared.keeps(actual)
            )
            walk = UnitWalk(model, saves[first], traffic.mesh, traffic.gradients, counted)
            other = [size for name, size in inputs.items() if not shared.keeps(name)]
            phases[first] = Phase(
                tuple((own + Counter(shared.kept.values())).items()),
                sympy.Add(*other),
                walk.run(again=again[index]),
                tuple(step for step in model.steps if isinstance(step, Use)),
            )
    return SlotMemory(tuple(phases[first] for first in dict.fromkeys(like)))


def _input_bytes(program: LocalProgram) -> dict[str, sympy.Expr]:
    """Inputs that a unit reads -> bytes per rank."""
    layouts = dict(program.inputs)
    specs: dict[str, TensorSpec] = {}
    for step in program.steps():
        if isinstance(step, Move):
            specs.setdefault(step.value, step.spec)
        elif isinstance(step, Call):
            specs |= dict(zip(read_by(step), step.operand_specs, strict=True))
    return {
        name: nbytes(local_spec(specs[name], layout.forward, program.mesh))
        for name, layout in layouts.items()
        if name in specs
    }


class _Shared:
    """Storages that cross units and are kept, each once: those saved, and inputs of recomputed."""

    def __init__(self, saves: Mapping[int, UnitSaves]) -> None:
        self.saves = saves
        self.kept: dict[str, sympy.Expr] = {}
        self._roots: dict[str, tuple[str, sympy.Expr]] = {}

    def add(self, unit: UnitProgram, first: int, model: UnitProgram, *, again: bool) -> None:
        """The next unit, which is like unit `first` (`model`) but for names."""
        saves = self.saves[first]
        pairs = zip((*model.reads, *model.writes), (*unit.reads, *unit.writes), strict=True)
        names = dict(pairs)
        for written, (root, size) in saves.roots.items():
            base = names.get(root, f"{unit.name}/{root}")
            self._roots[names[written]] = self._roots.get(base, (base, size))
        for name, size in (saves.inputs if again else saves.shared).items():
            known = names.get(name, f"{unit.name}/{name}")
            root, whole = self._roots.get(known, (known, size))
            self.kept[root] = whole

    def keeps(self, name: str) -> bool:
        """Whether the storage of a value that crosses units is kept by the units so far."""
        return self._roots.get(name, (name, sympy.S.Zero))[0] in self.kept


def added_bytes(moment: Moment, costs: Mapping[str, "UseBytes"]) -> int:
    """Bytes per rank that a parameter scheme adds to a moment."""
    total = sum(costs[name].copy for name in moment.opened)
    if moment.gathering is not None:
        total += costs[moment.gathering].gathering
    if moment.reducing is not None:
        total += costs[moment.reducing].reducing
    return total


@dataclass(frozen=True, slots=True)
class UseBytes:
    """Bytes per rank that the use of a parameter needs under a scheme."""

    copy: int
    """The compute copy, where it is made for this use; 0 where it lies in what rests."""
    gathering: int
    """While the copy is made, itself included."""
    reducing: int
    """While the gradient is reduced, beside the gradient."""


def use_bytes(use: Use, traffic: Traffic) -> UseBytes:
    """As runtime/parameters.py makes copies and reduces gradients."""
    one = traffic.parameters[use.parameter]
    training, mesh, spec = traffic.training, traffic.mesh, use.spec
    lives = one.rest.lifetime is Lifetime.USE
    source = one.rest.master if lives else one.copy
    first = 0
    if lives and spec.dtype != training.master_dtype:
        first = _local_bytes(spec, source, mesh)
    held, own = route(spec, source, use.layout.forward, mesh)
    gathering = first + max(map(int, held), default=0)
    reduced = TensorSpec(spec.shape, training.reduce_dtype)
    cast = 0
    if spec.dtype != training.reduce_dtype:
        cast = _local_bytes(reduced, use.layout.gradient, mesh)
    steps, result = route(reduced, use.layout.gradient, one.stored, mesh)
    end = cast + int(result)
    if training.accumulate_dtype != training.reduce_dtype:
        end += _local_bytes(TensorSpec(spec.shape, training.accumulate_dtype), one.stored, mesh)
    reducing = max(end, cast + max(map(int, steps), default=0))
    return UseBytes(int(own) or first, gathering, reducing)


def _local_bytes(spec: TensorSpec, layout: Layout, mesh: Mesh) -> int:
    return local_bytes(spec, layout, mesh, {})


@dataclass(frozen=True, slots=True)
class RestMemory:
    """Bytes per rank that no micro-batch changes."""

    masters: int
    states: int
    accumulators: int
    gradients: int
    """In the master layout, while the optimizer steps."""
    copies: int

    @property
    def in_slot(self) -> int:
        """While a slot runs."""
        return self.masters + self.states + self.accumulators + self.copies

    @property
    def at_step_end(self) -> int:
        """While the optimizer steps; the copies have not been dropped yet."""
        return self.in_slot + self.gradients


def rest_memory(traffics: Sequence[Traffic]) -> RestMemory:
    """Memory at rest of all parameters, for programs that share them."""
    first = traffics[0]
    training, mesh = first.training, first.mesh
    masters = states = accumulators = gradients = copies = 0
    dtypes = sorted({copy for traffic in traffics for copy in traffic.copies()})
    for one, count in first.entries():
        local = count * prod(one.rest.master.local_shape(one.rest.shape, mesh, 0))
        size = local * DTYPE_BYTES[training.master_dtype]
        masters += size
        if training.trains(one.rest.name):
            states += size * training.optimizer_kind.state_tensors
            gradients += size
            stored = count * prod(one.stored.local_shape(one.rest.shape, mesh, 0))
            accumulators += stored * DTYPE_BYTES[training.accumulate_dtype]
    for name, dtype in dtypes:
        one = first.parameters[name]
        same = one.copy.normalised(mesh) == one.rest.master.normalised(mesh)
        if not (same and dtype == training.master_dtype):
            local = prod(one.copy.local_shape(one.rest.shape, mesh, 0))
            copies += first.counts.get(name, 1) * local * DTYPE_BYTES[dtype]
    return RestMemory(masters, states, accumulators, gradients, copies)
