"""Rules of a plan about what all its buckets share: groups, stages, parameters, strategies."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from shardwise.ir.certificate import Menu
from shardwise.ir.layout import Layout, Select, Shard
from shardwise.ir.mesh import STAGE
from shardwise.ir.name_pattern import first_overlap
from shardwise.ir.parameter_choice import Lifetime
from shardwise.ir.scanner import shown
from shardwise.ir.strategy import Role

if TYPE_CHECKING:
    from shardwise.ir.plan import Plan

MAX_GROUPS: Final = 12
"""Most process groups of a rank: each costs memory and start-up time."""

Problems: TypeAlias = Iterator[tuple[str, str]]
"""(JSON path, what is wrong there and what to do) of every problem that a rule finds."""


def groups_are_over_the_mesh(plan: "Plan") -> Problems:
    """Groups are at most 12, distinct, of axes of the mesh, and join two ranks or more."""
    if len(plan.groups) > MAX_GROUPS:
        yield (
            "groups",
            f"{len(plan.groups)} are given; a rank is in {MAX_GROUPS} at most, merge",
        )
    for place, group in enumerate(plan.groups):
        path = f"groups[{place}]"
        unknown = [axis for axis in group if axis not in plan.mesh.axis_names]
        if unknown:
            yield path, _unknown_axis(unknown[0], plan)
        elif len(set(group)) < len(group):
            yield path, f"{','.join(group)} names an axis twice; name each once"
        elif plan.mesh.group_size(group) < 2:
            yield path, f"'{','.join(group)}' joins one rank with nobody; leave the group out"
        elif group in plan.groups[:place]:
            yield path, f"{','.join(group)} is given twice; delete one"


def stages_cover_the_units(plan: "Plan") -> Problems:
    """One stage per coordinate of the stage axis; they cut the units without gap or overlap."""
    count = plan.mesh.axis(STAGE).size if STAGE in plan.mesh.axis_names else 1
    if len(plan.stages) != count:
        yield (
            "stages",
            f"{len(plan.stages)} are given and mesh '{plan.mesh}' has {count}; give one per stage",
        )
    start = 0
    for place, stage in enumerate(plan.stages):
        if stage.start != start:
            yield f"stages[{place}]", f"'{stage}' has to begin at unit {start}; correct it"
        start = stage.stop
    if start != plan.model.unit_count:
        yield (
            f"stages[{len(plan.stages) - 1}]",
            f"the stages end at unit {start} and the model has {plan.model.unit_count}; cover all",
        )


def the_model_has_parameters(plan: "Plan") -> Problems:
    """A model without a parameter has nothing to train."""
    if plan.model.parameter_count < 1:
        yield (
            "model.parameter_count",
            f"{plan.model.parameter_count} is given; plan a model with one parameter or more",
        )


def parameters_rest_on_the_mesh(plan: "Plan") -> Problems:
    """A name is chosen for once at most; layouts are over the mesh of a stage, without sizes."""
    overlap = first_overlap([choice.names for choice in plan.parameters])
    if overlap is not None:
        first, second = (plan.parameters[index].pattern for index in overlap)
        yield (
            f"parameters[{overlap[1]}].pattern",
            f"{shown(second)} shares a name with {shown(first)}; choose once for each",
        )
    for place, choice in enumerate(plan.parameters):
        for what, layout in (("master", choice.master), ("accumulator", choice.accumulator)):
            path = f"parameters[{place}].{what}"
            yield from _layout_problems(layout, plan, path)
            for axis, placement in layout.entries:
                if isinstance(placement, Shard) and not isinstance(placement.outer, int):
                    yield path, f"{axis}:{placement} depends on lengths; a parameter does not"


def copies_are_worth_their_lifetime(plan: "Plan") -> Problems:
    """Where the compute copy is the master itself (replicated, of one dtype), lifetime is step.

    Nothing is gathered or cast then, so another lifetime would only write one plan in three
    ways.
    """
    if plan.training.compute_dtype != plan.training.master_dtype:
        return
    for place, choice in enumerate(plan.parameters):
        if not choice.master.entries and choice.lifetime is not Lifetime.STEP:
            yield (
                f"parameters[{place}].lifetime",
                f"{choice.lifetime} is given, but the master is replicated in the compute "
                "dtype, so that nothing is gathered; give step",
            )


def optimizers_see_what_they_need(plan: "Plan") -> Problems:
    """An optimizer that is not elementwise has replicated masters."""
    if plan.training.optimizer_kind.elementwise:
        return
    for place, choice in enumerate(plan.parameters):
        if choice.master.entries and plan.training.trains(next(choice.names.names())):
            yield (
                f"parameters[{place}].master",
                f"'{choice.master}' is given, but {plan.training.optimizer} steps whole "
                "matrices; replicate the master or use an elementwise optimizer",
            )


def strategies_are_over_the_mesh(plan: "Plan") -> Problems:
    """Ids are distinct, all axes are of the mesh of a stage, and each strategy is used."""
    names = [name for name, _ in plan.strategies]
    used = {run.strategy for bucket in plan.buckets for run in bucket.runs}
    for name, strategy in plan.strategies:
        path = f"strategies.{name}" if name.isidentifier() else f'strategies["{name}"]'
        if names.count(name) > 1:
            yield path, "this id is given twice; rename one"
        if name not in used:
            yield path, "no bucket uses this strategy; delete it"
        if plan.menu is Menu.EXECUTABLE and not strategy.executable:
            yield (
                path,
                "it is not executable but the menu is; use menu 'all' or another strategy",
            )
        for axis, _ in strategy.roles:
            if axis == STAGE or axis not in plan.mesh.axis_names:
                yield path, _unknown_axis(axis, plan)
        for value in (*strategy.inputs, *strategy.outputs):
            for layout in (value.forward, value.gradient):
                yield from _layout_problems(layout, plan, path)


def split_axes_have_a_group(plan: "Plan") -> Problems:
    """Every axis that cuts the pipeline or is split by a strategy is in some group."""
    grouped = {axis for group in plan.groups for axis in group}
    splitting = {
        axis
        for _, strategy in plan.strategies
        for axis, role in strategy.roles
        if role is not Role.REPLICATE
    }
    for axis in plan.mesh.axes:
        if axis.size > 1 and axis.name in splitting | {STAGE} and axis.name not in grouped:
            yield "groups", f"no group has axis {axis.name}, which splits work; add one"


def _unknown_axis(axis: str, plan: "Plan") -> str:
    if axis == STAGE and STAGE in plan.mesh.axis_names:
        return "axis stage cuts the model and no tensor or operator; use another axis"
    return (
        f"axis {shown(axis)} is not in mesh '{plan.mesh}'; use one of "
        f"{shown(', '.join(plan.mesh.axis_names) or 'none')}"
    )


def _layout_problems(layout: Layout, plan: "Plan", path: str) -> Problems:
    for axis, placement in layout.entries:
        if axis == STAGE or axis not in plan.mesh.axis_names:
            yield path, _unknown_axis(axis, plan)
        elif isinstance(placement, Select):
            size = plan.mesh.axis(axis).size
            if len(placement.intervals) != size:
                yield (
                    path,
                    f"{axis}:{placement} has {len(placement.intervals)} intervals and the axis "
                    f"{size} ranks; give one per rank",
                )
