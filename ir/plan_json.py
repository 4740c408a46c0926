"""The canonical JSON of a plan: one text for equal plans, and the digest over it.

Keys come in the order of the schema (`plan_schema`), maps in the order of their values'
sorting, two blanks of indent, ASCII, a newline at the end. Nothing here reads a file or loads
pydantic.
"""

import hashlib
import json
from typing import TYPE_CHECKING, Any

from shardwise.ir.prices import Prices

if TYPE_CHECKING:
    from shardwise.ir.bucket_plan import BucketPlan
    from shardwise.ir.plan import Plan

TRAINING_KEYS = (
    "optimizer",
    "master_dtype",
    "compute_dtype",
    "reduce_dtype",
    "accumulate_dtype",
    "trainable",
    "clip_norm",
)
"""Fields of a TrainingSpec in the order of the file."""


def plan_to_plain(plan: "Plan") -> dict[str, Any]:
    """The plan as dicts, lists, strings and numbers: what its file holds."""
    return {
        "version": plan.version,
        "model": {
            "name": plan.model.name,
            "digest": plan.model.digest,
            "parameter_count": plan.model.parameter_count,
            "units": [*map(str, plan.model.units)],
        },
        "training": {
            **{key: getattr(plan.training, key) for key in TRAINING_KEYS},
            "trainable": [*plan.training.trainable],
        },
        "mesh": str(plan.mesh),
        "groups": [*map(",".join, plan.groups)],
        "stages": [*map(str, plan.stages)],
        "parameters": [
            {
                "pattern": choice.pattern,
                "master": str(choice.master),
                "accumulator": str(choice.accumulator),
                "lifetime": str(choice.lifetime),
            }
            for choice in plan.parameters
        ],
        "strategies": {name: str(strategy) for name, strategy in plan.strategies},
        "buckets": [*map(_bucket, plan.buckets)],
        "step_s": plan.step_s,
        "bound_s": plan.bound_s,
        "gap": plan.gap,
        "status": str(plan.status),
        "menu": str(plan.menu),
        "menu_strategies": plan.menu_strategies,
        "covers": plan.covers,
        "baselines": [
            {
                "name": baseline.name,
                "step_s": baseline.step_s,
                "peak_bytes_per_rank": baseline.peak_bytes,
                "note": baseline.note,
            }
            for baseline in plan.baselines
        ],
        "free_switching_price": plan.free_switching_price,
        "priced_for": {
            "cluster": str(plan.priced_for.cluster),
            "hardware_digest": plan.priced_for.hardware_digest,
            "software_digest": plan.priced_for.software_digest,
            "lengths_digest": plan.priced_for.lengths_digest,
            "tokens_per_step": plan.priced_for.tokens_per_step,
            "memory_limit_bytes_per_rank": plan.priced_for.memory_limit_bytes_per_rank,
        },
        "long_documents": str(plan.long_documents),
    }


def plan_to_text(plan: "Plan") -> str:
    """The text of the plan's file."""
    return json.dumps(plan_to_plain(plan), indent=2, allow_nan=False) + "\n"


def plan_digest(plan: "Plan") -> str:
    """SHA-256, 64 hex digits, over the same JSON without blanks and with sorted keys."""
    text = json.dumps(plan_to_plain(plan), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _bucket(bucket_plan: "BucketPlan") -> dict[str, Any]:
    return {
        "bucket": str(bucket_plan.bucket),
        "batch_degree": bucket_plan.batch_degree,
        "seats": bucket_plan.seats,
        "padded": [*map(str, bucket_plan.padded)],
        "runs": [*map(str, bucket_plan.runs)],
        "time_s": _prices(bucket_plan.time),
        "peak_bytes_per_rank": _prices(bucket_plan.peak),
    }


def _prices(prices: Prices) -> dict[str, Any]:
    return {"coefficients": dict(prices.coefficients), "fit_error": prices.fit_error}
