"""Price tables of the search: every option of every mesh, before any is chosen.

An option of a bucket is (implementation, recompute, seats). Its slot time and memory split into a
part that depends on the sizes but on no parameter scheme (calls, moves, activations) and a part
that depends on the scheme but on no size (gathers and reductions of parameters), so each is
priced once. Units with equal steps are priced once, with their count.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shardwise.ir.decide import without_names
from shardwise.ir.localise import batch_degree, localise
from shardwise.ir.mesh import Mesh
from shardwise.ir.operator import Ref
from shardwise.ir.parameter_choice import ParameterChoice
from shardwise.ir.program import Call, LocalProgram, Move, UnitProgram, Use, made_by
from shardwise.ir.rest import Rest
from shardwise.ir.strategy import Recompute
from shardwise.ir.traced_model import TracedModel
from shardwise.ir.training import TrainingSpec
from shardwise.planner import menu
from shardwise.planner.kinds import Kinds, parameter_kinds
from shardwise.planner.memory_model import SlotMemory, rest_memory, slot_bytes, slot_memory
from shardwise.planner.moment import Bytes
from shardwise.planner.scheme import Scheme, choices, scheme_rest, tensor_dims
from shardwise.planner.time_model import Pricer
from shardwise.planner.traffic import Traffic, at_rest


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a bucket."""

    implementation: str
    recompute: Recompute
    seats: int
    batch_degree: int

    @property
    def documents_per_slot(self) -> int:
        """k = batch degree x seats."""
        return self.batch_degree * self.seats


@dataclass(frozen=True, slots=True)
class SlotPrice:
    """Of a full slot on one rank."""

    time_s: float
    peak_bytes: int


@dataclass(frozen=True)
class MeshPrograms:
    """The programs of every implementation on one mesh, with their units grouped."""

    traced: TracedModel
    mesh: Mesh
    programs: Mapping[str, LocalProgram]
    groups: Mapping[str, tuple[tuple[int, int], ...]]
    """Per implementation, (index of a unit, how many units are like it); recomputable ones
    apart."""
    like: Mapping[str, tuple[int, ...]]
    """Per implementation and unit, the index of the first unit like it."""
    dims: Mapping[str, int]
    """The dim on which tensor parallelism cuts each parameter."""
    kinds: Kinds

    @classmethod
    def of(cls, traced: TracedModel, mesh: Mesh, training: TrainingSpec) -> "MeshPrograms":
        """Localise the model once per implementation."""
        programs = {}
        for name in menu.implementations(mesh):
            one = menu.strategy(name, mesh, Recompute.NONE)
            programs[name] = localise(traced.graph, traced.units, mesh, [one] * len(traced.units))
        like = {name: _like(program, traced, training) for name, program in programs.items()}
        groups = {name: tuple(Counter(firsts).items()) for name, firsts in like.items()}
        dims = tensor_dims(programs["tensor_sequence"]) if "tensor_sequence" in programs else {}
        uses = {
            name: [step for step in program.steps() if isinstance(step, Use)]
            for name, program in programs.items()
        }
        kinds = parameter_kinds(traced.graph, uses, dims, training)
        return cls(traced, mesh, programs, groups, like, dims, kinds)

    def is_layer(self, index: int) -> bool:
        """Whether the unit is a layer, which recomputation may repeat."""
        return bool(self.traced.units[index].module_path)


def _like(program: LocalProgram, traced: TracedModel, training: TrainingSpec) -> tuple[int, ...]:
    first: dict[object, int] = {}
    return tuple(
        first.setdefault(
            (bool(traced.units[index].module_path), canonical(unit, training.trains)), index
        )
        for index, unit in enumerate(program.units)
    )


def canonical(unit: UnitProgram, trains: Callable[[str], bool]) -> tuple[object, ...]:
    """The steps of a unit with values numbered as they come and names of parameters left out.

    Units with equal forms have equal prices: kinds and options of operators, shapes, layouts, and
    which parameters train (`trains`, by name) are all that prices read.
    """
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    steps: list[object] = []
    for step in unit.steps:
        if isinstance(step, Use):
            steps.append(("use", str(step.spec), step.layout, trains(step.parameter)))
        elif isinstance(step, Move):
            steps.append(
                ("move", number(step.value), str(step.spec), step.source, step.target,
                 step.needs_gradient)
            )  # fmt: skip
        else:
            assert isinstance(step, Call)
            operator = step.operator
            reads = tuple(number(_name(ref)) for ref in operator.refs())
            steps.append(
                ("call", operator.kind, reads, without_names(operator.kwargs), operator.outputs,
                 operator.flops, operator.moved_bytes, step.reads, step.writes, step.parts,
                 step.library, step.needs_gradient)
            )  # fmt: skip
        for name in made_by(step):
            number(name)
    return (*steps, tuple(map(number, unit.writes)))


def _name(ref: Ref) -> str:
    return ref.name if ref.index == 0 else f"{ref.name}:{ref.index}"


class ActivationTable:
    """Prices of the part of a slot that no parameter scheme changes."""

    def __init__(self, programs: MeshPrograms, pricer: Pricer, training: TrainingSpec) -> None:
        self.programs, self.pricer, self.training = programs, pricer, training
        self._times: dict[tuple[str, int, int, int, bool], float] = {}
        self._memory: dict[tuple[str, bool], SlotMemory] = {}
        self._traffics: dict[str, Traffic] = {}
        self._rests: dict[str, tuple[Rest, ...]] = {}

    def rests(self, scheme: Scheme) -> tuple[Rest, ...]:
        """Where one parameter of every kind rests under a scheme."""
        if scheme.name not in self._rests:
            programs = self.programs
            self._rests[scheme.name] = tuple(
                scheme_rest(parameter, programs.mesh, scheme, programs.dims)
                for parameter in programs.traced.graph.parameters
                if parameter.name in programs.kinds.counts
            )
        return self._rests[scheme.name]

    def time_s(self, option: Option, length: int) -> float:
        """Seconds of calls and moves of a full slot padded to `length`."""
        again = option.recompute is Recompute.LAYER
        return sum(
            count * self._unit_s(option, length, index, again and self.programs.is_layer(index))
            for index, count in self.programs.groups[option.implementation]
        )

    def _unit_s(self, option: Option, length: int, index: int, again: bool) -> float:
        key = (option.implementation, option.documents_per_slot, length, index, again)
        if key not in self._times:
            traffic = self.traffic(option.implementation)
            sizes = {"B": option.documents_per_slot, "S": length}
            unit = traffic.program.units[index]
            self._times[key] = self.pricer.activations_s(traffic, unit, sizes, recompute=again)
        return self._times[key]

    def traffic(self, implementation: str) -> Traffic:
        """The program without parameters: what prices of activations read."""
        if implementation not in self._traffics:
            program = self.programs.programs[implementation]
            self._traffics[implementation] = Traffic(program, {}, self.training)
        return self._traffics[implementation]

    def slot_memory(self, implementation: str, again: bool) -> SlotMemory:
        """What a slot holds, layers recomputed (`again`) or not."""
        key = (implementation, again)
        if key not in self._memory:
            programs = self.programs
            units = range(len(programs.traced.units))
            self._memory[key] = slot_memory(
                self.traffic(implementation),
                programs.like[implementation],
                [again and programs.is_layer(index) for index in units],
            )
        return self._memory[key]


class SchemeTable:
    """Prices of full slots under one parameter scheme and one set of implementations."""

    def __init__(
        self,
        activations: ActivationTable,
        scheme: Scheme,
        implementations: Sequence[str],
        reserve_bytes: int,
    ) -> None:
        programs, pricer = activations.programs, activations.pricer
        self.activations, self.scheme = activations, scheme
        self.implementations = tuple(implementations)
        kinds = programs.kinds
        found = at_rest(
            activations.rests(scheme),
            (use for name in implementations for use in kinds.uses[name]),
            programs.mesh,
        )
        self.parameters = {name: found[first] for name, first in kinds.first.items()}
        self.traffics = {
            name: Traffic(
                programs.programs[name],
                self.parameters,
                activations.training,
                kinds.counts,
                activations.traffic(name).saves,
            )
            for name in implementations
        }
        self.rest = rest_memory(list(self.traffics.values()))
        self.reserve_bytes = reserve_bytes
        self.fixed_s = pricer.step_fixed_s(list(self.traffics.values()))
        self._weights: dict[tuple[str, bool], float] = {}
        self._forms: dict[tuple[str, bool], tuple[Bytes, ...]] = {}

    def choices(self) -> tuple[ParameterChoice, ...]:
        """The choice of every parameter, as a plan states it."""
        programs = self.activations.programs
        return choices(programs.traced.graph, programs.mesh, self.scheme, programs.dims)

    def price(self, option: Option, length: int) -> SlotPrice:
        """Time and peak of a full slot padded to `length`."""
        time_s = self.activations.time_s(option, length) + self._weights_s(option)
        slot = self.slot_bytes(option, length)
        peak = max(self.rest.in_slot + slot, self.rest.at_step_end) + self.reserve_bytes
        return SlotPrice(time_s, peak)

    def _weights_s(self, option: Option) -> float:
        again = option.recompute is Recompute.LAYER
        key = (option.implementation, again)
        if key not in self._weights:
            traffic = self.traffics[option.implementation]
            programs = self.activations.programs
            self._weights[key] = sum(
                count
                * self.activations.pricer.weights_s(
                    traffic,
                    traffic.program.units[index],
                    recompute=again and programs.is_layer(index),
                )
                for index, count in programs.groups[option.implementation]
            )
        return self._weights[key]

    def slot_bytes(self, option: Option, length: int) -> int:
        """Bytes per rank that a full slot padded to `length` adds to what rests."""
        key = (option.implementation, option.recompute is Recompute.LAYER)
        if key not in self._forms:
            memory = self.activations.slot_memory(*key)
            self._forms[key] = memory.under(self.traffics[option.implementation])
        return slot_bytes(self._forms[key], {"B": option.documents_per_slot, "S": length})


def options(mesh: Mesh, implementations: Sequence[str]) -> tuple[Option, ...]:
    """Every option of a bucket on a mesh."""
    found = []
    for name in implementations:
        degree = batch_degree(menu.strategy(name, mesh, Recompute.NONE), mesh)
        for recompute in menu.RECOMPUTES:
            for seats in menu.seat_counts():
                found.append(Option(name, recompute, seats, degree))
    return tuple(found)
