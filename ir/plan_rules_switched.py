"""Rules of a plan about what is switched between buckets, its prices and its certificate."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from shardwise.ir.certificate import check_line, checked_gap, positive
from shardwise.ir.errors import InvalidValueError
from shardwise.ir.plan_rules_shared import Problems
from shardwise.ir.scanner import shown
from shardwise.ir.strategy import Role

if TYPE_CHECKING:
    from shardwise.ir.plan import Plan


def buckets_ascend(plan: "Plan") -> Problems:
    """Buckets are in the same dims, disjoint, and ascend by their lower ends."""
    for place, (before, bucket) in enumerate(pairwise(p.bucket for p in plan.buckets), 1):
        path = f"buckets[{place}].bucket"
        if [band.dim for band in before.ranges] != [band.dim for band in bucket.ranges]:
            yield path, f"{bucket} has other dims than {before}; give all buckets the same"
        elif [b.low for b in before.ranges] >= [b.low for b in bucket.ranges]:
            yield path, f"{bucket} comes after {before}; list the buckets ascending"
    for place, entry in enumerate(plan.buckets):
        for other in plan.buckets[:place]:
            if entry.bucket.overlaps(other.bucket):
                yield (
                    f"buckets[{place}].bucket",
                    f"{entry.bucket} shares lengths with {other.bucket}; make them disjoint",
                )


def runs_cover_the_units(plan: "Plan") -> Problems:
    """The runs of every bucket name strategies of the plan and add up to the model's units."""
    names = {name for name, _ in plan.strategies}
    for place, bucket in enumerate(plan.buckets):
        for position, run in enumerate(bucket.runs):
            if run.strategy not in names:
                yield (
                    f"buckets[{place}].runs[{position}]",
                    f"strategy {run.strategy} is not in the plan; use one of "
                    f"{shown(', '.join(sorted(names)))}",
                )
        if bucket.unit_count != plan.model.unit_count:
            yield (
                f"buckets[{place}].runs",
                f"they cover {bucket.unit_count} units and the model has "
                f"{plan.model.unit_count}; cover all",
            )


def batch_degrees_are_those_of_strategies(plan: "Plan") -> Problems:
    """A bucket's batch degree is the product of the batch axes of a strategy that it uses."""
    strategies = dict(plan.strategies)
    for place, bucket in enumerate(plan.buckets):
        degrees = {
            plan.mesh.group_size(strategies[run.strategy].axes(Role.BATCH)) for run in bucket.runs
        }
        if bucket.batch_degree not in degrees:
            yield (
                f"buckets[{place}].batch_degree",
                f"{bucket.batch_degree} is given, but the batch axes of its strategies have "
                f"{shown(', '.join(map(str, sorted(degrees))))} ranks; give that",
            )


def peaks_fit_the_memory(plan: "Plan") -> Problems:
    """The peak of a full slot of every bucket is in the limit, up to the error of its fit."""
    limit = plan.priced_for.memory_limit_bytes_per_rank
    for place, bucket in enumerate(plan.buckets):
        peak_bytes = bucket.largest_peak_bytes()
        if peak_bytes > limit * (1 + bucket.peak.fit_error):
            yield (
                f"buckets[{place}].peak_bytes_per_rank",
                f"a full slot peaks at {peak_bytes:.0f} bytes per rank and the limit is "
                f"{limit}; raise the limit, or take fewer seats",
            )


def the_cluster_has_the_mesh(plan: "Plan") -> Problems:
    """The cluster has ranks and link classes for the mesh, and its memory limit is kept."""
    cluster = plan.priced_for.cluster
    if plan.mesh.world_size > cluster.world_size:
        yield (
            "mesh",
            f"'{plan.mesh}' needs {plan.mesh.world_size} ranks and cluster {cluster.name} has "
            f"{cluster.world_size}; make it smaller",
        )
    links = [level.link for level in cluster.levels]
    for axis in plan.mesh.axes:
        if axis.size > 1 and axis.link not in links:
            yield (
                "mesh",
                f"axis {axis} has a link that cluster {cluster.name} has not; use one of "
                f"{shown(', '.join(links))}",
            )
    limit = plan.priced_for.memory_limit_bytes_per_rank
    if cluster.memory_limit_bytes is not None and limit > cluster.memory_limit_bytes:
        yield (
            "priced_for.memory_limit_bytes_per_rank",
            f"{limit} is over the {cluster.memory_limit_bytes} of cluster {cluster.name}; "
            "correct one of the two",
        )


def the_certificate_holds_together(plan: "Plan") -> Problems:
    """Step and bound are positive, gap = step_s / bound_s - 1, free switching costs >= 1."""
    for name in ("step_s", "bound_s", "free_switching_price"):
        yield from raised("", partial(positive, getattr(plan, name), name))
    yield from raised("", lambda: checked_gap(plan.gap, step_s=plan.step_s, bound_s=plan.bound_s))
    if not 1 <= plan.free_switching_price < math.inf:
        yield "free_switching_price", f"{shown(plan.free_switching_price)} is given; it is >= 1"
    count = plan.menu_strategies
    if type(count) is not int or not len(plan.strategies) <= count < 2**63:
        yield (
            "menu_strategies",
            f"{shown(count)} is given and the plan uses {len(plan.strategies)}; give the size "
            "of the menu",
        )
    yield from raised("", lambda: check_line(plan.covers, "covers", least=1))
    names = [baseline.name for baseline in plan.baselines]
    for place, name in enumerate(names):
        if name in names[:place]:
            yield f"baselines[{place}].name", f"{shown(name)} is given twice; rename one"


def raised(prefix: str, check: Callable[[], object]) -> Problems:
    """The problem of a check that raises; its message, or `prefix`, begins with the path."""
    try:
        check()
    except InvalidValueError as error:
        path, _, problem = (str(error) if not prefix else f"{prefix}: {error}").partition(": ")
        yield path, problem
