"""The examples run, and the pages that scripts write are current."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_job_page_is_current() -> None:
    """`python docs/job_file_page.py` writes it again."""
    module = load("docs/job_file_page.py")
    assert module.PAGE.read_text("utf-8") == module.page()


def test_a_loop_by_hand_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwise.ir.plan_file import save
    from tests.support.tiny_decoder import plan_of

    monkeypatch.delenv("RANK", raising=False)
    save(plan_of("1"), tmp_path / "plan.json")
    main = load("examples/train_by_hand.py").main
    model = "tests.support.tiny_decoder:build"
    losses = main(["train", str(tmp_path / "plan.json"), "--model", model, "--steps", "4"])
    assert len(losses) == 4 and losses[-1] < losses[0]


def test_the_whole_path_by_hand_under_torchrun(tmp_path: Path) -> None:
    """Both commands that the example names at its top, of a smaller model, on two ranks."""
    script, path = "examples/train_by_hand.py", str(tmp_path / "plan.json")
    more = ["--model", "tests.support.tiny_decoder:build"]
    planned = run(sys.executable, script, "plan", path, *more)
    assert "Decoder" in planned and "baseline" in planned
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    options = ("--nproc-per-node", "2", script, "train", path, "--steps", "2")
    trained = run(*torchrun, *options, *more)
    losses = [float(found) for found in re.findall(r"^step \d: loss ([\d.]+),", trained, re.M)]
    assert len(losses) == 2 and losses[1] < losses[0]


def run(*command: str) -> str:
    """What a command prints, started from the root of the repository."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("RANK", None)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
