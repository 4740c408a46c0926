"""Trainers of the tiny decoder on any communicator, and runs of a job in this process."""

from shardwise.runtime.corpus import Corpus
from shardwise.runtime.job_schema import load_job
from shardwise.runtime.launch import build_model, load_job_corpus
from shardwise.runtime.program import Program
from shardwise.runtime.thread_communicator import ThreadCommunicator, ThreadWorld
from shardwise.runtime.train import Trainer
from tests.support.tiny_decoder import traced


def alone():
    """The communicator of one rank."""
    return ThreadCommunicator(0, ThreadWorld(1))


def trainer_of(communicator, job_path, plan, *, model=None, corpus: Corpus | None = None):
    """A trainer of a job that names the tiny decoder; simulated ranks share one `model`, since
    seeding and tracing are not for threads."""
    job = load_job(job_path)
    corpus = corpus or load_job_corpus(job, plan)
    model = model if model is not None else build_model(job)
    program = Program.from_plan(model, plan, traced(), communicator)
    said: list[str] = []
    trainer = Trainer(job, plan, program, corpus, communicator, say=said.append)
    trainer.said = said
    return trainer


def losses(trainer, steps):
    """Losses of the next steps."""
    return [trainer.one_step()["loss"] for _ in range(steps)]
