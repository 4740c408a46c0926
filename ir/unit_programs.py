"""The steps of each unit and the values that cross the edges between units."""

from collections.abc import Sequence

from shardwise.ir.program import Call, Move, Step, UnitProgram, made_by


def unit_programs(
    names: Sequence[str], steps: Sequence[Sequence[Step]], outputs: Sequence[str]
) -> tuple[UnitProgram, ...]:
    """One program per unit: what it reads of others, and what others or the outputs read of it."""
    made_in: dict[str, int] = {}
    for index, own in enumerate(steps):
        for step in own:
            made_in |= dict.fromkeys(made_by(step), index)
    reads: list[tuple[str, ...]] = []
    crossing = {name for name in outputs if name in made_in}
    for index, own in enumerate(steps):
        foreign = [n for step in own for n in read_by(step) if made_in.get(n) != index]
        reads.append(tuple(dict.fromkeys(foreign)))
        crossing.update(foreign)
    return tuple(
        UnitProgram(
            name,
            tuple(own),
            reads[index],
            tuple(n for step in own for n in made_by(step) if n in crossing),
        )
        for index, (name, own) in enumerate(zip(names, steps, strict=True))
    )


def read_by(step: Step) -> tuple[str, ...]:
    """Names of the values that a step reads; a use reads a parameter, which is no value."""
    if isinstance(step, Call):
        return tuple(ref.name for ref in step.operator.refs())
    return (step.value,) if isinstance(step, Move) else ()
