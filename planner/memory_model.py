"""Peak bytes of one rank while a slot runs, and at the end of a step.

peak = max(rest + kept + opened + transient, rest at the end of the step) + reserve

rest        masters, optimizer state, accumulators, copies that live for a step
kept        what autograd keeps of every unit (ir/autograd_saves.py); of a recomputed unit its
            inputs. A storage counts once however many operators and units keep it
opened      all that the largest recomputed unit keeps, while its backward runs
transient   operands and results of the largest call (its gradients, in the backward), the
            gathered copies of one unit, and its largest gradient before it is reduced
reserve     context and process groups, from the hardware profile
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import sympy

from shardwise.ir.autograd_saves import UnitSaves
from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.flops import nbytes
from shardwise.ir.mesh import Mesh
from shardwise.ir.parameter_choice import Lifetime
from shardwise.ir.program import Call, LocalProgram, Move, UnitProgram, Use, local_spec
from shardwise.planner.sizes import local_bytes, number
from shardwise.planner.traffic import Traffic

Terms = tuple[tuple[sympy.Expr, int], ...]
"""Bytes per rank as expressions of the global sizes, and how often each counts."""


@dataclass(frozen=True)
class SlotMemory:
    """What the units of a program hold while a slot runs, under one choice of recomputation."""

    kept: Terms
    opened: tuple[sympy.Expr, ...]
    """Of each kind of recomputed unit."""
    transient: tuple[Terms, ...]
    """Of each kind of unit, in the order of the groups: its calls' and moves' tensors."""

    def kept_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes per rank that autograd keeps between forward and backward."""
        return int(sum(count * number(size, sizes) for size, count in self.kept))

    def slot_bytes(self, sizes: Mapping[str, int], gathered: Sequence[int]) -> int:
        """Bytes per rank that a slot adds to what rests; `gathered` of each kind of unit."""
        opened = max((number(size, sizes) for size in self.opened), default=0)
        transient = max(
            copies + max((number(size, sizes) for size, _ in terms), default=0)
            for terms, copies in zip(self.transient, gathered, strict=True)
        )
        return self.kept_bytes(sizes) + int(opened + transient)


def slot_memory(
    traffic: Traffic, groups: Sequence[tuple[int, int]], like: Sequence[int], again: Sequence[bool]
) -> SlotMemory:
    """The memory of a program whose unit i is like unit `like[i]`; `groups` as (unit, count).

    `again[i]` says whether unit i is recomputed.
    """
    program = traffic.program
    saves = {index: traffic.unit_saves(program.units[index]) for index, _ in groups}
    terms: dict[sympy.Expr, int] = {}
    for index, count in groups:
        if not again[index]:
            terms[saves[index].own] = terms.get(saves[index].own, 0) + count
    for size in _shared(program, saves, like, again).values():
        terms[size] = terms.get(size, 0) + 1
    return SlotMemory(
        tuple(terms.items()),
        tuple(_opened(saves[index]) for index, _ in groups if again[index]),
        tuple(_transient(program.units[index], traffic.mesh) for index, _ in groups),
    )


def _shared(
    program: LocalProgram,
    saves: Mapping[int, UnitSaves],
    like: Sequence[int],
    again: Sequence[bool],
) -> dict[str, sympy.Expr]:
    """Storages that cross units and are kept, each once: those saved, and inputs of recomputed."""
    found: dict[str, sympy.Expr] = {}
    roots: dict[str, tuple[str, sympy.Expr]] = {}
    for index, unit in enumerate(program.units):
        model, first = saves[like[index]], program.units[like[index]]
        names = dict(zip((*first.reads, *first.writes), (*unit.reads, *unit.writes), strict=True))
        for written, (root, size) in model.roots.items():
            base = names.get(root, f"{unit.name}/{root}")
            roots[names[written]] = roots.get(base, (base, size))
        if again[index]:
            kept = {name: model.inputs[other] for other, name in zip(first.reads, unit.reads,
                                                                     strict=True)}  # fmt: skip
        else:
            kept = {names.get(n, f"{unit.name}/{n}"): size for n, size in model.shared.items()}
        for name, size in kept.items():
            root, whole = roots.get(name, (name, size))
            found[root] = whole
    return found


def _opened(saves: UnitSaves) -> sympy.Expr:
    """What the backward of a recomputed unit holds beyond its inputs."""
    inputs = set(saves.inputs)
    return sympy.Add(
        saves.own, *(size for name, size in saves.shared.items() if name not in inputs)
    )


def _transient(unit: UnitProgram, mesh: Mesh) -> Terms:
    """Operands and results of each call, result of each move; each size once."""
    found: dict[sympy.Expr, int] = {}
    for step in unit.steps:
        if isinstance(step, Move):
            found[nbytes(local_spec(step.spec, step.target.forward, mesh))] = 1
        elif isinstance(step, Call):
            specs = (*step.operand_specs, *step.operator.outputs)
            layouts = (*step.reads, *step.writes)
            total = sympy.Add(
                *(
                    nbytes(local_spec(spec, layout.forward, mesh))
                    for spec, layout in zip(specs, layouts, strict=True)
                )
            )
            found[total] = 1
    return tuple(found.items())


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
