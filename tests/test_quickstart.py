"""The quickstart job: what its plan chooses and why, and that the choices are executed."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardwise.ir.config_files import load_machine
from shardwise.ir.lengths import Lengths
from shardwise.ir.plan_file import save
from shardwise.ir.trace_language import trace_language_model
from shardwise.ir.trace_models import load_model
from shardwise.planner.api import plan
from shardwise.planner.edges import last_edge
from shardwise.planner.search import Request, Search
from shardwise.runtime.corpus import load_corpus
from shardwise.runtime.data import Sampler, step_data
from shardwise.runtime.job_schema import load_job
from tests.support.one_strategy import expected_step_s, fastest, least_bytes, strategies

ROOT = Path(__file__).parents[1]
JOB = ROOT / "configs" / "jobs" / "quickstart.toml"
CLUSTER = ROOT / "configs" / "clusters" / "local-2.toml"


@pytest.fixture(scope="module")
def job():
    return load_job(JOB)


@pytest.fixture(scope="module")
def corpus(job):
    return load_corpus(job.data.corpus, job.data.tokenizer, max_length=job.data.max_length)


@pytest.fixture(scope="module")
def lengths(corpus):
    return Lengths.from_samples(corpus.lengths(), source="stdlib")


@pytest.fixture(scope="module")
def traced(job, lengths):
    model = load_model(str(job.model.spec).replace("hf:", f"hf:{ROOT}/"))
    longest = last_edge(lengths, 2)
    return trace_language_model(model, compute_dtype=job.training.compute_dtype, longest=longest)


@pytest.fixture(scope="module")
def made(job, lengths, traced):
    return plan(
        traced, cluster=CLUSTER, lengths=lengths, tokens_per_step=job.tokens_per_step,
        training=job.training, memory_limit_bytes_per_rank=job.memory_limit_bytes_per_rank,
    )  # fmt: skip


@pytest.fixture(scope="module")
def search(job, lengths, traced):
    machine = load_machine(CLUSTER)
    limit = job.memory_limit_bytes_per_rank
    return Search(Request(traced, *machine, job.training, lengths, job.tokens_per_step, limit))


def strategies_of(made, slots):
    return {made.unit_strategies(made.buckets[slot.bucket])[0] for slot in slots}


@pytest.fixture(scope="module")
def met(job, corpus, made):
    """The strategies that the first steps of the job meet: one set for each number of steps."""
    sampler = Sampler(corpus.lengths(), tokens_per_step=job.tokens_per_step, seed=job.data.seed)
    found = [set()]
    for step in range(job.steps):
        slots = step_data(corpus, made, sampler.batch(step)).slots
        found.append(found[-1] | strategies_of(made, slots))
    return found


def test_the_jobs_own_documents_meet_two_strategies(met):
    assert len(met[-1]) >= 2, met[-1]


def test_each_strategy_alone_is_slower_or_does_not_fit(made, search):
    alone = {kind: expected_step_s(search, *kind) for kind in strategies(search)}
    assert None in alone.values(), "the memory limit forbids nothing"
    for kind, step_s in alone.items():
        assert step_s is None or step_s > 1.001 * made.step_s, (kind, step_s, made.step_s)


def test_what_is_fastest_for_short_documents_does_not_fit_the_longest(job, search):
    short, longest = search.edges[1], search.edges[-1]
    kind = fastest(search, short)
    limit = job.memory_limit_bytes_per_rank
    assert least_bytes(search, short, kind) <= limit < least_bytes(search, longest, kind), kind


def test_two_ranks_execute_two_strategies(job, made, met, tmp_path):
    """The job as it is, as many steps of it as it takes to meet two, started by torchrun."""
    steps = next(number for number, names in enumerate(met) if len(names) >= 2)
    path, text = tmp_path / "job.toml", JOB.read_text()
    for old, new in (
        (f"steps = {job.steps}", f"steps = {steps}"),
        (f"warmup_steps = {job.schedule.warmup_steps}", "warmup_steps = 1"),
        (str(job.output.folder), str(tmp_path / "run")),
    ):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    save(made, tmp_path / "plan.json")
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "shardwise", "train", str(path), "--plan", str(tmp_path / "plan.json"),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    executed = {name.partition("@")[0] for line in lines for name in line["slots"]}
    assert executed == met[steps] and len(lines) == steps
    (line,) = [line for line in done.stdout.splitlines() if "switches" in line]
    count, _, rest = line.partition(" ")
    assert int(count) > 0 and rest == "switches, 0 bytes moved by them"
    assert all(math.isfinite(line["loss"]) for line in lines)
