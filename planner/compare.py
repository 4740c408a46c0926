"""`shardwise explain --flags`: a user's own plan priced beside a plan of ours.

At every padded length of every bucket: the seconds of a document under our plan (its slot's price
over the documents of the slot) and under theirs (all micro-batches of a step with the pipeline's
bubble over their documents, planner/uniform_price.py), on the same machine and recipe.
"""

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from shardwise.ir.bucket_plan import BucketPlan, PaddedShape
from shardwise.ir.config_files import load_machine
from shardwise.ir.decoder import DecoderShape
from shardwise.ir.errors import InvalidValueError, MismatchError, ShardwiseError, UnsupportedError
from shardwise.ir.plan import Plan
from shardwise.ir.plan_text import COLUMNS, seconds, size
from shardwise.planner.decoder_config import decoder_of_config
from shardwise.planner.flags import read_flags, read_flags_file
from shardwise.planner.launcher_plan import LauncherPlan, not_cut
from shardwise.planner.time_model import Pricer
from shardwise.planner.uniform_plan import UniformPlan
from shardwise.planner.uniform_price import UniformPrice, price_uniform

_TOLERANCE: Final = 0.01
"""Share of the parameters by which a config may miss the plan's model (biases of some layers)."""
_HEAD: Final = ("bucket", "length", "ours/doc", "theirs/doc", "ratio", "their step", "their peak",
                "fits")  # fmt: skip
_WIDTHS: Final = (18, 9, 11, 11, 7, 11, 11, 8)
_SAYS: Final = (
    "ours/doc: seconds of a full slot over its documents, as in the plan. theirs/doc: all "
    "micro-batches of a step, bubble included, over their documents. ratio: theirs over ours. "
    "their step: that with the reduction of gradients and the optimizer, which no column of ours "
    "has.",
    "Not modelled for theirs: seats filled with shorter documents, lengths mixed in one step, data "
    "loading, checkpoints, and the launcher's own kernels: both are priced by the same tables.",
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Their plan beside ours, at every padded length."""

    theirs: LauncherPlan
    rows: tuple[tuple[str, ...], ...]
    """Cells in the order of the table's head."""
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(line.rstrip() for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield from textwrap.wrap(f"their plan ({self.theirs.form}): {self.theirs.plan}", COLUMNS)
        yield ""
        for cells in (_HEAD, tuple("-" * width for width in _WIDTHS), *self.rows):
            yield "  ".join(f"{c:<{w}}" for c, w in zip(cells, _WIDTHS, strict=True))
        yield ""
        for note in self.notes:
            yield from textwrap.wrap(f"- {note}", COLUMNS, subsequent_indent="  ")
        for text in _SAYS:
            yield from textwrap.wrap(text, COLUMNS)


@dataclass(frozen=True)
class OtherPlan:
    """What flags state, and what prices it: the machine and recipe of a plan of ours."""

    launcher: LauncherPlan
    shape: DecoderShape
    pricer: Pricer
    tokens_per_step: int
    """Of the plan of ours."""
    notes: tuple[str, ...]

    def at(self, length: int) -> UniformPlan:
        """Their plan at a length, with the micro-batches that it has there."""
        made = replace(self.launcher.plan, sequence_length=length)
        if self.launcher.counts_micro_batches:
            return made
        tokens = made.data * made.micro_batch * length
        return replace(made, micro_batches=max(1, round(self.tokens_per_step / tokens)))

    def price(self, plan: UniformPlan) -> UniformPrice:
        """The price of their plan; a ShardwiseError says that it is theirs that has none."""
        try:
            return price_uniform(self.shape, plan, self.pricer)
        except ShardwiseError as error:
            raise type(error)(f"their plan can't be priced: {error}") from None


def other_plan(
    plan: Plan,
    *,
    model: str,
    cluster: Path,
    flags: str | None = None,
    flags_file: Path | None = None,
) -> OtherPlan:
    """Read the plan that flags state, for the model and cluster of `plan`.

    `model` is hf:config.json, `cluster` the file of the cluster that the plan is for. Raises
    ShardwiseError for flags that are unknown or contradict each other, the model, the cluster or
    the plan, and for files that are bad or of something else.
    """
    shape = _shape(plan, model)
    found, hardware, software = load_machine(cluster)
    if found.limited(None) != plan.priced_for.cluster.limited(None):
        raise MismatchError(
            f"{cluster} is {found}, the plan is for {plan.priced_for.cluster}; give the cluster "
            "that the plan was made for"
        )
    theirs = _theirs(flags, flags_file, shape, found.world_size)
    _check_dtype(plan, theirs)
    notes = list(theirs.notes)
    if whole := not_cut(shape, theirs.plan):
        notes.append(f"{whole}: priced as if every rank of it computed that part whole")
    if (plan.priced_for.hardware_digest, plan.priced_for.software_digest) != (
        hardware.digest(),
        software.digest(),
    ):
        notes.append(
            "the profiles beside the cluster file are not those that the plan was priced with: "
            "plan again before you compare"
        )
    if abs(shape.parameters / plan.model.parameter_count - 1) > 0:
        notes.append(
            f"the config has {shape.parameters:,} parameters, the plan's model "
            f"{plan.model.parameter_count:,}"
        )
    if theirs.linear_dtype:
        notes.append("their products with weights are priced in float8; ours are as planned")
    if not theirs.counts_micro_batches:
        notes.append(
            "micro-batches of a step are not stated: as many as reach the plan's "
            f"{plan.priced_for.tokens_per_step:,} tokens per step"
        )
    limited = found.limited(plan.priced_for.memory_limit_bytes_per_rank)
    pricer = Pricer(limited, hardware, software, plan.training, theirs.linear_dtype)
    return OtherPlan(theirs, shape, pricer, plan.priced_for.tokens_per_step, tuple(notes))


def compare(
    plan: Plan,
    *,
    model: str,
    cluster: Path,
    flags: str | None = None,
    flags_file: Path | None = None,
) -> Comparison:
    """Price the plan that flags state beside `plan`; what is read and raised as in `other_plan`."""
    other = other_plan(plan, model=model, cluster=cluster, flags=flags, flags_file=flags_file)
    rows = [
        _row(plan, bucket, padded, other) for bucket in plan.buckets for padded in bucket.padded
    ]
    length = other.launcher.sequence_length
    if length is not None:
        one, *totals = _priced(other, length)
        rows.append(("as they state it", str(length), "-", seconds(one), "-", *totals))
    return Comparison(other.launcher, tuple(rows), other.notes)


def _shape(plan: Plan, model: str) -> DecoderShape:
    kind, _, path = model.partition(":")
    if kind != "hf" or not path:
        raise UnsupportedError(
            f"model {model!r}: plans of other launchers are priced for a model by its sizes; give "
            "hf:config.json, with its path after hf:"
        )
    shape = decoder_of_config(path)
    count = plan.model.parameter_count
    if abs(shape.parameters - count) > _TOLERANCE * count:
        raise MismatchError(
            f"{path} has {shape.parameters:,} parameters, the plan's model {plan.model.name} "
            f"{count:,}; give the config of that model"
        )
    return shape


def _theirs(
    flags: str | None, flags_file: Path | None, shape: DecoderShape, world_size: int
) -> LauncherPlan:
    if flags is not None and flags_file is None:
        return read_flags(flags, shape, world_size)
    if flags_file is not None and flags is None:
        return read_flags_file(flags_file, shape, world_size)
    raise InvalidValueError("give either --flags or --flags-file")


def _check_dtype(plan: Plan, theirs: LauncherPlan) -> None:
    ours = plan.training.compute_dtype
    if theirs.compute_dtype not in (None, ours):
        raise MismatchError(
            f"the flags compute in {theirs.compute_dtype}, the plan in {ours}; plan with that "
            "compute dtype to compare"
        )


def _row(plan: Plan, bucket: BucketPlan, padded: PaddedShape, other: OtherPlan) -> tuple[str, ...]:
    sizes = dict(padded.sizes)
    if list(sizes) != ["S"]:
        raise UnsupportedError(
            f"bucket {bucket.bucket} has the dims {', '.join(sizes)}: plans of other launchers are "
            "priced for one length, S"
        )
    ours = bucket.price_of(bucket.time, padded) / bucket.documents_per_slot
    head = (str(bucket.bucket), str(sizes["S"]), seconds(ours))
    limit = other.launcher.sequence_length
    if limit is not None and sizes["S"] > limit:
        return (*head, "-", "-", "-", "-", f"over {limit}")
    one, *totals = _priced(other, sizes["S"])
    return (*head, seconds(one), f"{one / ours:.3g}", *totals)


def _priced(other: OtherPlan, length: int) -> tuple[float, str, str, str]:
    """Seconds a document; their step, their peak, and whether it fits."""
    made = other.at(length)
    price = other.price(made)
    one = price.pipeline_s / made.documents_per_step
    return one, seconds(price.step_s), size(price.peak_bytes), "yes" if price.fits else "no"
