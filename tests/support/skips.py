"""A pytest plugin: skips are counted by reason, and no test is skipped that could run here.

A test marked `needs_unshare` uses `unshare -mn` (emulated clusters). Where that does not work
the test is skipped. Where it works and `SHARDWISE_FORBID_SKIPS=1` is set (as `make test` does),
any skip of such a test is a failure, whoever asked for it.
"""

import functools
import os
import subprocess
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest


@functools.cache
def unshare_works() -> bool:
    """Whether this process may make mount and network namespaces."""
    try:
        done = subprocess.run(["unshare", "-mn", "true"], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("needs_unshare") and not unshare_works():
        pytest.skip("`unshare -mn` does not work here")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and _must_run(item):
        report.outcome = "failed"
        report.longrepr = f"skipped although `unshare -mn` works here: {_reason(report)}"
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    terminalreporter.write_line(f"skips by reason: {count_by_reason(reports)}")


def count_by_reason(reports: list[Any]) -> str:
    """`none`, or e.g. `3 x no accelerator; 1 x other reason`, most frequent first."""
    counts = Counter(_reason(report) for report in reports)
    return "; ".join(f"{n} x {reason}" for reason, n in counts.most_common()) or "none"


def _must_run(item: pytest.Item) -> bool:
    marked = item.get_closest_marker("needs_unshare") is not None
    return marked and os.environ.get("SHARDWISE_FORBID_SKIPS") == "1" and unshare_works()


def _reason(report: Any) -> str:
    """A skipped report holds (path, line, "Skipped: reason")."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return " ".join(text.removeprefix("Skipped: ").split())
