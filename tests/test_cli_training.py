"""The commands lengths, train and export, run in this process on one rank."""

from pathlib import Path

import pytest

from shardwise import Lengths
from shardwise.ir.lengths_file import read_lengths
from shardwise.ir.plan_file import save
from tests.support.tiny_decoder import plan_of, write_job
from tests.test_cli import assert_one_line, run

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)


def test_lengths_prints_percentiles_and_writes_what_plan_reads(
    tmp_path: Path, capsys: Capture
) -> None:
    corpus, output = tmp_path / "d.jsonl", tmp_path / "lengths.csv"
    corpus.write_text("".join(f'{{"body": "{"x" * n}"}}\n' for n in (1, 2, 3, 50, 0)))
    assert (
        run("lengths", str(corpus), "-o", str(output), "--max-length", "20", "--field", "body") == 0
    )
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == (
        f"{corpus}: 6 documents, 56 tokens, longest 20; 1 longer documents split, 1 empty left out"
    )
    assert printed[-1] == f"wrote {output}"
    assert printed[-2].split() == ["100", "20", "20"]
    histogram = read_lengths(output)
    assert isinstance(histogram, Lengths)
    assert sum(bin_.documents for bin_ in histogram.bins) == 6


def test_train_and_export(tmp_path: Path, capsys: Capture) -> None:
    changes = [("steps = 4", "steps = 1"), ("warmup_steps = 2", "warmup_steps = 1")]
    job, plan = write_job(tmp_path, changes), tmp_path / "plan.json"
    save(plan_of("1"), plan)
    assert run("train", str(job), "--plan", str(plan)) == 0
    output = capsys.readouterr().out.splitlines()
    assert output[1].startswith("step 1/1  loss ") and "0 switches, 0 bytes moved by them" in output
    step, out = tmp_path / "run" / "step-1", tmp_path / "out"
    assert run("train", str(job), "--plan", str(plan), "--resume", str(step)) == 0
    assert "nothing to train: step 1 of 1" in capsys.readouterr().out
    assert run("export", str(step), "--job", str(job), "-o", str(out)) == 0
    assert capsys.readouterr().out == f"wrote 15 weights to {out}\n"
    assert (out / "model.safetensors").is_file()


def test_errors_are_one_line(tmp_path: Path, capsys: Capture) -> None:
    job, plan = write_job(tmp_path), tmp_path / "plan.json"
    missing = str(tmp_path / "none")
    for arguments, parts in (
        (["train", missing, "--plan", missing], ("cannot be read", "job file")),
        (["train", str(job), "--plan", missing], ("cannot be read", "plan file")),
        (["export", missing, "--job", str(job), "-o", missing], ("no complete checkpoint",)),
        (["lengths", missing, "-o", missing], ("no such file",)),
    ):
        assert run(*arguments) == 2
        assert_one_line(capsys.readouterr().err, *parts)
    save(plan_of("x0=2@l"), plan)
    assert run("train", str(job), "--plan", str(plan)) == 2
    assert_one_line(capsys.readouterr().err, "the plan is for 2 ranks", "1 run")


def test_verify_replays_the_jobs_model(tmp_path: Path, capsys: Capture) -> None:
    job, plan = write_job(tmp_path), tmp_path / "plan.json"
    save(plan_of("x0=2@l"), plan)
    assert run("verify", str(plan), "--job", str(job)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "model tests.support.tiny_decoder:build, whole"
    assert lines[1].startswith("replayed on 2 simulated ranks") and lines[-1].startswith("passed (")
    assert any(line.startswith("float32: errors over the module's own: ") for line in lines)


def test_verify_of_what_does_not_pass_exits_with_1(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardwise.runtime.verify_report.GRADIENT_TOLERANCE", 0.0)
    job, plan = write_job(tmp_path), tmp_path / "plan.json"
    save(plan_of("x0=2@l"), plan)
    assert run("verify", str(plan), "--job", str(job)) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("NOT PASSED (")
