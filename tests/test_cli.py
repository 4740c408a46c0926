"""The command line: what it prints, and one line for everything that a user can get wrong."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import shardwise
from shardwise import Plan, cli
from shardwise.ir import plan_file, plan_text

ROOT = Path(__file__).parents[1]
PLANS = sorted((ROOT / "examples" / "plans").glob("*.json"))
EXAMPLE = PLANS[0]

Capture = pytest.CaptureFixture[str]


def run(*arguments: str) -> int:
    """The exit code of `shardwise ARGUMENTS`, run in this process."""
    before = sys.argv
    sys.argv = ["shardwise", *arguments]
    try:
        with pytest.raises(SystemExit) as exit_:
            cli.main()
    finally:
        sys.argv = before
    return int(exit_.value.code or 0)


def assert_one_line(error: str, *parts: str) -> None:
    assert error.startswith("shardwise: ") and error.endswith("\n")
    assert error.count("\n") == 1 and "Traceback" not in error
    for part in parts:
        assert part in error


def test_the_installed_command_is_main() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="shardwise")
    assert script.load() is cli.main


def test_version(capsys: Capture) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"shardwise {shardwise.__version__}\n"
    assert importlib.metadata.version("shardwise") == shardwise.__version__


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.stem)
def test_explain_prints_the_plan(plan: Path, capsys: Capture) -> None:
    assert run("explain", str(plan)) == 0
    output = capsys.readouterr()
    assert output.out == plan_text.render(plan_file.load(plan))
    assert output.err == ""


def test_explain_needs_one_file(capsys: Capture) -> None:
    assert run("explain") == 2
    assert "PLAN.json" in capsys.readouterr().err


def test_an_unknown_command_is_refused(capsys: Capture) -> None:
    assert run("explian", str(EXAMPLE)) == 2
    assert "explian" in capsys.readouterr().err


def test_a_missing_file_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    assert run("explain", str(tmp_path / "plan.json")) == 2
    assert_one_line(capsys.readouterr().err, "plan.json", "No such file")


def test_a_folder_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    assert run("explain", str(tmp_path)) == 2
    assert_one_line(capsys.readouterr().err, tmp_path.name, "directory")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff\xfe",
        b"{",
        b"[]",
        b"null",
        b'{"version": 99}',
        b'{"version": 1}',
        EXAMPLE.read_bytes()[:-40],
        b"[" * 100_000,
    ],
)
def test_a_bad_file_is_one_line(content: bytes, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    assert run("explain", str(path)) == 2
    output = capsys.readouterr()
    assert_one_line(output.err, "bad.json")
    assert output.out == ""


def test_a_wrong_value_is_named_by_its_place(tmp_path: Path, capsys: Capture) -> None:
    tree = json.loads(EXAMPLE.read_text())
    tree["buckets"][0]["seats"] = -3
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(tree))
    assert run("explain", str(path)) == 2
    assert_one_line(capsys.readouterr().err, "bad.json", "buckets[0].seats", "-3")


@pytest.mark.parametrize("error", [shardwise.MismatchError, OSError])
def test_an_error_of_several_lines_is_joined(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def fail(path: Path) -> Plan:
        raise error("first\n  second")

    monkeypatch.setattr(plan_file, "load", fail)
    assert run("explain", "any") == 2
    assert capsys.readouterr().err == "shardwise: first second\n"


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> Plan:
        raise ZeroDivisionError

    monkeypatch.setattr(plan_file, "load", fail)
    monkeypatch.setattr(sys, "argv", ["shardwise", "explain", "any"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_the_module_is_the_command_and_loads_no_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "shardwise", "explain", str(EXAMPLE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("model ")
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "shardwise.ir.plan" in loaded
    assert loaded & {"torch", "highspy", "transformers", "shardwise.planner"} == set()


def test_a_reader_that_stops_early_sees_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "shardwise", "explain", str(EXAMPLE)]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert "Traceback" not in done.stderr and done.returncode != 0
