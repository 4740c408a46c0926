"""`shardwise train` and `shardwise export`: from files to a finished run, on one rank.

Run by torchrun, or alone for a plan of one rank. Nothing is written before job, plan, corpus, model
and checkpoint have been found to fit each other.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import nn

from shardwise.ir.errors import MismatchError
from shardwise.ir.plan import Plan
from shardwise.ir.plan_file import load
from shardwise.ir.trace_models import load_model
from shardwise.ir.trace_training import trace_of_plan
from shardwise.runtime.checkpoint import (
    load_checkpoint,
    read_masters,
    read_place,
    save_checkpoint,
)
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.corpus import Corpus, load_corpus
from shardwise.runtime.data import check_corpus, check_padding
from shardwise.runtime.job import Job
from shardwise.runtime.job_schema import load_job
from shardwise.runtime.profile_check import warn_of_changes
from shardwise.runtime.program import Program
from shardwise.runtime.ranks import connected
from shardwise.runtime.safetensors_files import fill, load_weights, merge_sections, write_model
from shardwise.runtime.summary import summary
from shardwise.runtime.train import Say, Totals, Trainer

METRICS = "metrics.jsonl"
"""File of a run's folder with one JSON object a step."""


def train(job_path: Path, plan_path: Path, *, resume: Path | None, say: Say) -> Totals:
    """Train a job under a plan on this rank; see docs/run.md. Only the first rank says anything.

    Raises ShardwiseError of some kind (one line) for a job, plan, corpus or checkpoint that does
    not fit.
    """
    job = load_job(job_path)
    with connected(torch.device(job.device)) as communicator:
        return train_on(communicator, job, load(plan_path), resume=resume, say=say)


def train_on(
    communicator: Communicator, job: Job, plan: Plan, *, resume: Path | None = None, say: Say
) -> Totals:
    """`train` on ranks that are connected already; a collective of all of them."""
    leader = communicator.rank == 0
    plan.check_world(communicator.world_size)
    corpus = load_job_corpus(job, plan)
    model = build_model(job)
    _check_vocabulary(corpus, model)
    traced = trace_of_plan(model, plan)
    plan.check_model(traced.fingerprint)
    check_padding(corpus, plan, traced)
    if job.check_profile:
        warn_of_changes(communicator, plan, torch.device(job.device), say if leader else _silent)
    program = Program.from_plan(model, plan, traced, communicator, device=job.device)
    del model
    trainer = Trainer(job, plan, program, corpus, communicator, say=say if leader else _silent)
    if resume is not None:
        restore(trainer, resume)
    job.output.folder.mkdir(parents=True, exist_ok=True)
    trainer.say(
        f"{plan.mesh.world_size} ranks, mesh {plan.mesh}; corpus: {trainer.corpus.describe()}"
    )
    with _metrics(job.output.folder / METRICS, trainer.step, leader) as metrics:
        totals = trainer.run(metrics, save)
    trainer.say(summary(trainer))
    return totals


def load_job_corpus(job: Job, plan: Plan) -> Corpus:
    """The corpus of a job; MismatchError where the plan is not for it or for this recipe."""
    if plan.training != job.training:
        raise MismatchError(
            f"at training: the plan is for '{plan.training}' and the job says '{job.training}'; "
            "make the plan again for this job"
        )
    corpus = load_corpus(
        job.data.corpus,
        job.data.tokenizer,
        max_length=job.data.max_length,
        field=job.data.field,
    )
    check_corpus(corpus, plan)
    return corpus


def build_model(job: Job) -> nn.Module:
    """The job's model with its weights, seeded or loaded."""
    model = load_model(job.model.spec, weights="random", seed=job.model.seed)
    if job.model.init != "random":
        load_weights(model, job.model.init)
    return model


def export(checkpoint: Path, job_path: Path, folder: Path) -> int:
    """Write a checkpoint's weights as safetensors under the names of the job's model.

    Returns the number of weights. Raises FileFormatError and MismatchError as `read_masters` and
    `fill`.
    """
    job = load_job(job_path)
    sections = read_place(checkpoint).get("sections", {})
    tensors = merge_sections(read_masters(checkpoint), sections)
    model = load_model(job.model.spec, weights="random", seed=job.model.seed)
    fill(model, tensors, str(checkpoint))
    write_model(model, folder)
    return len(tensors)


def save(trainer: Trainer) -> None:
    """Write the checkpoint of the trainer's step below the job's folder."""
    folder = trainer.job.output.folder / f"step-{trainer.step}"
    save_checkpoint(folder, trainer.program, trainer.optimizer, _place(trainer))
    trainer.say(f"saved {folder}")


def restore(trainer: Trainer, folder: Path) -> None:
    """Continue from a checkpoint, whatever plan and number of ranks wrote it.

    Raises MismatchError, before anything is read into the trainer, for a checkpoint of another
    model or corpus, or of another order of documents.
    """
    place, here = read_place(folder), _place(trainer)
    for key, what in (
        ("model", "another model"),
        ("corpus", "another corpus, so that its step means other documents"),
        ("documents", "another seed, tokens_per_step or held-out slice"),
    ):
        if place.get(key) != here[key]:
            raise MismatchError(
                f"{folder}: saved with {what} ({place.get(key)!r:.80} against {here[key]!r:.80}); "
                "resume with the job that saved it"
            )
    load_checkpoint(folder, trainer.program, trainer.optimizer)
    trainer.step = int(place["step"])


def _place(trainer: Trainer) -> dict[str, Any]:
    job = trainer.job
    return {
        "step": trainer.step,
        "model": trainer.plan.model.digest,
        "corpus": _corpus_digest(trainer.corpus),
        "documents": {
            "seed": job.data.seed,
            "tokens_per_step": job.tokens_per_step,
            "held_out": len(trainer.held_out),
        },
        "plan": trainer.plan.digest(),
    }


def _corpus_digest(corpus: Corpus) -> str:
    digest = hashlib.sha256(corpus.lengths().tobytes())
    for document in corpus.documents:
        digest.update(document.tobytes())
    return digest.hexdigest()


def _check_vocabulary(corpus: Corpus, model: nn.Module) -> None:
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    if size is None:
        return
    low = min(int(document.min()) for document in corpus.documents)
    high = max(int(document.max()) for document in corpus.documents)
    if low < 0 or high >= size:
        raise MismatchError(
            f"the corpus has token ids from {low} to {high} and the model knows 0 to {size - 1}; "
            "use the tokenizer of this model"
        )


@contextmanager
def _metrics(path: Path, done: int, leader: bool) -> Iterator[TextIO | None]:
    """The metrics file of a run that starts after step `done`: later lines of an earlier try go."""
    if not leader:
        yield None
        return
    lines = path.read_text().splitlines(keepends=True) if done and path.exists() else []
    with path.open("w") as file:
        file.writelines(line for line in lines if _step_of(line) <= done)
        file.flush()
        yield file


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 1 << 62  # cut off when the earlier try was killed


def _silent(_: str) -> None:
    return None
