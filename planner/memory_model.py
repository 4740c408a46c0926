"""Peak bytes of one rank while a slot runs, and at the end of a step.

    peak = rest + kept + largest unit opened again + largest transient + reserve

    rest        masters, optimizer state, accumulators, copies that live for a step
    kept        what autograd keeps of every unit; of a recomputed unit only its inputs
    opened      all that a recomputed unit keeps, while its backward runs
    transient   operands and results of the largest call, and the gathered copies of one unit
    reserve     context and process groups, from the hardware profile

A saved tensor is counted once however many operators save it, and views of one value are one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from shardwise.ir.autograd_saves import is_view, saved_operands, saves_extra, saves_output
from shardwise.ir.dtype import DTYPE_BYTES
from shardwise.ir.parameter_choice import Lifetime
from shardwise.ir.program import Move, UnitProgram, Use, value_name
from shardwise.planner.sizes import local_bytes
from shardwise.planner.traffic import Traffic


@dataclass(frozen=True, slots=True)
class UnitMemory:
    """Bytes per rank of one unit in a slot."""

    saved: int
    """Kept for the backward where the unit is not recomputed."""
    inputs: int
    """Kept where it is recomputed."""
    transient: int
    """Operands and results of the largest call."""


def unit_memory(unit: UnitProgram, traffic: Traffic, sizes: Mapping[str, int]) -> UnitMemory:
    """Memory of one unit at these sizes."""
    values: dict[str, tuple[str, int]] = {}
    needs: dict[str, bool] = {}
    uses: dict[str, Use] = {}
    saved: dict[str, int] = {}
    inputs: dict[str, int] = {}
    extra = largest = 0
    for step in unit.steps:
        if isinstance(step, Use):
            uses[step.name] = step
        elif isinstance(step, Move):
            if step.value in unit.reads and step.needs_gradient:
                inputs[step.value] = local_bytes(
                    step.spec, step.source.forward, traffic.mesh, sizes
                )
            size = local_bytes(step.spec, step.target.forward, traffic.mesh, sizes)
            values[step.name] = (step.name, size)
            needs[step.name] = step.needs_gradient
            largest = max(largest, size)
        else:
            names = [ref.name for ref in step.operator.refs()]
            operands = [
                local_bytes(spec, layout.forward, traffic.mesh, sizes)
                for spec, layout in zip(step.operand_specs, step.reads, strict=True)
            ]
            results = [
                local_bytes(spec, layout.forward, traffic.mesh, sizes)
                for spec, layout in zip(step.operator.outputs, step.writes, strict=True)
            ]
            for name, size in zip(names, operands, strict=True):
                values.setdefault(name, (name, size))
                if name in unit.reads and step.needs_gradient:
                    inputs.setdefault(name, size)
            for index in saved_operands(step):
                if names[index] not in uses:
                    root, size = values[names[index]]
                    saved[root] = max(saved.get(root, 0), size)
            for index, size in enumerate(results):
                name = value_name(step.operator.name, index)
                source = values[names[0]] if is_view(step) and names else (name, size)
                values[name] = source
                if saves_output(step):
                    saved[source[0]] = max(saved.get(source[0], 0), size)
            extra += saves_extra(step, operands, results)
            largest = max(largest, sum(operands) + sum(results))
    return UnitMemory(sum(saved.values()) + extra, sum(inputs.values()), largest)


def gathered_bytes(unit: UnitProgram, traffic: Traffic) -> int:
    """Bytes per rank of the short-lived copies of one unit, all alive at once, and of the largest
    gradient before it is reduced."""
    uses = [step for step in unit.steps if isinstance(step, Use)]
    copies = sum(
        local_bytes(use.spec, use.layout.forward, traffic.mesh, {})
        for use in uses
        if traffic.parameters[use.parameter].rest.lifetime is Lifetime.USE
    )
    gradients = max(
        (local_bytes(use.spec, use.layout.forward, traffic.mesh, {}) for use in uses), default=0
    )
    return copies + gradients


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


def slot_bytes(units: Iterable[tuple[UnitMemory, int, int, bool]]) -> int:
    """Bytes per rank that a slot adds to what rests: kept, opened again, transient.

    `units` gives (memory, gathered bytes, how many such units, whether they are recomputed).
    """
    kept = opened = transient = 0
    for unit, gathered, count, again in units:
        kept += count * (unit.inputs if again else unit.saved)
        opened = max(opened, unit.saved if again else 0)
        transient = max(transient, unit.transient + gathered)
    return kept + opened + transient
