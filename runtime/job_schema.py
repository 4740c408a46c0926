"""The keys of a job file, in pydantic, and how they become a `Job`.

docs/job-file.md is generated from this schema.
"""

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from shardwise.ir.errors import FileFormatError, InvalidValueError
from shardwise.ir.form_errors import checked_form
from shardwise.ir.training import TrainingSpec
from shardwise.runtime.job import (
    DataSource,
    Job,
    ModelSource,
    Optimizer,
    Output,
    Schedule,
)


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ModelForm(_Form):
    """What is trained."""

    spec: str = Field(
        description="hf:PATH.json (a transformers config), or module:function (a torch module)"
    )
    init: str = Field("random", description="random, or hf:DIR (weights from safetensors)")
    seed: int = Field(0, ge=0, description="of the random weights")


class DataForm(_Form):
    """What it is trained on."""

    corpus: str = Field(
        description="stdlib, a path or glob of .txt, .jsonl or .npy files, or module:function"
    )
    tokenizer: str = Field("bytes", description="bytes, or hf:DIR")
    max_length: int = Field(8192, ge=1, description="tokens; longer documents are split at it")
    field: str = Field("text", description="key of the text in .jsonl files")
    seed: int = Field(0, ge=0, description="of the order of the documents")


class TrainingForm(_Form):
    """How it is trained."""

    steps: int = Field(ge=1, description="optimizer steps")
    tokens_per_step: int = Field(
        ge=1, description="global; a step ends with the document that first reaches it"
    )
    optimizer: str = Field("adamw", description="adamw or sgd")
    learning_rate: float = Field(3e-4, gt=0, description="peak of the schedule")
    schedule: str = Field("constant", description="constant, linear or cosine")
    warmup_steps: int = Field(0, ge=0, description="of linear warm-up; at most steps")
    learning_rate_floor: float = Field(0.0, ge=0, description="end of linear and cosine")
    betas: list[float] = Field(
        [0.9, 0.95], min_length=2, max_length=2, description="of adamw; each under 1"
    )
    epsilon: float = Field(1e-8, gt=0, description="of adamw")
    weight_decay: float = Field(0.1, ge=0, description="decoupled for adamw")
    clip_norm: float | None = Field(None, description="largest global 2-norm of the gradient")
    compute_dtype: str = Field("float32", description="of forward and backward")
    master_dtype: str = Field("float32", description="of the weights that are stepped")
    reduce_dtype: str = Field("float32", description="of gradients in collectives")
    accumulate_dtype: str = Field("float32", description="of the sum over micro-batches")


class RunForm(_Form):
    """Where it runs and what it writes."""

    folder: str = Field(description="metrics and checkpoints go here")
    device: str = Field("cpu", description="cpu (gloo) or cuda (nccl)")
    memory_limit_bytes_per_rank: int | None = Field(
        None, description="plan for this much; none: what the device has"
    )
    save_every: int = Field(0, ge=0, description="steps between checkpoints; 0: at the end only")
    eval_every: int = Field(0, ge=0, description="steps between evaluations; 0: never")
    eval_documents: int = Field(
        64, ge=1, description="the last of the corpus, held out where eval_every is set"
    )
    log_every: int = Field(1, ge=1, description="steps between progress lines")
    check_profile: bool = Field(
        True, description="warn at the start where the machine differs from the plan's profile"
    )


class JobForm(_Form):
    """A job file."""

    model: ModelForm
    data: DataForm
    training: TrainingForm
    run: RunForm


def load_job(path: str | Path) -> Job:
    """The job in a TOML file; FileFormatError (one line: file, key, remedy) for a bad one."""
    try:
        with Path(path).open("rb") as file:
            tree = tomllib.load(file)
    except OSError as error:
        raise FileFormatError(
            f"{path}: cannot be read ({error.strerror}); give the path of a job file"
        ) from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, too deep, huge numbers
        problem = " ".join(str(error).split())
        raise FileFormatError(f"{path}: not TOML ({problem}); repair it there") from error
    try:
        form = checked_form(JobForm, tree)
        return _job(form, Path(path))
    except (FileFormatError, InvalidValueError) as error:
        raise FileFormatError(f"{path}: {error}") from error


def _job(form: JobForm, path: Path) -> Job:
    recipe, run = form.training, form.run
    optimizer = Optimizer(  # first: of the optimizers that a plan knows, a job runs a few
        recipe.optimizer,
        (recipe.betas[0], recipe.betas[1]),
        recipe.epsilon,
        recipe.weight_decay,
    )
    return Job(
        ModelSource(form.model.spec, form.model.init, form.model.seed),
        DataSource(
            form.data.corpus,
            form.data.tokenizer,
            form.data.max_length,
            form.data.field,
            form.data.seed,
        ),
        TrainingSpec(
            recipe.optimizer,
            recipe.master_dtype,
            recipe.compute_dtype,
            recipe.reduce_dtype,
            recipe.accumulate_dtype,
            clip_norm=recipe.clip_norm,
        ),
        optimizer,
        Schedule(
            recipe.learning_rate,
            recipe.warmup_steps,
            recipe.schedule,
            recipe.learning_rate_floor,
        ),
        Output(Path(run.folder), run.save_every, run.eval_every, run.eval_documents),
        recipe.steps,
        recipe.tokens_per_step,
        run.device,
        run.memory_limit_bytes_per_rank,
        run.log_every,
        path,
        run.check_profile,
    )
