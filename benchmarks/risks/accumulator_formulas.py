"""Closed forms of the bytes in the accumulator experiment, written by hand.

Nothing here looks at `lower` or `working_layout`: the tables are the rule table of the
finding, one entry per pair (gradient states, target cut). The experiment compares them with
the counted bytes.

Sizes of one parameter, bytes per rank (`W` bytes per element, `row` elements per index of the
cut dim of size N, N even). On one axis of p ranks:

    whole = W N row                              local tensor that is not cut
    flat  = W p ceil(N / p) row                  gathered over the axis, padding included

On the two axes x0 (outer, 2) and data (inner, 2), chunks nested:

    whole = W N row                              also: gathered over x0 only, N even
    half  = W N/2 row                            local tensor cut by one axis
    flat  = W 4 ceil(ceil(N/2)/2) row            gathered over both
    inner = W 2 ceil(ceil(N/2)/2) row            gathered over data inside one x0 shard
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from benchmarks.risks.accumulator_layout import Mesh
from benchmarks.risks.accumulator_parameter import Bucket, Choice, ParameterSpec

Terms = tuple[tuple[str, str], ...]
"""(collective, size name) pairs."""

ONE_AXIS_GRADIENT: dict[str, dict[str, Terms]] = {
    "R": {"P": (("all_reduce", "whole"),), "S": (("all_gather", "flat"),), "R": ()},
    "S": {"P": (("reduce_scatter", "flat"),), "S": (), "R": ()},
}
"""target -> state -> terms."""

ONE_AXIS_WEIGHT: dict[str, dict[str, Terms]] = {
    "R": {"R": (), "S": ()},
    "S": {"R": (("all_gather", "flat"),), "S": ()},
}
"""source -> use -> terms."""

TWO_AXES_GRADIENT: dict[str, dict[str, Terms]] = {
    "RR": {
        "PP": (("all_reduce", "whole"),),
        "SP": (("all_reduce", "half"), ("all_gather", "whole")),
        "SS": (("all_gather", "flat"),),
        "RP": (("all_reduce", "whole"),),
        "PS": (("all_reduce", "half"), ("all_gather", "whole")),
        "RR": (),
    },
    "SS": {
        "PP": (("reduce_scatter", "flat"),),
        "SP": (("reduce_scatter", "inner"),),
        "SS": (),
        "RP": (("reduce_scatter", "inner"),),
        "PS": (("reduce_scatter", "flat"),),
        "RR": (),
    },
    "SR": {
        "PP": (("reduce_scatter", "whole"), ("all_reduce", "half")),
        "SP": (("all_reduce", "half"),),
        "SS": (("all_gather", "inner"),),
        "RP": (("all_reduce", "half"),),
        "PS": (("all_gather", "whole"), ("reduce_scatter", "whole")),
        "SR": (),
        "RR": (),
    },
    "SP": {
        "PP": (("reduce_scatter", "whole"),),
        "SP": (),
        "SS": (),
        "RP": (),
        "PS": (("reduce_scatter", "whole"),),
        "RR": (),
    },
    "RP": {
        "PP": (("all_reduce", "whole"),),
        "SP": (("all_gather", "whole"),),
        "RP": (),
    },
}
"""target states on (x0, data) -> states of what is brought there -> terms."""

TWO_AXES_WEIGHT: dict[str, dict[str, Terms]] = {
    "RR": {"RR": (), "SR": (), "SS": (), "RS": ()},
    "SR": {
        "RR": (("all_gather", "whole"),),
        "SR": (),
        "SS": (),
        "RS": (("all_gather", "whole"),),
    },
    "SS": {
        "RR": (("all_gather", "flat"),),
        "SR": (("all_gather", "inner"),),
        "SS": (),
        "RS": (("all_gather", "flat"),),
    },
}
"""source states -> use states -> terms."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What the closed forms need of a slot."""

    bucket: Bucket
    documents: int
    """Padded to the batch degree."""
    length: int
    """Padded tokens of a document."""


def predict(
    mesh: Mesh,
    specs: tuple[ParameterSpec, ...],
    choices: dict[str, Choice],
    slots: tuple[Slot, ...],
    plan: tuple[Bucket, ...],
    rule: str,
    element_bytes: int,
) -> Counter[tuple[str, str]]:
    """Bytes per rank of one step, by (purpose, collective)."""
    total: Counter[tuple[str, str]] = Counter()
    one = len(mesh.axes) == 1
    gradient_terms = ONE_AXIS_GRADIENT if one else TWO_AXES_GRADIENT
    weight_terms = ONE_AXIS_WEIGHT if one else TWO_AXES_WEIGHT
    for spec in specs:
        choice = choices[spec.name]
        sizes = _sizes(mesh, spec, element_bytes)
        master, stored = _states(mesh, choice.master), _states(mesh, choice.stored)
        working = _working(mesh, spec, stored, slots, plan, rule)

        def add(purpose: str, terms: Terms, sizes: dict[str, int] = sizes) -> None:
            for kind, size in terms:
                total[purpose, kind] += sizes[size]

        for slot in slots:
            free = set(working) == {"P"} or (rule != "every_bucket" and "S" not in stored)
            state = _gradient(slot.bucket, spec.kind)
            add("gradient", () if free else gradient_terms[working][state])
            use = _use(slot.bucket, spec)
            reads = 0 if choice.lifetime == "step" else 1
            if choice.lifetime == "use" and spec.backward_reads:
                reads = 2
            for _ in range(reads):
                add("weight", weight_terms[master][use])
        add("gradient", gradient_terms[master][working])
        if choice.lifetime == "step":
            buckets = plan if choice.copy == "plan" else tuple(slot.bucket for slot in slots)
            add("weight", weight_terms[master][_copy(tuple(_use(b, spec) for b in buckets))])
    for slot in slots:
        total += _activations(mesh, specs, slot, element_bytes)
    if any(set(_gradient(slot.bucket, "token")) & {"P"} for slot in slots):
        total["loss", "all_reduce"] += 2 * 8
    return +total


def _working(
    mesh: Mesh,
    spec: ParameterSpec,
    stored: str,
    slots: tuple[Slot, ...],
    plan: tuple[Bucket, ...],
    rule: str,
) -> str:
    """States in which the step accumulates."""
    if rule == "every_bucket":
        every = [_gradient(bucket, spec.kind) for bucket in plan]
        return "".join(
            "S" if held == "S" else "P" if all(e[i] == "P" for e in every) else "R"
            for i, held in enumerate(stored)
        )
    buckets = plan if rule == "join_plan" else tuple(slot.bucket for slot in slots)
    seen = [_gradient(bucket, spec.kind) for bucket in buckets]
    joined = "".join(
        "S" if held == "S" else max((s[i] for s in seen), key="RSP".index)
        for i, held in enumerate(stored)
    )
    if stored == "RR" and ((joined == "PS" and "SS" in seen) or (joined == "SS" and "RS" in seen)):
        return "PP"
    if stored == "SR" and joined == "SS" and {"PS", "RS"} & set(seen):
        return "SP"
    return joined


def _activations(
    mesh: Mesh, specs: tuple[ParameterSpec, ...], slot: Slot, element_bytes: int
) -> Counter[tuple[str, str]]:
    """2 T d W per collective, 4 T / p f W for the all-to-all (f padded to p), both passes."""
    bucket, total = slot.bucket, Counter[tuple[str, str]]()
    width = specs[0].shape[0]
    hidden = specs[1].shape[0]
    tokens = slot.documents // mesh.size(bucket.axes("batch")) * slot.length
    if bucket.axes("tensor_sequence"):
        total["activation", "all_gather"] = 2 * tokens * width * element_bytes
        total["activation", "reduce_scatter"] = 2 * tokens * width * element_bytes
    if bucket.axes("tensor"):
        total["activation", "all_reduce"] = 2 * tokens * width * element_bytes
    if bucket.axes("sequence"):
        count = mesh.size(bucket.axes("sequence"))
        padded = -(-hidden // count) * count
        total["activation", "all_to_all"] = 4 * tokens // count * padded * element_bytes
    return total


def _sizes(mesh: Mesh, spec: ParameterSpec, element_bytes: int) -> dict[str, int]:
    rows = spec.cut.size
    row_bytes = element_bytes
    for dim, size in enumerate(spec.shape):
        row_bytes *= 1 if dim == spec.cut.dim else size
    if len(mesh.axes) == 1:
        count = mesh.world_size
        return {"whole": rows * row_bytes, "flat": -(-rows // count) * count * row_bytes}
    quarter = -(-(rows // 2) // 2)
    return {
        "whole": rows * row_bytes,
        "half": rows // 2 * row_bytes,
        "flat": 4 * quarter * row_bytes,
        "inner": 2 * quarter * row_bytes,
    }


def _states(mesh: Mesh, cut: tuple[str, ...]) -> str:
    return "".join("S" if axis in cut else "R" for axis in mesh.names)


def _gradient(bucket: Bucket, kind: str) -> str:
    return "".join(bucket.gradient(kind).state(axis) for axis, _ in bucket.roles)


def _use(bucket: Bucket, spec: ParameterSpec) -> str:
    return _gradient(bucket, spec.kind).replace("P", "R")


def _copy(uses: tuple[str, ...]) -> str:
    """Whole as soon as one bucket wants it whole, or two buckets cut in different orders."""
    if len(set(uses)) == 1:
        return uses[0]
    if len(uses[0]) == 1 or any(use[0] == "R" for use in uses):
        return "R" * len(uses[0])
    return "SR"
