"""The examples run, and the pages that scripts write are current."""

import importlib.util
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
    losses = main(["--model", model, "--plan", str(tmp_path / "plan.json"), "--steps", "4"])
    assert len(losses) == 4 and losses[-1] < losses[0]
