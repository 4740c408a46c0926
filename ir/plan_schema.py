"""The form of a plan file (version 1), in pydantic: keys, types, units and what they mean.

Pydantic stands here only, at the edge. Every key is required and no other is allowed; texts
are compact forms of values, whose own parsers read them (`plan_file`). `docs/plan-file.md` is
written from this module by `docs/plan_file_page.py`.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from shardwise.ir.certificate import LongDocuments, Menu, Status
from shardwise.ir.parameter_choice import Lifetime


def described(text: str, unit: str = "", **rules: Any) -> Any:
    """A field with its meaning, its unit, and rules of pydantic such as `ge=1`."""
    return Field(description=text, json_schema_extra={"unit": unit} if unit else None, **rules)


class FileForm(BaseModel):
    """What all objects of the file share: known keys only, no conversion between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelForm(FileForm):
    """The fingerprint of the model: the plan runs on no other."""

    name: str = described("Name of the model, for people.")
    digest: str = described("SHA-256 of its operator graph: 64 hex digits.")
    parameter_count: int = described(
        "Elements of all its parameters, tied ones counted once.", "elements, global", ge=0
    )
    units: list[str] = described(
        "Its units in order, equal neighbours as one run: `embed`, `layer*32`, `head`."
    )


class TrainingForm(FileForm):
    """The training recipe, as far as prices and memory depend on it."""

    optimizer: str = described("Name of the optimizer, as `adamw`.")
    master_dtype: str = described("dtype of master weights and optimizer state.")
    compute_dtype: str = described("dtype of forward and backward.")
    reduce_dtype: str = described("dtype of gradients while they are reduced over ranks.")
    accumulate_dtype: str = described("dtype of the sum of gradients over a step.")
    trainable: list[str] = described("Globs of the names of the parameters that are trained.")
    clip_norm: float | None = described("Largest global norm of the gradients; null does not clip.")


class ParameterForm(FileForm):
    """Where some parameters rest, the same for all buckets."""

    pattern: str = described(
        "Name of a parameter; `{0:32}` stands for the numbers 0 to 31. Every name occurs once."
    )
    master: str = described(
        "Layout of the master weight and the optimizer state: `R`, or entries like "
        "`x0:S(0) data:S(0)`; never Partial."
    )
    accumulator: str = described(
        "Layout in which the gradient is summed between micro-batches; never Partial."
    )
    lifetime: str = described(
        f"How long a gathered compute copy lives: {', '.join(Lifetime)}. `step` where the "
        "master itself is the copy (replicated, in the compute dtype)."
    )


class PricesForm(FileForm):
    """A price as a sum of coefficients times monomials of the documents of one slot."""

    coefficients: dict[str, float] = described(
        "Coefficient by monomial: `1`, `B` documents, `T` tokens, `S2` sum of squared lengths, "
        "`S_src*S_tgt` sum of products, `W4096` sum of min(s, 4096) * s.",
        "unit of the price per monomial",
    )
    fit_error: float = described(
        "Largest relative difference to the planner's own price at the padded shapes.", ge=0
    )


class BucketForm(FileForm):
    """What is switched for one bucket of lengths."""

    bucket: str = described(
        "The lengths: `S(0,512]` over 0 to 512, `S_src(0,512]*S_tgt(0,128]` in two dims. "
        "Buckets ascend and are disjoint.",
        "tokens of a document",
    )
    batch_degree: int = described(
        "Replicas that take different documents of a slot: the product of the batch axes.", ge=1
    )
    seats: int = described("Documents per replica in a slot.", "documents per replica", ge=1)
    padded: list[str] = described(
        "The 1 to 4 shapes that documents are padded to, ascending: `S=256`, `S=512`.",
        "tokens of a document",
    )
    runs: list[str] = described(
        "Strategy of every unit in order, equal neighbours as one run: `embed`, `layer*32`."
    )
    time_s: PricesForm = described(
        "Time of one slot on the slowest rank, over the documents of all replicas.", "s"
    )
    peak_bytes_per_rank: PricesForm = described(
        "Peak memory while a slot runs, over the documents of all replicas.", "bytes per rank"
    )


class BaselineForm(FileForm):
    """A plan that people would write by hand, priced by the same model."""

    name: str = described("Its name, as `DDP`.")
    step_s: float | None = described("Expected time of a step; null where it cannot run.", "s")
    peak_bytes_per_rank: float | None = described(
        "Largest peak over the buckets; null where it has no legal form.", "bytes per rank"
    )
    note: str = described("What there is to say, above all why it cannot run.")


class PricedForForm(FileForm):
    """The conditions under which the prices hold."""

    cluster: str = described(
        "Name, hardware and levels of the cluster: `h100-8x8 h100-sxm node:8@nvlink cluster:8@ib`."
    )
    hardware_digest: str = described("SHA-256 of the hardware profile: 64 hex digits.")
    software_digest: str = described("SHA-256 of the software profile: 64 hex digits.")
    lengths_digest: str = described("SHA-256 of the length distribution: 64 hex digits.")
    tokens_per_step: int = described(
        "A global batch is drawn until its tokens first reach this.", "tokens, global", ge=1
    )
    memory_limit_bytes_per_rank: int = described(
        "Every peak is within this, up to the error of its fit.", "bytes per rank", ge=1
    )


class PlanForm(FileForm):
    """The file: one object."""

    version: Annotated[int, Field(ge=1, le=1)] = described("Version of this form: 1.")
    model: ModelForm = described("The model that the plan is for.")
    training: TrainingForm = described("The training recipe that it is for.")
    mesh: str = described(
        "Axes of the device mesh in parameter order, each with its ranks and link class: "
        "`stage=4@ib x0=8@nvlink data=16@ib`; `1` for one rank."
    )
    groups: list[str] = described(
        "Process groups to create: axes with commas between them, first name slowest in the "
        "order of a gather. A rank is in one group per entry, in 12 at most."
    )
    stages: list[str] = described(
        "Units of each pipeline stage, half-open: `0:9`. They cover all units.", "units"
    )
    parameters: list[ParameterForm] = described("Where each parameter rests.")
    strategies: dict[str, str] = described(
        "Every strategy that a bucket uses, by id: `tensor x0=tensor data=batch "
        "recompute=layer in=[data:S(0)] out=[data:S(0)]`."
    )
    buckets: list[BucketForm] = described("What is switched, per bucket of lengths.")
    step_s: float = described("Expected time of a step.", "s")
    bound_s: float = described(
        "No plan of the menu and price model has a smaller expected step.", "s"
    )
    gap: float = described("step_s / bound_s - 1.", ge=0)
    status: str = described(f"How the search ended: {', '.join(Status)}.")
    menu: str = described(f"What was searched: {', '.join(Menu)}.")
    menu_strategies: int = described("Strategies in the menu.", ge=1)
    covers: str = described("A sentence that says what the bound covers.")
    baselines: list[BaselineForm] = described("Plans that people would write, for comparison.")
    free_switching_price: float = described(
        "Expected step of this plan over that of the best plan of each bucket on its own.", ge=1
    )
    priced_for: PricedForForm = described("The conditions under which the prices hold.")
    long_documents: str = described(
        f"What happens to a document over the last bucket: {', '.join(LongDocuments)}."
    )
