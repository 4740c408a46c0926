"""Parameter schemes: where all parameters of a model rest, by the names that people use.

A matrix is cut on the dim on which tensor parallelism uses it (found from the tensor_sequence
program, not from names), over the model axis first and then `data`, as far as both divide it.
Vectors are replicated: their bytes do not matter and their gathers would (emission.md section
6).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from shardwise.ir.graph import OperatorGraph, Parameter
from shardwise.ir.layout import Layout, Placement, Shard
from shardwise.ir.mesh import DATA, Mesh
from shardwise.ir.parameter_choice import Lifetime, ParameterChoice
from shardwise.ir.program import LocalProgram, Use
from shardwise.ir.rest import WHOLE, Rest

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Scheme:
    """Which axes cut the master and the accumulator of a matrix, and how long copies live."""

    name: str
    model_axes: bool
    """Model axes cut master and accumulator."""
    master: bool
    """`data` cuts the master."""
    accumulator: bool
    """`data` cuts the accumulator."""
    lifetime: Lifetime


SCHEMES: tuple[Scheme, ...] = (
    Scheme("DDP", False, False, False, Lifetime.STEP),
    Scheme("TP", True, False, False, Lifetime.STEP),
    Scheme("ZeRO-1", False, True, False, Lifetime.STEP),
    Scheme("TP+ZeRO-1", True, True, False, Lifetime.STEP),
    Scheme("ZeRO-2", True, True, True, Lifetime.STEP),
    Scheme("ZeRO-3", True, True, True, Lifetime.USE),
)
"""The menu. `ZeRO-1` cuts the master over all axes and keeps the whole gradient on every rank."""


def tensor_dims(program: LocalProgram) -> dict[str, int]:
    """The dim on which a tensor-parallel program uses each parameter cut; others are left out."""
    found: dict[str, int] = {}
    for step in program.steps():
        if isinstance(step, Use):
            for _, placement in step.layout.forward.entries:
                if isinstance(placement, Shard):
                    found.setdefault(step.parameter, placement.dim)
    return found


def choices(
    graph: OperatorGraph, mesh: Mesh, scheme: Scheme, dims: Mapping[str, int]
) -> tuple[ParameterChoice, ...]:
    """The choice of every parameter, names of equal layers written as one pattern."""
    by_layouts: dict[tuple[Layout, Layout, Lifetime], list[str]] = {}
    for parameter in graph.parameters:
        rest = scheme_rest(parameter, mesh, scheme, dims)
        key = (rest.master, rest.accumulator, rest.lifetime)
        by_layouts.setdefault(key, []).append(parameter.name)
    return tuple(
        ParameterChoice(pattern, master, accumulator, lifetime)
        for (master, accumulator, lifetime), names in by_layouts.items()
        for pattern in patterns(names)
    )


def scheme_rest(parameter: Parameter, mesh: Mesh, scheme: Scheme, dims: Mapping[str, int]) -> Rest:
    """Where one parameter rests under a scheme; dim 0 is cut where `dims` names none."""
    shape = tuple(int(length) for length in parameter.spec.shape)
    if len(shape) < 2:
        return Rest(parameter.name, shape, WHOLE, WHOLE, Lifetime.STEP)
    dim = dims.get(parameter.name, 0)
    entries: list[tuple[str, Placement]] = []
    left = shape[dim]
    for axis in mesh.axes:
        if axis.size > 1 and left % axis.size == 0:
            entries.append((axis.name, Shard(dim)))
            left //= axis.size
    model = [entry for entry in entries if entry[0] != DATA]
    data = [entry for entry in entries if entry[0] == DATA]
    cut_model = scheme.model_axes or scheme.master
    master = (model if cut_model else []) + (data if scheme.master else [])
    accumulator = (model if scheme.model_axes else []) + (data if scheme.accumulator else [])
    return Rest(
        parameter.name,
        shape,
        Layout(tuple(master)),
        Layout(tuple(accumulator)),
        scheme.lifetime if master else Lifetime.STEP,
    )


def patterns(names: Sequence[str]) -> list[str]:
    """Names with their first dotted number written as ranges: layers.{0:4}.w."""
    plain: list[str] = []
    numbered: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = _NUMBER.search(name)
        if match is None:
            plain.append(name)
        else:
            key = (name[: match.start()], name[match.end() :])
            numbered.setdefault(key, []).append(int(match[0]))
    result = list(plain)
    for (before, after), numbers in numbered.items():
        ordered = sorted(numbers)
        for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
            members = [number for _, number in run]
            result.append(f"{before}{{{members[0]}:{members[-1] + 1}}}{after}")
    return result
