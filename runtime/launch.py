"""`shardwise train`: one rank of a job, from files to a finished run.

Run by torchrun, or alone for a plan of one rank.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from shardwise.ir.errors import MismatchError
from shardwise.ir.plan import Plan
from shardwise.ir.plan_file import load
from shardwise.ir.trace_language import trace_language_model
from shardwise.ir.trace_models import load_model
from shardwise.runtime.checkpoint import load_checkpoint, save_checkpoint
from shardwise.runtime.communicator import Communicator
from shardwise.runtime.corpus import Corpus, load_corpus
from shardwise.runtime.job import Job
from shardwise.runtime.job_schema import load_job
from shardwise.runtime.program import Program
from shardwise.runtime.safetensors_files import load_weights
from shardwise.runtime.summary import summary
from shardwise.runtime.thread_communicator import ThreadCommunicator, ThreadWorld
from shardwise.runtime.torch_communicator import BACKENDS, ProcessGroups, TorchCommunicator
from shardwise.runtime.train import Totals, Trainer, metrics_path

TIMEOUT_S = 600
"""A rank that waits this long for another one gives up."""


def build_model(job: Job) -> nn.Module:
    """The job's model with its weights, seeded or loaded."""
    model = load_model(job.model.spec, weights="random", seed=job.model.seed)
    if job.model.init != "random":
        load_weights(model, job.model.init)
    return model


@contextmanager
def connected(device: torch.device) -> Iterator[Communicator]:
    """This process's communicator: of torchrun's ranks, or of one rank alone."""
    if "RANK" not in os.environ:
        yield ThreadCommunicator(0, ThreadWorld(1))
        return
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(BACKENDS[device.type], timeout=timedelta(seconds=TIMEOUT_S))
    try:
        yield TorchCommunicator(ProcessGroups(device))
    finally:
        dist.destroy_process_group()


def train(job_path: Path, plan_path: Path, *, resume: Path | None = None) -> Totals:
    """Train a job under a plan on this rank; see docs/run.md.

    Raises ShardwiseError of some kind (one line) for a job, plan, corpus or checkpoint that does not
    fit; nothing is written before all of these have been checked.
    """
    job, plan = load_job(job_path), load(plan_path)
    device = torch.device(job.device)
    with connected(device) as communicator:
        plan.check_world(communicator.world_size)
        leader = communicator.rank == 0
        corpus = load_corpus(
            job.data.corpus,
            job.data.tokenizer,
            max_length=job.data.max_length,
            field=job.data.field,
        )
        model = build_model(job)
        longest = plan.buckets[-1].bucket.ranges[0].high
        traced = trace_language_model(
            model, compute_dtype=job.training.compute_dtype, longest=longest
        )
        plan.check_model(traced.fingerprint)
        _check_training(plan, job)
        program = Program.from_plan(model, plan, traced, communicator, device=device)
        del model
        trainer = Trainer(
            job, plan, program, corpus, communicator, say=print if leader else lambda _: None
        )
        if resume is not None:
            _restore(trainer, resume)
        job.output.folder.mkdir(parents=True, exist_ok=True)
        trainer.say(f"{plan.mesh.world_size} ranks, mesh {plan.mesh}; corpus: {corpus.describe()}")
        mode = "a" if resume is not None else "w"
        with _metrics(job.output.folder, mode, leader) as metrics:
            totals = trainer.run(metrics, _save)
        trainer.say(summary(trainer))
        return totals


def _check_training(plan: Plan, job: Job) -> None:
    if plan.training != job.training:
        raise MismatchError(
            f"at training: the plan is for {plan.training} and the job says {job.training}; make "
            "the plan again for this job"
        )


@contextmanager
def _metrics(folder: Path, mode: str, leader: bool) -> Iterator[Any]:
    if not leader:
        yield None
        return
    with metrics_path(folder).open(mode) as file:
        yield file


def _save(trainer: Trainer) -> None:
    folder = trainer.job.output.folder / f"step-{trainer.step}"
    save_checkpoint(folder, trainer.program, trainer.optimizer, _place(trainer))
    trainer.say(f"saved {folder}")


def _place(trainer: Trainer) -> dict[str, Any]:
    return {
        "step": trainer.step,
        "epoch": trainer.sampler.epoch,
        "position": trainer.sampler.position,
        "corpus": _corpus_digest(trainer.corpus),
        "model": trainer.plan.model.digest,
        "plan": trainer.plan.digest(),
    }


def _restore(trainer: Trainer, folder: Path) -> None:
    place = load_checkpoint(folder, trainer.program, trainer.optimizer)
    if place["model"] != trainer.plan.model.digest:
        raise MismatchError(
            f"{folder}: saved from another model; resume with the job that saved it"
        )
    if place["corpus"] != _corpus_digest(trainer.corpus):
        raise MismatchError(
            f"{folder}: saved with another corpus, so the place in it means nothing; resume with the "
            "corpus that it was trained on"
        )
    trainer.step = int(place["step"])
    trainer.sampler.epoch, trainer.sampler.position = place["epoch"], place["position"]


def _corpus_digest(corpus: Corpus) -> str:
    text = json.dumps(corpus.lengths().tolist())
    return hashlib.sha256(text.encode()).hexdigest()
