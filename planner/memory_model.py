"""Peak bytes of one rank while a slot runs, and at the end of a step.

    peak = max(rest + kept + opened + transient, rest at the end of the step) + reserve

    rest        masters, optimizer state, accumulators, copies that live for a step
    kept        what autograd keeps of every unit (ir/autograd_saves.py); of a recomputed unit its
                inputs. A storage counts once however many operators and units keep it
    opened      all that a recomputed unit keeps, while its backward runs
    transient   operands and results of the largest call of a unit (its gradients, in the
                backward), the unit's gathered copies, and its largest gradient before it is reduced
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
from shardwise.ir.mesh import Mesh
from shardwise.ir.parameter_choice import Lifetime
from shardwise.ir.program import Call, Move, UnitProgram, Use, local_spec
from shardwise.planner.sizes import local_bytes, number
from shardwise.planner.traffic import Traffic

_TWO_GRADIENTS = "aten.cross_entropy_loss.default"
"""Its backward holds the gradients of log-probabilities and of scores at once."""
Terms = tuple[tuple[sympy.Expr, int], ...]
"""Bytes per rank as expressions of the global sizes, and how often each counts."""


@dataclass(frozen=True)
class Phase:
    """The backward of the last unit of one kind: what later units kept is free by then."""

    kept: Terms
    """Of this unit and those before it."""
    opened: sympy.Expr
    """What a recomputed unit makes again; 0 otherwise."""
    transient: tuple[sympy.Expr, ...]
    """Its calls' operands and results, and its moves' results."""


@dataclass(frozen=True)
class SlotMemory:
    """What a program holds while a slot runs, under one choice of recomputation."""

    phases: tuple[Phase, ...]
    """Of each kind of unit, in the order of the groups."""

    def kept_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes per rank that autograd keeps between forward and backward."""
        return max(total_bytes(phase.kept, sizes) for phase in self.phases)

    def slot_bytes(self, sizes: Mapping[str, int], gathered: Sequence[int]) -> int:
        """Bytes per rank that a slot adds to what rests; `gathered` of each kind of unit."""
        return max(
            total_bytes(phase.kept, sizes)
            + int(number(phase.opened, sizes))
            + int(max((number(size, sizes) for size in phase.transient), default=0))
            + copies
            for phase, copies in zip(self.phases, gathered, strict=True)
        )


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
    own: Counter[sympy.Expr] = Counter()
    last = {first: index for index, first in enumerate(like)}
    phases: dict[int, Phase] = {}
    for index, first in enumerate(like):
        shared.add(program.units[index], first, program.units[first], again=again[index])
        if not again[index]:
            own[saves[first].own] += 1
        if last[first] == index:
            phases[first] = Phase(
                tuple((own + Counter(shared.kept.values())).items()),
                _opened(saves[first]) if again[index] else sympy.S.Zero,
                _transient(program.units[first], traffic.mesh),
            )
    return SlotMemory(tuple(phases[first] for first in dict.fromkeys(like)))


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


def _opened(saves: UnitSaves) -> sympy.Expr:
    """What the backward of a recomputed unit holds beyond its inputs."""
    inputs = set(saves.inputs)
    return sympy.Add(
        saves.own, *(size for name, size in saves.shared.items() if name not in inputs)
    )


def _transient(unit: UnitProgram, mesh: Mesh) -> tuple[sympy.Expr, ...]:
    """Operands and results of each call, result of each move; each size once."""
    found: dict[sympy.Expr, None] = {}
    for step in unit.steps:
        if isinstance(step, Move):
            found[nbytes(local_spec(step.spec, step.target.forward, mesh))] = None
        elif isinstance(step, Call):
            specs = (*step.operand_specs, *step.operator.outputs)
            layouts = (*step.reads, *step.writes)
            sizes = (
                nbytes(local_spec(spec, layout.forward, mesh))
                for spec, layout in zip(specs, layouts, strict=True)
            )
            twice = step.operator.kind == _TWO_GRADIENTS and step.library is None
            found[sympy.Add(*sizes) * (2 if twice else 1)] = None
    return tuple(found)


def gathered_bytes(unit: UnitProgram, traffic: Traffic) -> int:
    """Bytes per rank of the short-lived copies of one unit, all alive at once, and of the largest
    gradient before it is reduced."""
    uses = [step for step in unit.steps if isinstance(step, Use)]
    sizes = [local_bytes(use.spec, use.layout.forward, traffic.mesh, {}) for use in uses]
    copies = sum(
        size
        for use, size in zip(uses, sizes, strict=True)
        if traffic.parameters[use.parameter].rest.lifetime is Lifetime.USE
    )
    return copies + max(sizes, default=0)


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
