"""The legality table of plans: every rule that ties the parts of a plan together, once.

A rule yields the problems that it finds. Rules run in the order of the table and may rely on
those before. What one part needs of itself alone (a mesh, a layout, the prices of a bucket) its
own class checks.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from shardwise.ir import plan_rules_shared as shared
from shardwise.ir import plan_rules_switched as switched
from shardwise.ir.bucket_plan import BucketPlan, check_strategy_id
from shardwise.ir.certificate import Baseline, LongDocuments, Menu, PricedFor, Status
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.fingerprint import ModelFingerprint
from shardwise.ir.mesh import Mesh
from shardwise.ir.parameter_choice import ParameterChoice
from shardwise.ir.plan_rules_shared import Problems
from shardwise.ir.scanner import shown
from shardwise.ir.strategy import Strategy
from shardwise.ir.training import TrainingSpec

if TYPE_CHECKING:
    from shardwise.ir.plan import Plan

_PARTS: Final = {
    "model": ModelFingerprint,
    "training": TrainingSpec,
    "mesh": Mesh,
    "status": Status,
    "menu": Menu,
    "priced_for": PricedFor,
    "long_documents": LongDocuments,
}
_LISTS: Final = {"parameters": ParameterChoice, "buckets": BucketPlan, "baselines": Baseline}


def check_plan(plan: "Plan") -> None:
    """Raise InvalidValueError, `at <JSON path>: <problem>`, for the first broken rule."""
    for rule in RULES.values():
        for path, problem in rule(plan):
            raise InvalidValueError(f"at {path}: {problem}")


def parts_have_their_types(plan: "Plan") -> Problems:
    """Every field holds values of its class, the version is 1, and no needed list is empty."""
    from shardwise.ir.plan import VERSION, Stage  # the class that calls this module

    if type(plan.version) is not int or plan.version != VERSION:
        yield "version", f"{shown(plan.version)} is given; this shardwise has version {VERSION}"
    for name, kind in _PARTS.items():
        if not isinstance(getattr(plan, name), kind):
            yield name, f"{shown(getattr(plan, name))} is given; give a {kind.__name__}"
    for name, kind in (*_LISTS.items(), ("stages", Stage)):
        values = getattr(plan, name)
        if type(values) is not tuple or not all(isinstance(value, kind) for value in values):
            yield name, f"{shown(values)} is given; give a tuple of {kind.__name__}"
    for name in ("groups", "strategies"):
        values = getattr(plan, name)
        if type(values) is not tuple or not all(type(value) is tuple for value in values):
            yield name, f"{shown(values)} is given; give a tuple of tuples"
    if not all(type(axis) is str for group in plan.groups for axis in group):
        yield "groups", f"{shown(plan.groups)} is given; a group is a tuple of names of axes"
    for name in ("stages", "parameters", "strategies", "buckets"):
        if not getattr(plan, name):
            yield name, "none is given; give one at least"
    for entry in plan.strategies:
        if len(entry) != 2 or not isinstance(entry[1], Strategy):
            yield "strategies", f"{shown(entry)} is given; give (id, Strategy) pairs"
        else:
            yield from switched.raised("strategies", partial(check_strategy_id, entry[0]))


RULES: Final[Mapping[str, Callable[["Plan"], Problems]]] = MappingProxyType(
    {
        rule.__name__: rule
        for rule in (
            parts_have_their_types,
            shared.groups_are_over_the_mesh,
            shared.stages_cover_the_units,
            shared.the_model_has_parameters,
            shared.parameters_rest_on_the_mesh,
            shared.copies_are_worth_their_lifetime,
            shared.optimizers_see_what_they_need,
            shared.strategies_are_over_the_mesh,
            shared.split_axes_have_a_group,
            switched.buckets_ascend,
            switched.runs_cover_the_units,
            switched.batch_degrees_are_those_of_strategies,
            switched.peaks_fit_the_memory,
            switched.the_cluster_has_the_mesh,
            switched.the_certificate_holds_together,
        )
    }
)
"""All rules by name, in the order in which they run."""
