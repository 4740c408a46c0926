"""The skip plugin, run in a pytest of its own on planted tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PLANTED = '''
"""Planted tests."""
import pytest

def test_runs():
    pass

@pytest.mark.parametrize("n", range(2))
def test_skips(n):
    pytest.skip("no accelerator")

@pytest.mark.skip(reason="another  reason")
def test_is_skipped():
    pass

@pytest.mark.needs_unshare
def test_cluster():
    pytest.skip("no free address")
'''


def run_planted(folder: Path, unshare: str | None, forbid_skips: str) -> tuple[int, str]:
    """Exit code and output of the planted tests; `unshare` is what stands for that program."""
    (folder / "test_planted.py").write_text(PLANTED)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = needs_unshare\n")
    programs = folder / "bin"
    programs.mkdir()
    if unshare is not None:
        (programs / "unshare").write_text(unshare)
        (programs / "unshare").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.skips"],
        env={
            **os.environ,
            "PATH": str(programs),
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "SHARDWISE_FORBID_SKIPS": forbid_skips,
        },
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


WORKS = "#!/bin/sh\nexit 0\n"
REFUSED = "#!/bin/sh\nexit 1\n"


@pytest.mark.parametrize("unshare", [None, REFUSED])
def test_a_cluster_test_is_skipped_where_unshare_fails(tmp_path: Path, unshare: str | None) -> None:
    code, output = run_planted(tmp_path, unshare, "1")
    assert code == 0, output
    assert (
        "skips by reason: 2 x no accelerator; 1 x another reason; "
        "1 x `unshare -mn` does not work here\n" in output
    )
    assert output.rstrip().splitlines()[-1].startswith("1 passed, 4 skipped in ")


def test_skipping_a_cluster_test_fails_where_unshare_works(tmp_path: Path) -> None:
    code, output = run_planted(tmp_path, WORKS, "1")
    assert code == 1, output
    assert "skipped although `unshare -mn` works here: no free address" in output
    assert "skips by reason: 2 x no accelerator; 1 x another reason\n" in output
    assert output.rstrip().splitlines()[-1].startswith("1 failed, 1 passed, 3 skipped in ")


def test_skips_are_only_counted_unless_forbidden(tmp_path: Path) -> None:
    code, output = run_planted(tmp_path, WORKS, "0")
    assert code == 0, output
    assert "1 x no free address" in output
