"""A plan as text for people: what runs per bucket, what it costs, and what the claim rests on.

Plain text in 100 columns. It does not parse back; the file of a plan does (`plan_file`).
"""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby, zip_longest
from typing import Final

from shardwise.ir.bucket_plan import BucketPlan, PaddedShape
from shardwise.ir.certificate import Baseline
from shardwise.ir.parameter_choice import ParameterChoice
from shardwise.ir.plan import Plan

COLUMNS: Final = 100
"""Longest line."""

_BUCKET_COLUMNS: Final = (
    ("bucket", 20),
    ("documents", 9),
    ("padded to", 10),
    ("slot time", 12),
    ("peak", 12),
    ("units", 7),
    ("strategy", 18),
)
_STRATEGY_COLUMNS: Final = (("strategy", 21), ("computes as", 75))
_PARAMETER_COLUMNS: Final = (
    ("lifetime", 11),
    ("master", 17),
    ("accumulator", 11),
    ("parameters", 55),
)
_BASELINE_COLUMNS: Final = (
    ("baseline", 24),
    ("step", 12),
    ("of plan", 8),
    ("peak", 12),
    ("note", 36),
)


def render(plan: Plan) -> str:
    """The plan as readable text, lines of at most 100 columns, a newline at the end."""
    return "\n".join(line.rstrip() for line in _lines(plan)) + "\n"


def seconds(time_s: float | None) -> str:
    """`5.236 s`, `248.0 ms`; `-` for None."""
    if time_s is None:
        return "-"
    return f"{time_s * 1e3:.4g} ms" if time_s < 1 else f"{time_s:.4g} s"


def size(count_bytes: float | None) -> str:
    """`60.9 GB` (decimal), `840 kB`; `-` for None."""
    if count_bytes is None:
        return "-"
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count_bytes >= scale:
            return f"{count_bytes / scale:.4g} {unit}"
    return f"{count_bytes:.4g} B"


def _lines(plan: Plan) -> Iterator[str]:
    yield from _fields(_summary(plan))
    yield from _table(_BUCKET_COLUMNS, (row for b in plan.buckets for row in _bucket_rows(b)))
    yield from _table(
        _STRATEGY_COLUMNS,
        ((name, str(strategy).partition(" in=")[0]) for name, strategy in plan.strategies),
    )
    yield from _table(_PARAMETER_COLUMNS, _parameter_rows(plan.parameters))
    if plan.baselines:
        yield from _table(
            _BASELINE_COLUMNS, (_baseline_row(each, plan.step_s) for each in plan.baselines)
        )


def _summary(plan: Plan) -> Iterator[tuple[str, str]]:
    priced = plan.priced_for
    training = plan.training
    units = f"{_count(plan.model.unit_count, 'unit')} in {_count(len(plan.stages), 'stage')}"
    yield (
        "model",
        f"{plan.model.name}, {plan.model.parameter_count:,} parameters, {units} "
        f"({', '.join(map(str, plan.stages))})",
    )
    yield "mesh", f"{plan.mesh}, {_count(plan.mesh.world_size, 'rank')}"
    yield "cluster", f"{priced.cluster}, {size(priced.memory_limit_bytes_per_rank)} per rank"
    yield (
        "training",
        f"{training.optimizer}, {training.master_dtype} weights, {training.compute_dtype} "
        f"compute, {priced.tokens_per_step:,} tokens per step",
    )
    yield "step", f"{seconds(plan.step_s)} expected ({plan.status})"
    yield (
        "bound",
        f"{seconds(plan.bound_s)}, under which no plan of the menu '{plan.menu}' "
        f"({_count(plan.menu_strategies, 'strategy')}) can get: gap {plan.gap:.2%}",
    )
    yield "covers", plan.covers
    yield (
        "switching",
        f"free between buckets; the shared parameters cost {plan.free_switching_price - 1:.2%} "
        "over a plan of its own for each bucket",
    )
    yield "documents", f"longer than the last bucket: {plan.long_documents}"
    yield "plan hash", plan.digest()


def _bucket_rows(bucket: BucketPlan) -> Iterator[tuple[str, ...]]:
    ends = [*accumulate(run.count for run in bucket.runs)]
    units = [
        (f"{end - run.count}:{end}", run.strategy)
        for run, end in zip(bucket.runs, ends, strict=True)
    ]
    shapes = [
        (
            _sizes(shape),
            seconds(bucket.price_of(bucket.time, shape)),
            size(bucket.price_of(bucket.peak, shape)),
        )
        for shape in bucket.padded
    ]
    head = (str(bucket.bucket).replace("*", " * "), f"{bucket.batch_degree} x {bucket.seats}")
    for place, (shape, unit) in enumerate(zip_longest(shapes, units)):
        yield (
            *(head if place == 0 else ("", "")),
            *(shape or ("", "", "")),
            *(unit or ("", "")),
        )


def _count(number: int, what: str) -> str:
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def _sizes(shape: PaddedShape) -> str:
    return " x ".join(str(tokens) for _, tokens in shape.sizes)


def _parameter_rows(parameters: Sequence[ParameterChoice]) -> Iterator[tuple[str, ...]]:
    """A row per name, those of equal layouts and lifetime together."""

    def kind(choice: ParameterChoice) -> tuple[str, str, str]:
        same = choice.accumulator == choice.master and choice.master.entries
        accumulator = "as master" if same else str(choice.accumulator)
        return (str(choice.lifetime), str(choice.master), accumulator)

    for shared, choices in groupby(sorted(parameters, key=kind), key=kind):
        for place, choice in enumerate(choices):
            yield (*(shared if place == 0 else ("", "", "")), choice.pattern)


def _baseline_row(baseline: Baseline, step_s: float) -> tuple[str, ...]:
    ratio = "-" if baseline.step_s is None else f"{baseline.step_s / step_s:.3g} x"
    return (
        baseline.name,
        seconds(baseline.step_s),
        ratio,
        size(baseline.peak_bytes),
        baseline.note,
    )


def _fields(fields: Iterator[tuple[str, str]]) -> Iterator[str]:
    for name, text in fields:
        indent = " " * 11
        wrapped = textwrap.wrap(text, COLUMNS - len(indent), break_on_hyphens=False)
        for place, line in enumerate(wrapped):
            yield f"{name:<11}{line}" if place == 0 else f"{indent}{line}"


def _table(columns: Sequence[tuple[str, int]], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    """A blank line, the header, a rule, and the rows with cells wrapped to the columns."""
    yield ""
    yield "  ".join(f"{name:<{width}}" for name, width in columns)
    yield "  ".join("-" * width for _, width in columns)
    for row in rows:
        cells = [
            textwrap.wrap(cell, width, break_on_hyphens=False)
            for cell, (_, width) in zip(row, columns, strict=True)
        ]
        for lines in zip_longest(*cells, fillvalue=""):
            yield "  ".join(
                f"{line:<{width}}" for line, (_, width) in zip(lines, columns, strict=True)
            )
