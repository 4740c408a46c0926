"""Job files: every key, and one line for what is wrong with one."""

import math
from pathlib import Path

import pytest

from shardwise.ir.errors import FileFormatError, InvalidValueError
from shardwise.ir.training import TrainingSpec
from shardwise.runtime.job import Optimizer, Schedule
from shardwise.runtime.job_schema import load_job

ROOT = Path(__file__).parents[2]

SMALL = """\
[model]
spec = "hf:m.json"

[data]
corpus = "stdlib"

[training]
steps = 3
tokens_per_step = 100

[run]
folder = "out"
"""


def write(folder, text):
    path = folder / "job.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", sorted((ROOT / "configs/jobs").glob("*.toml")), ids=str)
def test_shipped_jobs_load(path):
    assert load_job(path).path == path


def test_defaults(tmp_path):
    job = load_job(write(tmp_path, SMALL))
    assert (job.model.init, job.data.tokenizer, job.data.max_length) == ("random", "bytes", 8192)
    assert (job.steps, job.tokens_per_step, job.device) == (3, 100, "cpu")
    assert job.training == TrainingSpec()
    assert job.schedule == Schedule() and job.optimizer == Optimizer()
    assert job.output.folder == Path("out") and job.output.eval_every == 0


def test_every_key_arrives(tmp_path):
    text = """\
[model]
spec = "a:b"
init = "hf:weights"
seed = 7
[data]
corpus = "*.jsonl"
tokenizer = "hf:tok"
max_length = 99
field = "body"
seed = 8
[training]
steps = 3
tokens_per_step = 100
optimizer = "sgd"
learning_rate = 0.5
schedule = "linear"
warmup_steps = 2
learning_rate_floor = 0.125
betas = [0.5, 0.75]
epsilon = 1e-6
weight_decay = 0.25
clip_norm = 2.0
compute_dtype = "bfloat16"
master_dtype = "float64"
reduce_dtype = "bfloat16"
accumulate_dtype = "float64"
[run]
folder = "out"
device = "cuda"
memory_limit_bytes_per_rank = 1000
save_every = 4
eval_every = 5
eval_documents = 6
log_every = 9
"""
    job = load_job(write(tmp_path, text))
    assert (job.model.spec, job.model.init, job.model.seed) == ("a:b", "hf:weights", 7)
    data = job.data
    assert (data.corpus, data.tokenizer, data.field) == ("*.jsonl", "hf:tok", "body")
    assert (data.max_length, data.seed) == (99, 8)
    assert job.training == TrainingSpec("sgd", "float64", "bfloat16", "bfloat16", "float64",
                                        clip_norm=2.0)  # fmt: skip
    assert job.optimizer == Optimizer("sgd", (0.5, 0.75), 1e-6, 0.25)
    assert job.schedule == Schedule(0.5, 2, "linear", 0.125)
    output = job.output
    assert (output.save_every, output.eval_every, output.eval_documents) == (4, 5, 6)
    assert (job.device, job.memory_limit_bytes_per_rank, job.log_every) == ("cuda", 1000, 9)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("steps = 3", "step = 3", ("training.step", "rename it to steps")),
        ("[run]", "[output]", ("output", "known are model, data, training, run")),
        ("steps = 3\n", "", ("training.steps", "missing")),
        ("steps = 3", 'steps = "3"', ("training.steps", "an integer")),
        ("steps = 3", "steps = 0", ("training.steps", ">= 1")),
        ("steps = 3", "steps = 3.5", ("training.steps", "an integer")),
        ("steps = 3", "steps = true", ("training.steps", "an integer")),
        ('corpus = "stdlib"', "corpus = 3", ("data.corpus", "a string")),
        ("steps = 3", 'steps = 3\nschedule = "step"', ("'step'", "constant, linear or cosine")),
        ("steps = 3", 'steps = 3\noptimizer = "lion"', ("'lion'",)),
        ("steps = 3", 'steps = 3\noptimizer = "muon"', ("'muon'", "adamw and sgd")),
        ("steps = 3", 'steps = 3\ncompute_dtype = "fp8"', ("fp8",)),
        ("steps = 3", "steps = 3\nbetas = [0.9]", ("training.betas",)),
        ("steps = 3", "steps = 3\nclip_norm = -1.0", ("clip_norm",)),
        ("steps = 3", "steps = 3\nlearning_rate_floor = 1.0", ("floor",)),
        ('folder = "out"', 'folder = "out"\ndevice = "tpu"', ("'tpu'", "cpu or cuda")),
        ("[run]", "[run", ("not TOML",)),
    ],
)
def test_one_line_for_a_bad_file(tmp_path, old, new, parts):
    assert old in SMALL
    path = write(tmp_path, SMALL.replace(old, new))
    with pytest.raises(FileFormatError) as caught:
        load_job(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and "\n" not in line
    for part in parts:
        assert part in line


def test_missing_file(tmp_path):
    with pytest.raises(FileFormatError, match=r"none\.toml: cannot be read .*job file"):
        load_job(tmp_path / "none.toml")


def test_schedules():
    constant = Schedule(2.0, 4)
    assert [constant.rate(step, 10) for step in range(6)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    linear = Schedule(2.0, 2, "linear", 1.0)
    assert [linear.rate(step, 6) for step in range(6)] == [1.0, 2.0, 2.0, 1.75, 1.5, 1.25]
    cosine = Schedule(1.0, 0, "cosine", 0.5)
    assert cosine.rate(0, 4) == 1.0
    assert cosine.rate(2, 4) == pytest.approx(0.75)
    assert cosine.rate(1, 4) == pytest.approx(0.5 + 0.25 * (1 + math.cos(math.pi / 4)))
    assert Schedule(1.0, 5, "cosine").rate(4, 5) == 1.0


@pytest.mark.parametrize("bad", [{"peak": 0.0}, {"floor": 1.0}, {"warmup_steps": -1}])
def test_schedules_are_checked(bad):
    with pytest.raises(InvalidValueError, match="schedule with peak"):
        Schedule(**bad)
