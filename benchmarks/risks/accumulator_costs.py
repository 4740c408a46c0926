"""How much the rules move, over every combination of gradient layouts of up to three slots.

Costs are those of ring collectives over p ranks of a tensor of N bytes (the larger tensor of a
gather or reduce-scatter): all_gather and reduce_scatter (p-1)/p N, all_reduce 2 (p-1)/p N sent
per rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement, product

from benchmarks.risks.accumulator_layout import (
    Layout,
    Mesh,
    Step,
    is_free_outside,
    lower,
    working_layout,
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The join of the step against reducing in every micro-batch, accumulator stored whole."""

    mesh: Mesh
    master: Layout
    combinations: int
    cheaper: int
    equal: int
    dearer: tuple[str, ...]
    """The deposits of each combination in which the join moves more, as text."""


def wire_fraction(mesh: Mesh, steps: tuple[Step, ...]) -> Fraction:
    """Bytes sent per rank over the bytes of the whole parameter, ring collectives."""
    total = Fraction(0)
    for step in steps:
        count = mesh.size(step.axes)
        kept = Fraction(count - 1, count)
        if step.kind == "all_gather":
            total += kept / mesh.size(step.target.shards)
        elif step.kind == "reduce_scatter":
            total += kept / mesh.size(step.source.shards)
        elif step.kind == "all_reduce":
            total += 2 * kept / mesh.size(step.source.shards)
    return total


def all_layouts(mesh: Mesh) -> tuple[Layout, ...]:
    """Every layout whose cuts are in mesh order."""
    return tuple(
        Layout(
            tuple(a for a, s in zip(mesh.names, states, strict=True) if s == "S"),
            tuple(sorted(a for a, s in zip(mesh.names, states, strict=True) if s == "P")),
        )
        for states in product("RSP", repeat=len(mesh.axes))
    )


def compare(mesh: Mesh, master: Layout, slots: int = 3) -> Comparison:
    """Price every multiset of 1 to `slots` deposits both ways.

    Raises AssertionError when a deposit into the join is not free.
    """
    combinations = cheaper = equal = 0
    dearer = []
    for number in range(1, slots + 1):
        for deposits in combinations_with_replacement(all_layouts(mesh), number):
            whole = Layout()
            each = sum(
                (wire_fraction(mesh, lower(d, whole)) for d in deposits),
                wire_fraction(mesh, lower(whole, master)),
            )
            working = working_layout(mesh, (), deposits)
            for deposit in deposits:
                if not is_free_outside((), deposit, working):
                    raise AssertionError(f"{deposit} does not go free into {working}")
            joined = wire_fraction(mesh, lower(working, master))
            combinations += 1
            cheaper += joined < each
            equal += joined == each
            if joined > each:
                dearer.append(" + ".join(f"[{d}]" for d in deposits))
    return Comparison(mesh, master, combinations, cheaper, equal, tuple(dearer))
