"""What a user can get wrong, from the command line: one clear line on stderr, exit code 2."""

from pathlib import Path

import pytest

from shardwise.ir.plan_file import save
from tests.support.tiny_decoder import plan_of, write_job
from tests.test_cli import assert_one_line, run

ROOT = Path(__file__).parents[1]
CLUSTER = ROOT / "configs" / "clusters" / "local-2.toml"
MODEL = "tests.support.tiny_decoder:build"
SHORT = ((0, 16, "data", 2), (16, 32, "data", 1))
"""Bands that do not hold the longest document."""

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good file of each kind; a case spoils one."""
    write_job(tmp_path)
    (tmp_path / "lengths.csv").write_text(
        "S_low,S_high,documents,S_tokens\n1,16,50,450\n16,64,20,800\n"
    )
    for name in ("clusters/local-2.toml", "hardware/cpu-gloo.toml", "software/torch-cpu.toml"):
        copy = tmp_path / "configs" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((ROOT / "configs" / name).read_text())
    save(plan_of("1"), tmp_path / "plan.json")
    return tmp_path


def plan_command(folder: Path, model: str = MODEL, *more: str) -> list[str]:
    return [
        "plan", model, "--cluster", str(folder / "configs/clusters/local-2.toml"),
        "--lengths", str(folder / "lengths.csv"), "--tokens-per-step", "256",
        "--compute-dtype", "float32", "-o", str(folder / "out" / "plan.json"), *more,
    ]  # fmt: skip


def train_command(folder: Path) -> list[str]:
    return ["train", str(folder / "job.toml"), "--plan", str(folder / "plan.json")]


def spoil(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_good_files_are_good(folder: Path, capsys: Capture) -> None:
    assert run(*plan_command(folder)) == 0
    assert run(*train_command(folder)) == 0
    capsys.readouterr()


JOB = "job.toml"
CASES: dict[str, tuple[str, str, str, str, tuple[str, ...]]] = {
    "unknown key of a cluster": (
        "plan", "configs/clusters/local-2.toml", "name =", "nodes = 3\nname =",
        ("local-2.toml", "nodes", "known are"),
    ),
    "misspelt key of a cluster": (
        "plan", "configs/clusters/local-2.toml", "size = 2", "sise = 2",
        ("local-2.toml", "sise", "rename it to size"),
    ),
    "negative lengths": (
        "plan", "lengths.csv", "1,16,50,450", "-4,16,50,450", ("lengths.csv:2", "-4", "below 0"),
    ),
    "negative count": (
        "plan", "lengths.csv", "1,16,50,450", "1,16,-50,450",
        ("lengths.csv:2", "-50", "at least 0"),
    ),
    "unknown key of a job": (
        "train", JOB, "tokens_per_step", "token_per_step",
        ("job.toml", "training.token_per_step", "rename it to tokens_per_step"),
    ),
    "unknown section of a job": (
        "train", JOB, "[run]", "[runs]", ("job.toml", "runs", "run"),
    ),
    "beta of 1": (
        "train", JOB, "steps = 4", "steps = 4\nbetas = [0.9, 1.0]", ("job.toml", "betas", "1.0"),
    ),
    "negative beta": (
        "train", JOB, "steps = 4", "steps = 4\nbetas = [-0.1, 0.9]", ("job.toml", "betas", "-0.1"),
    ),
    "warm-up over steps": (
        "train", JOB, "warmup_steps = 2", "warmup_steps = 5",
        ("job.toml", "5 warm-up steps of 4", "training.warmup_steps"),
    ),
    "an optimizer that shards do not step alone": (
        "train", JOB, "steps = 4", 'steps = 4\noptimizer = "muon"',
        ("job.toml", "optimizer 'muon': this version runs adamw and sgd; set"),
    ),
    "an optimizer that plans know": (
        "train", JOB, "steps = 4", 'steps = 4\noptimizer = "adam"',
        ("job.toml", "optimizer 'adam': this version runs adamw and sgd; set"),
    ),
    "an optimizer that nobody knows": (
        "train", JOB, "steps = 4", 'steps = 4\noptimizer = "lion"',
        ("job.toml", "optimizer 'lion': this version runs adamw and sgd; set"),
    ),
    "a changed model": (
        "train", JOB, ":build", ":build_other", ("at model", "the plan is for"),
    ),
    "another recipe": (
        "train", JOB, "steps = 4", "steps = 4\nclip_norm = 1.0", ("at training",),
    ),
    "a corpus that is not there": (
        "train", JOB, "tests.support.tiny_decoder:corpus", "none-*.txt", ("none-*.txt",),
    ),
}  # fmt: skip
"""Name -> command, the file that is spoilt, old and new text, parts of the line."""


@pytest.mark.parametrize("case", CASES)
def test_a_spoilt_file_is_one_line(case: str, folder: Path, capsys: Capture) -> None:
    command, name, old, new, parts = CASES[case]
    spoil(folder / name, old, new)
    assert run(*(plan_command(folder) if command == "plan" else train_command(folder))) == 2
    assert_one_line(capsys.readouterr().err, *parts)
    assert not (folder / "run").exists() and not (folder / "out" / "plan.json").exists()


def test_an_untraceable_model_is_named_by_module_and_line(folder: Path, capsys: Capture) -> None:
    assert run(*plan_command(folder, "tests.support.untraceable:build")) == 2
    error = capsys.readouterr().err
    assert_one_line(error, "gate", "untraceable.py:11")


def test_no_strategy_that_fits(folder: Path, capsys: Capture) -> None:
    assert run(*plan_command(folder, MODEL, "--memory-limit", "1000000")) == 2
    assert_one_line(
        capsys.readouterr().err, "no strategy fits", "1000000", "bytes short", "nearest fixes"
    )


@pytest.mark.parametrize("text", ["", "\n"])
@pytest.mark.parametrize("command", ["lengths", "train"])
def test_an_empty_corpus(command: str, text: str, folder: Path, capsys: Capture) -> None:
    corpus = folder / "corpus.jsonl"
    corpus.write_text(text)
    arguments = ["lengths", str(corpus), "-o", str(folder / "new.csv")]
    if command == "train":
        spoil(folder / JOB, "tests.support.tiny_decoder:corpus", str(corpus))
        arguments = train_command(folder)
    assert run(*arguments) == 2
    assert_one_line(capsys.readouterr().err, "corpus.jsonl", "no document with a token")


@pytest.mark.parametrize("ranks", ["x0=2@l data=2@l", "x0=2@l"])
def test_a_plan_for_more_ranks(ranks: str, folder: Path, capsys: Capture) -> None:
    """On 2 real ranks: tests/distributed/test_training.py."""
    plan = plan_of(ranks)
    save(plan, folder / "plan.json")
    assert run(*train_command(folder)) == 2
    assert_one_line(
        capsys.readouterr().err, f"the plan is for {plan.mesh.world_size} ranks", "1 run"
    )


def test_a_document_over_the_last_bucket(folder: Path, capsys: Capture) -> None:
    save(plan_of("1", bands=SHORT), folder / "plan.json")
    assert run(*train_command(folder)) == 2
    assert_one_line(
        capsys.readouterr().err, "no bucket of the plan holds it", "S(16,32]",
        "set data.max_length to 32",
    )  # fmt: skip


def test_verify_of_a_changed_model(folder: Path, capsys: Capture) -> None:
    spoil(folder / JOB, ":build", ":build_other")
    assert run("verify", str(folder / "plan.json"), "--job", str(folder / JOB)) == 2
    assert_one_line(capsys.readouterr().err, "at model", "the plan is for")
