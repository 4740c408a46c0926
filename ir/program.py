"""The local program: what every rank runs for one bucket, as values.

`localise` (ir/localise.py) makes it from an OperatorGraph and one strategy per unit. The planner
prices its steps and the runtime emits them, so that what a plan states is what is executed. A value
is called by the name of the operator output that it holds ("add_3", "split:1"), by the name of a
graph input or constant, or by the name of the `Use` or `Move` that made it.
"""

from dataclasses import dataclass

import sympy

from shardwise.ir.errors import InvalidValueError
from shardwise.ir.layout import Layout, Shard
from shardwise.ir.mesh import Mesh
from shardwise.ir.operator import Operator
from shardwise.ir.tensor import TensorSpec
from shardwise.ir.value_layout import ValueLayout


@dataclass(frozen=True, slots=True)
class Use:
    """A parameter read in a layout: the edge master -> use, and use -> accumulator in backward."""

    name: str
    parameter: str
    spec: TensorSpec
    """Global shape and master dtype."""
    layout: ValueLayout
    """Layout of the compute copy, and of the gradient that the bucket leaves."""


@dataclass(frozen=True, slots=True)
class Move:
    """A redistribution of one value; its backward goes from the target's gradient layout back."""

    name: str
    value: str
    spec: TensorSpec
    """Global shape and dtype."""
    source: ValueLayout
    target: ValueLayout
    needs_gradient: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One operator at local shapes.

    `operator` keeps its global meaning and costs; its references are local value names and its
    shape arguments local sizes (expressions in the GLOBAL symbols B, S, ...).
    """

    operator: Operator
    reads: tuple[ValueLayout, ...]
    """Layout of each tensor operand, in the order of `operator.refs()`."""
    operand_specs: tuple[TensorSpec, ...]
    """Global shape and dtype of each tensor operand."""
    writes: tuple[ValueLayout, ...]
    """Layout of each output."""
    parts: int
    """The global work is cut in this many equal parts, one a rank (1: every rank does it all)."""
    library: str | None = None
    """Runtime library function that replaces the operator, e.g. vocabulary_embedding."""
    library_axis: str | None = None
    """The mesh axis over which the library function works."""
    needs_gradient: bool = True


Step = Use | Move | Call


@dataclass(frozen=True, slots=True)
class UnitProgram:
    """The steps of one unit: a layer, or what stands before, between and after layers."""

    name: str
    steps: tuple[Step, ...]
    reads: tuple[str, ...]
    """Values made by earlier units, graph inputs and constants, in order of first use."""
    writes: tuple[str, ...]
    """Values that later units or the program's outputs read."""


@dataclass(frozen=True, slots=True)
class LocalProgram:
    """All units of one bucket's program on one mesh.

    Invariants: each value is made once and before it is read; `outputs` are (loss_sum, weight),
    whole on every axis.
    """

    mesh: Mesh
    inputs: tuple[tuple[str, ValueLayout], ...]
    """Graph inputs with the layout in which each rank is handed them."""
    units: tuple[UnitProgram, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        made = {name for name, _ in self.inputs}
        for unit in self.units:
            for name in unit.reads:
                made.add(name)
            for step in unit.steps:
                for name in made_by(step):
                    if name in made:
                        raise InvalidValueError(
                            f"unit {unit.name} makes the value {name} twice; give each step a "
                            "name of its own"
                        )
                    made.add(name)

    def steps(self) -> tuple[Step, ...]:
        """All steps in the order of execution."""
        return tuple(step for unit in self.units for step in unit.steps)


def made_by(step: Step) -> tuple[str, ...]:
    """Names of the values that a step makes."""
    if isinstance(step, Call):
        return tuple(value_name(step.operator.name, i) for i in range(len(step.writes)))
    return (step.name,)


def value_name(name: str, index: int) -> str:
    """Local name of output `index` of an operator."""
    return name if index == 0 else f"{name}:{index}"


def local_spec(spec: TensorSpec, layout: Layout, mesh: Mesh) -> TensorSpec:
    """Shape of the local part where every cut is even: symbolic dims become floor(dim / parts)."""
    shape = list(spec.shape)
    for axis, placement in layout.entries:
        if isinstance(placement, Shard):
            length = shape[placement.dim]
            parts = mesh.axis(axis).size
            shape[placement.dim] = (
                length // parts if isinstance(length, int) else sympy.floor(length / parts)
            )
    return TensorSpec(tuple(shape), spec.dtype)
